//! Atomic files: replaced whole, or not at all; and regular files that are read (`regular.rs`).
//!
//! Law: what is written goes into a file of its own beside the one that is meant, is synced, and renamed over it; so
//! the name holds the old content or the new, also after the loss of power, and of writers at the same time one is kept
//! whole: the last, or, where nothing may be replaced, the first. (Where files have one name only, that one is empty
//! for a moment, and stays so if the process is killed then. Where the file system syncs no folders, a loss of power
//! may bring the old content back.) What failed, or was dropped, leaves nothing behind; what a killed process left, the
//! next writer of the same name removes (WF-1, `unfinished.rs`). A symbolic link is followed,
//! and what it leads to is replaced. What is no plain file (a device, a pipe, a folder) is refused: a rename would take
//! its place. A new file has the mode of any new file.

pub mod regular;
mod unfinished;

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf, is_separator};

use unfinished::Unfinished;
pub use unfinished::{Beside, Dead, besides};

/// A file that takes its name in [`WholeFile::commit`], and vanishes when it is dropped before.
#[derive(Debug)]
pub struct WholeFile {
    target: PathBuf,
    beside: PathBuf,
    file: Option<File>,
}

impl WholeFile {
    /// Begins a file that is to be called `path`.
    ///
    /// # Errors
    /// What is there is no plain file, or none can be made beside it.
    pub fn begin(path: &Path) -> io::Result<Self> {
        let target = place(path)?;
        let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty());
        let left = besides(folder.unwrap_or(Path::new(".")));
        left.iter().filter(|left| left.is_for(&target)).filter_map(Beside::dead).for_each(Dead::remove);
        Self::beside(target)
    }

    /// As [`WholeFile::begin`], for a name that no writer had before: it lists no folder to find what they left.
    ///
    /// # Errors
    /// As [`WholeFile::begin`].
    pub fn begin_new(path: &Path) -> io::Result<Self> {
        Self::beside(place(path)?)
    }

    fn beside(target: PathBuf) -> io::Result<Self> {
        let Unfinished { path: beside, file } = Unfinished::create(&target)?;
        Ok(Self { target, beside, file: Some(file) })
    }

    /// Refuses, before anything is computed, a name that could not be taken in the end.
    ///
    /// # Errors
    /// As [`WholeFile::begin`]; [`io::ErrorKind::AlreadyExists`] when the name is taken and may not be.
    pub fn check(path: &Path, replace: bool) -> io::Result<()> {
        Self::begin(path)?;
        if path.exists() && !replace { Err(io::ErrorKind::AlreadyExists.into()) } else { Ok(()) }
    }

    /// Writes a file whole, and over another only if `replace` allows it.
    ///
    /// # Errors
    /// As [`WholeFile::begin`] and [`WholeFile::commit_as`].
    pub fn write_as(path: &Path, bytes: &[u8], replace: bool) -> io::Result<()> {
        let mut file = Self::begin(path)?;
        file.write_all(bytes)?;
        file.commit_as(replace)
    }

    /// Makes the file so long, with zeros where nothing is written.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| file.set_len(bytes))
    }

    /// Waits until what was written so far is on the disk, so that less is left to wait for at the end.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn settle(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }

    /// Gives the file its name, once every byte is on the disk.
    ///
    /// # Errors
    /// The disk or the file system refuses. What it refuses may be to make the name last, which the file has then.
    pub fn commit(self) -> io::Result<()> {
        self.commit_as(true)
    }

    /// Gives the file its name, which no file may have, as a second one: it keeps its first name until [`Held::end`],
    /// and its lock until then or until what is returned is dropped. So a file whose name is part of something larger
    /// is known for an unfinished one (WF-1). Where files have one name only, it takes its name as in
    /// [`WholeFile::commit_as`].
    ///
    /// # Errors
    /// As [`WholeFile::commit_as`].
    pub fn commit_held(mut self) -> io::Result<Option<Held>> {
        self.file.as_ref().map_or(Ok(()), File::sync_all)?;
        match std::fs::hard_link(&self.beside, &self.target) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
            Err(_) => self.commit_as(false).map(|()| None),
            Ok(()) => {
                settled(folder_of(&self.target)?)?;
                Ok(Some(Held { beside: std::mem::take(&mut self.beside), _file: self.file.take() }))
            }
        }
    }

    /// As [`WholeFile::commit`]; what has the name is replaced only if `replace` allows it.
    ///
    /// # Errors
    /// As [`WholeFile::commit`]; [`io::ErrorKind::AlreadyExists`] when the name is taken and may not be.
    pub fn commit_as(mut self, replace: bool) -> io::Result<()> {
        let folder = folder_of(&self.target)?;
        if let Some(file) = &self.file {
            file.sync_all()?;
        }
        match replace {
            true => std::fs::rename(&self.beside, &self.target)?,
            false => claim(&self.beside, &self.target)?,
        }
        self.file = None;
        settled(folder)
    }
}

/// The first name and the lock of a file that has its name. Dropped before its end, it leaves the first name, by which
/// others know that the file is a leftover.
#[derive(Debug)]
pub struct Held {
    beside: PathBuf,
    _file: Option<File>,
}

impl Held {
    /// Removes the first name, for it is known what becomes of the file.
    pub fn end(self) {
        // A second name is no harm.
        let _ = std::fs::remove_file(&self.beside);
    }
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().map_or(Ok(0), |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), File::flush)
    }
}

impl Seek for WholeFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.as_mut().map_or(Ok(0), |file| file.seek(to))
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        // It is locked until its name is gone.
        if let Some(_locked) = self.file.take() {
            // Nothing to tell the caller beyond the first error.
            let _ = std::fs::remove_file(&self.beside);
        }
    }
}

/// Removes a file, so that it stays away after the loss of power.
///
/// # Errors
/// What the file system refuses; the file may be there then.
pub fn remove(path: &Path) -> io::Result<()> {
    std::fs::remove_file(path)?;
    settle_names(folder_of(path)?)
}

/// The folder of `path`, open. Only Unix opens folders; elsewhere a name lasts without.
fn folder_of(path: &Path) -> io::Result<Option<File>> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    cfg!(unix).then(|| File::open(folder.unwrap_or(Path::new(".")))).transpose()
}

/// Waits until a name that was given is on the disk.
fn settled(folder: Option<File>) -> io::Result<()> {
    settle_names(folder).map_err(|error| io::Error::new(error.kind(), Failure::Unsettled(error)))
}

/// Waits until names that were given or taken in the folder are on the disk.
fn settle_names(folder: Option<File>) -> io::Result<()> {
    match folder.map_or(Ok(()), |folder| folder.sync_all()) {
        Err(error) if syncs_no_folders(&error) => Ok(()),
        settled => settled,
    }
}

/// Does the file system say that it syncs no folders, and not that it failed to? Then nothing can be waited for.
/// PostgreSQL's `fsync_fname` goes on after EBADF and EINVAL; ENOTSUP says the same.
fn syncs_no_folders(error: &io::Error) -> bool {
    /// That of every Unix; std has no kind for it.
    const EBADF: i32 = 9;
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
        || error.raw_os_error() == Some(EBADF)
}

/// Makes a folder and those above it that are missing, so that they survive the loss of power.
///
/// # Errors
/// What the file system refuses; something is there that is no folder.
pub fn make_folder(folder: &Path) -> io::Result<()> {
    let named = folder.ancestors().filter(|above| !above.as_os_str().is_empty());
    let missing: Vec<&Path> = named.take_while(|above| !above.is_dir()).collect();
    for made in missing.into_iter().rev() {
        match std::fs::create_dir(made) {
            // Somebody else was quicker.
            Err(_) if made.is_dir() => {}
            Err(error) => return Err(error),
            Ok(()) => settle_names(folder_of(made)?)?,
        }
    }
    Ok(())
}

/// Gives `beside` the name `target`, which no file may have: as a second name, of which it keeps that one, or,
/// where files have one name only, in place of an empty file that takes it first.
fn claim(beside: &Path, target: &Path) -> io::Result<()> {
    match std::fs::hard_link(beside, target) {
        Ok(()) => {
            // A second name is no harm.
            let _ = std::fs::remove_file(beside);
            Ok(())
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        Err(_) => {
            drop(File::create_new(target)?);
            std::fs::rename(beside, target).inspect_err(|_| drop(std::fs::remove_file(target)))
        }
    }
}

/// What is said of a file here, and not by the system; errors hold it.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("it is the name of a folder and of no file; name a file")]
    Folder,
    #[error("it exists and is no plain file, and only plain files are replaced; name another file")]
    NoPlainFile,
    /// The file has its name; what failed is to make that last.
    #[error("{0}")]
    Unsettled(io::Error),
}

/// What the user who named a file does about what the system says of it.
pub fn next_step(source: &io::Error) -> &'static str {
    match source.get_ref().and_then(|told| told.downcast_ref()) {
        Some(Failure::Unsettled(_)) => {
            return "the file is in place, but its name may not survive a loss of power";
        }
        // They come with advice of their own.
        Some(Failure::Folder | Failure::NoPlainFile) => return "nothing was changed",
        None => {}
    }
    match source.kind() {
        io::ErrorKind::NotFound => "check the path, and that its folder is there",
        io::ErrorKind::PermissionDenied => "allow this user to read and write there, or name another path",
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "make room, or name a path on another disk"
        }
        _ => "name the path of a file that can be read and replaced",
    }
}

/// What `path` leads to, if a plain file is there or can be.
fn place(path: &Path) -> io::Result<PathBuf> {
    let is_folder =
        path.as_os_str().as_encoded_bytes().last().is_some_and(|last| is_separator(char::from(*last)));
    if is_folder || path.file_name().is_none() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, Failure::Folder));
    }
    let about = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(path.to_owned()),
        about => about?,
    };
    let is_link = about.is_symlink();
    let target = if is_link { path.canonicalize()? } else { path.to_owned() };
    if if is_link { target.is_file() } else { about.is_file() } {
        return Ok(target);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, Failure::NoPlainFile))
}

#[cfg(all(test, unix))]
mod tests;
