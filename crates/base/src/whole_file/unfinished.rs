//! The temporary file of an atomic write, and what is left of it when its writer is killed.
//!
//! Law **WF-1**: such a file is removed by others only if it is provably this library's and its writer is provably
//! gone, or gave it up. Its name has the target, the boot of the host, the process and a number; its writer holds a
//! lock on it from before the first byte to the end, and the system gives that lock back when the process ends,
//! however it ends. So the writer is gone if the name is of this boot and the lock is free; locks of other hosts need
//! not be seen here. A remover holds the lock meanwhile, and a writer that finds its new file locked or removed takes
//! another. What cannot be proven stays: files of other hosts and boots, and where a system has no boot id or no
//! locks.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// What the name of such a file ends with.
const SUFFIX: &str = ".part";

/// Hexadecimal digits of a boot in a name.
const BOOT_DIGITS: usize = 16;

/// A new file beside its target, that no other writer has, in this process or another.
#[derive(Debug)]
pub(super) struct Unfinished {
    pub(super) path: PathBuf,
    pub(super) file: File,
}

impl Unfinished {
    pub(super) fn create(target: &Path) -> io::Result<Self> {
        let (name, process) = (kept(target), std::process::id());
        let mut boot = boot().map(|boot| format!(".{boot}")).unwrap_or_default();
        let mut number = 0_u32;
        loop {
            let path = target.with_file_name(format!("{name}{boot}.{process}.{number}{SUFFIX}"));
            match File::create_new(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && number < u32::MAX => {}
                Err(error) => return Err(error),
                Ok(file) if boot.is_empty() => return Ok(Self { path, file }),
                Ok(file) => match file.try_lock() {
                    Ok(()) if is_at(&file, &path) => return Ok(Self { path, file }),
                    // Taken for a file of the dead before it was locked.
                    Ok(()) | Err(TryLockError::WouldBlock) => {}
                    Err(TryLockError::Error(_)) => {
                        std::fs::remove_file(&path)?;
                        boot.clear();
                    }
                },
            }
            number += 1;
        }
    }
}

/// A file of such a name, of any host.
#[derive(Debug)]
pub struct Beside {
    path: PathBuf,
    target: String,
    boot: String,
}

/// Those of a folder, as far as it can be read.
pub fn besides(folder: &Path) -> Vec<Beside> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| Beside::of(entry.path())).collect()
}

impl Beside {
    fn of(path: PathBuf) -> Option<Self> {
        let mut fields = path.file_name()?.to_str()?.strip_suffix(SUFFIX)?.rsplitn(4, '.');
        let is_number = |field: &str| field.parse::<u32>().is_ok();
        let is_named = is_number(fields.next()?) && is_number(fields.next()?);
        let (boot, target) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        let is_boot = boot.len() == BOOT_DIGITS && boot.bytes().all(|digit| digit.is_ascii_hexdigit());
        (is_named && is_boot).then_some(Self { path, target, boot })
    }

    /// Was it to take this name?
    pub fn is_for(&self, target: &Path) -> bool {
        self.target == kept(target)
    }

    /// The name that it was to take, if that is not long.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// The file, if its writer is provably gone (WF-1).
    pub fn dead(&self) -> Option<Dead<'_>> {
        let is_file = std::fs::symlink_metadata(&self.path).is_ok_and(|about| about.is_file());
        let is_here = is_file && boot().as_ref() == Some(&self.boot);
        // NFS gives locks to those that may write.
        let file = is_here.then(|| File::options().read(true).write(true).open(&self.path))?.ok()?;
        let is_free = file.try_lock().is_ok() && is_at(&file, &self.path);
        is_free.then_some(Dead { path: &self.path, file })
    }
}

/// A file whose writer is gone. No other process removes it meanwhile.
#[derive(Debug)]
pub struct Dead<'a> {
    path: &'a Path,
    file: File,
}

impl Dead<'_> {
    /// Has the same file this name as well?
    pub fn is(&self, name: &Path) -> bool {
        is_at(&self.file, name)
    }

    /// Removes it, or leaves it where the system refuses.
    pub fn remove(self) {
        let _ = std::fs::remove_file(self.path);
    }
}

/// The name of a target as far as it is kept, so that there is room for what makes it another.
fn kept(target: &Path) -> String {
    const KEPT: usize = 128;
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    name[..name.floor_char_boundary(KEPT)].to_owned()
}

/// What tells this boot of this host from all others, where the system says so.
fn boot() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).take(BOOT_DIGITS).collect();
    (digits.len() == BOOT_DIGITS).then_some(digits)
}

/// Is the open file the one of this name?
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let [Ok(open), Ok(named)] = [file.metadata(), std::fs::symlink_metadata(path)] else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// Systems without a boot id never ask.
#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> bool {
    false
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = folder.read_dir().unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// What a writer that was killed leaves: a file without a lock.
    fn killed(target: &Path) -> PathBuf {
        let Unfinished { path, file } = Unfinished::create(target).unwrap();
        drop(file);
        path
    }

    /// WF-1.
    #[test]
    fn a_file_is_of_the_dead_only_once_its_writer_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        let (gone, alive) = (killed(&target), Unfinished::create(&target).unwrap());
        let found = besides(folder.path());
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|beside| beside.is_for(&target) && beside.target() == "out"));
        found.iter().filter_map(Beside::dead).for_each(Dead::remove);
        assert!(!gone.exists() && alive.path.exists());
        // A name that is used again after it was seen.
        let seen = besides(folder.path());
        std::fs::rename(&alive.path, &target).unwrap();
        let again = Unfinished::create(&target).unwrap();
        drop(alive);
        assert!(seen.iter().all(|beside| beside.dead().is_none()));
        assert!(target.exists() && again.path.exists());
    }

    /// WF-1.
    #[test]
    fn files_of_other_hosts_and_boots_and_of_others_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        let own = killed(&target).file_name().unwrap().to_str().unwrap().to_owned();
        let boot = boot().unwrap();
        let others = [
            own.replace(&boot, "0123456789abcdef"),
            own.replace(&format!(".{boot}"), ""),
            own.replace(SUFFIX, ".tmp"),
            own.replace("out.", "out."[1..].trim_end_matches('.')),
            format!("out.{boot}.x.0.part"),
            "out.part".to_owned(),
        ];
        for name in &others {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::os::unix::fs::symlink("out", folder.path().join(format!("out.{boot}.1.7.part"))).unwrap();
        let found = besides(folder.path());
        let dead: Vec<_> =
            found.iter().filter(|beside| beside.is_for(&target)).filter_map(Beside::dead).collect();
        assert_eq!(dead.len(), 1);
        dead.into_iter().for_each(Dead::remove);
        assert!(!folder.path().join(own).exists());
        assert_eq!(names(folder.path()).len(), others.len() + 1);
    }

    /// WF-1: a new file is another's for a moment, before it is locked.
    #[test]
    fn of_writers_and_removers_at_once_no_writer_loses_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("out");
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let made = Unfinished::create(&target).unwrap();
                        std::thread::yield_now();
                        assert!(is_at(&made.file, &made.path));
                        std::fs::remove_file(made.path).unwrap();
                    }
                });
                scope.spawn(|| {
                    for _ in 0..300 {
                        besides(folder.path()).iter().filter_map(Beside::dead).for_each(Dead::remove);
                    }
                });
            }
        });
    }
}
