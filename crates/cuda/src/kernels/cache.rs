//! Compiled kernels on disk, so that a process starts without compiling.
//!
//! Laws:
//! - **KC-1** An entry is found only by everything that made it: source, headers, options, architecture,
//!   compiler and driver. A change of any of them is another entry.
//! - **KC-2** An entry is written under a name of its own and renamed when it is whole (`whole_file.rs`), so
//!   processes that start together never see half of one; the last to finish wins, with the same bytes.
//! - **KC-3** An entry that is short, changed or of another version of this file counts as absent, and is
//!   replaced by what is compiled anew.
//! - A cache that cannot be read or written costs time, never a failure. It costs that time only once,
//!   because the process keeps what cannot be written, for all clones of the cache.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use warpweft_backend::bell::lock;
use warpweft_base::digest::Digest;
use warpweft_base::whole_file::WholeFile;
use warpweft_base::whole_file::regular;

/// First bytes of an entry: what it is, and the version of its layout.
const MAGIC: &[u8; 16] = b"warpweft cubin 2";

/// More bytes than an entry has.
const MOST: u64 = 1 << 28;

/// Where compiled kernels are kept.
#[derive(Clone, Debug, Default)]
pub struct KernelCache {
    directory: Option<PathBuf>,
    /// Entries that could not be written to a directory.
    unwritten: Arc<Mutex<HashMap<Key, Vec<u8>>>>,
}

impl KernelCache {
    /// A cache in this directory, which is made when the first entry is written.
    #[must_use]
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self { directory: Some(directory.into()), ..Self::default() }
    }

    /// A cache without a directory: every process compiles for itself.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// A cache in the user's cache directory: `$XDG_CACHE_HOME/warpweft/kernels`, or
    /// `~/.cache/warpweft/kernels`; nowhere if neither variable names an absolute path.
    #[must_use]
    pub fn of_user() -> Self {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let caches = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        caches.map_or_else(Self::none, |caches| Self::at(caches.join("warpweft").join("kernels")))
    }

    /// The directory, if there is one.
    #[must_use]
    pub fn directory(&self) -> Option<&Path> {
        self.directory.as_deref()
    }

    /// The code of `key`: from the cache, or made and kept there.
    pub(crate) fn find_or_make<E>(
        &self,
        key: &Key,
        make: impl FnOnce() -> Result<Vec<u8>, E>,
    ) -> Result<Vec<u8>, E> {
        let path = self.directory.as_ref().map(|directory| directory.join(key.file_name()));
        if let Some(code) = path.as_ref().and_then(|path| read(path, key)) {
            return Ok(code);
        }
        if let Some(code) = lock(&self.unwritten).get(key) {
            return Ok(code.clone());
        }
        let code = make()?;
        // A full or read-only disk must not stop training.
        if path.is_none_or(|path| write(&path, key, &code).is_err()) {
            lock(&self.unwritten).insert(*key, code.clone());
        }
        Ok(code)
    }
}

/// What an entry is found by (KC-1): a hash of all that determines the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(u128);

impl Key {
    /// The key of these parts. The length of each is part of the key, so no two lists of parts run together.
    pub(crate) fn new<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        Self(Digest::from_iter(parts).long())
    }

    fn file_name(self) -> String {
        format!("{:032x}.cubin", self.0)
    }
}

/// Keeps an entry (KC-2).
fn write(path: &Path, key: &Key, code: &[u8]) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    let head = [MAGIC.as_slice(), &key.0.to_le_bytes(), &checksum(code), &(code.len() as u64).to_le_bytes()];
    let mut entry = WholeFile::begin(path)?;
    head.into_iter().chain([code]).try_for_each(|part| entry.write_all(part))?;
    entry.commit()
}

/// The code of an entry; `None` if it is not whole (KC-3).
fn read(path: &Path, key: &Key) -> Option<Vec<u8>> {
    let entry = regular::read(path, MOST).ok()?;
    let (magic, rest) = entry.split_first_chunk::<16>()?;
    let (of_key, rest) = rest.split_first_chunk::<16>()?;
    let (sum, rest) = rest.split_first_chunk::<16>()?;
    let (length, code) = rest.split_first_chunk::<8>()?;
    let whole = magic == MAGIC
        && u128::from_le_bytes(*of_key) == key.0
        && u64::from_le_bytes(*length) == code.len() as u64
        && *sum == checksum(code);
    whole.then(|| code.to_vec())
}

/// By which an entry that was damaged is found out (KC-3).
fn checksum(code: &[u8]) -> [u8; 16] {
    Digest::from_iter([code]).long().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn key(text: &str) -> Key {
        Key::new([text.as_bytes()])
    }

    fn kept(cache: &KernelCache, key: Key) -> bool {
        let made: Result<Vec<u8>, ()> = cache.find_or_make(&key, || Err(()));
        made.is_ok()
    }

    fn make(cache: &KernelCache, key: Key, code: &[u8]) -> Vec<u8> {
        cache.find_or_make(&key, || Ok::<_, Infallible>(code.to_vec())).unwrap()
    }

    /// KC-1.
    #[test]
    fn an_entry_is_found_by_its_own_key_alone() {
        let directory = tempfile::tempdir().unwrap();
        let cache = KernelCache::at(directory.path().join("made/on/demand"));
        assert_eq!(make(&cache, key("a"), b"code of a"), b"code of a");
        assert_eq!(make(&cache, key("a"), b"something else"), b"code of a");
        assert!(!kept(&cache, key("b")));
        assert_ne!(Key::new([b"ab".as_slice(), b"c"]), Key::new([b"a".as_slice(), b"bc"]));
    }

    /// KC-3.
    #[test]
    fn a_corrupt_entry_is_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let cache = KernelCache::at(directory.path());
        make(&cache, key("a"), b"code");
        let path = directory.path().join(key("a").file_name());
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x10;
            for entry in [changed.as_slice(), &whole[..at]] {
                fs::write(&path, entry).unwrap();
                assert!(!kept(&cache, key("a")), "byte {at}");
                make(&cache, key("a"), b"code");
                assert_eq!(fs::read(&path).unwrap(), whole);
            }
        }
    }

    /// KC-2.
    #[test]
    fn writers_that_race_leave_one_whole_entry_and_no_unfinished_file() {
        let directory = tempfile::tempdir().unwrap();
        let code = vec![7; 100_000];
        std::thread::scope(|scope| {
            for _ in 0..8 {
                // A cache per thread, as processes have them.
                let cache = KernelCache::at(directory.path());
                let code = &code;
                scope.spawn(move || assert_eq!(make(&cache, key("a"), code), *code));
            }
        });
        assert!(kept(&KernelCache::at(directory.path()), key("a")));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn without_a_directory_everything_is_made_once_for_all_clones() {
        let cache = KernelCache::none();
        assert_eq!(make(&cache, key("a"), b"one"), b"one");
        assert_eq!(make(&cache.clone(), key("a"), b"two"), b"one");
        assert_eq!(make(&KernelCache::none(), key("a"), b"two"), b"two");
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_no_failure_and_makes_nothing_twice() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a file");
        fs::write(&file, b"").unwrap();
        let cache = KernelCache::at(file.join("below"));
        assert_eq!(make(&cache, key("a"), b"code"), b"code");
        assert!(kept(&cache.clone(), key("a")));
        assert!(!kept(&KernelCache::at(file.join("below")), key("a")));
    }
}
