//! Removes older checkpoints of a run, of which only the last few are kept.
//!
//! Law: what is removed is a checkpoint of this library, whole, beside the new one and named like it but with a lower
//! number, of whose folder nothing is anybody else's: it holds an index and the parts that the index names, and no
//! other entry. It first takes a name that shows that it is on its way out, so a folder with its own name is never
//! torn; what a process left that was killed meanwhile, the next save removes. A save that has become a checkpoint does
//! not fail for what cannot be removed.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::index::{Index, NAME};
use warpweft_base::errors::shown_path;
use warpweft_base::id::RankId;

/// What the name of a folder ends with that is on its way out, and which begins with a dot.
const REMOVED: &str = ".removed";

/// A folder of a run, such as `step-100`.
struct Numbered<'p> {
    run: &'p Path,
    /// What stands before the number.
    name: &'p str,
    number: u64,
}

impl<'p> Numbered<'p> {
    /// `None` where the name does not end in a number.
    fn of(folder: &'p Path) -> Option<Self> {
        let (name, number) = split(folder.file_name()?.to_str()?)?;
        let run = folder.parent().filter(|run| !run.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Some(Self { run, name, number })
    }

    /// The number of a sibling of this name.
    fn sibling(&self, file_name: &str) -> Option<u64> {
        split(file_name).filter(|(name, _)| *name == self.name).map(|(_, number)| number)
    }
}

/// The digits at the end of a name, and what stands before them.
fn split(name: &str) -> Option<(&str, u64)> {
    let begin = name.trim_end_matches(|last: char| last.is_ascii_digit()).len();
    let (name, digits) = name.split_at(begin);
    Some((name, digits.parse().ok()?))
}

/// Could older checkpoints be told from this one?
pub(super) fn is_numbered(folder: &Path) -> bool {
    Numbered::of(folder).is_some()
}

/// Removes all checkpoints with lower numbers than `folder` has, but for so many that `keep` are left with it. `alive`
/// is a sign of life to ranks that wait.
pub(super) fn remove_older(folder: &Path, keep: usize, alive: &dyn Fn() -> io::Result<()>) {
    let Some(own) = Numbered::of(folder) else { return };
    let Ok(entries) = fs::read_dir(own.run) else { return };
    let mut older: Vec<(u64, PathBuf)> = Vec::new();
    for entry in entries.flatten() {
        let (file_name, path) = (entry.file_name(), entry.path());
        let Some(name) = file_name.to_str() else { continue };
        let leaving = name.strip_prefix('.').and_then(|name| name.strip_suffix(REMOVED));
        match (leaving.and_then(|name| own.sibling(name)), own.sibling(name)) {
            (Some(_), _) => tell(&path, clear(&path, false, alive)),
            (_, Some(number)) if number < own.number => older.push((number, path)),
            _ => {}
        }
    }
    older.retain(|(_, path)| alive().is_ok() && is_whole(path));
    older.sort_unstable_by_key(|(number, _)| std::cmp::Reverse(*number));
    for (_, path) in older.into_iter().skip(keep.saturating_sub(1)) {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        let leaves = path.with_file_name(format!(".{name}{REMOVED}"));
        tell(&path, fs::rename(&path, &leaves).and_then(|()| clear(&leaves, true, alive)));
    }
}

/// Is it a checkpoint with nothing beside it?
fn is_whole(folder: &Path) -> bool {
    let is_folder = fs::symlink_metadata(folder).is_ok_and(|about| about.is_dir());
    is_folder && own_files(folder).is_some_and(|own| names(folder).is_some_and(|names| names == own))
}

/// The names of a checkpoint's files.
fn own_files(folder: &Path) -> Option<BTreeSet<PathBuf>> {
    let (index, _) = Index::read(folder).ok()?;
    let parts = (0..index.ranks).map(|rank| index.part(folder, RankId::new(rank)));
    Some(parts.chain([Index::path(folder)]).collect())
}

fn names(folder: &Path) -> Option<BTreeSet<PathBuf>> {
    fs::read_dir(folder).ok()?.map(|entry| entry.map(|entry| entry.path()).ok()).collect()
}

/// Removes a folder that is on its way out, its index last; where it is `whole` to begin with, all of it is there.
fn clear(folder: &Path, whole: bool, alive: &dyn Fn() -> io::Result<()>) -> io::Result<()> {
    let (own, there) = (own_files(folder), names(folder).unwrap_or_default());
    match own {
        Some(own) if there.is_subset(&own) => {
            for file in there.iter().filter(|file| !file.ends_with(NAME)) {
                alive()?;
                fs::remove_file(file)?;
            }
            fs::remove_file(Index::path(folder))?;
        }
        // Killed between the index and the folder.
        None if there.is_empty() && !whole => {}
        _ => return Err(io::Error::other("something else came into it")),
    }
    fs::remove_dir(folder)
}

fn tell(folder: &Path, removed: io::Result<()>) {
    if let Err(error) = removed {
        tracing::warn!(%error, "the older checkpoint {} could not be removed", shown_path(folder));
    }
}
