//! Regular files, opened and read whole.
//!
//! Law: nothing but a regular file is opened: opening a FIFO waits for its writer, and a device may never end. What is
//! read whole is no longer than its reader allows, whatever the file system says of it. Short texts alone, such as a
//! configuration, may come out of a pipe, which a shell makes of `<(command)`.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The longest text that is read whole, bytes.
const MOST_TEXT: u64 = 1 << 26;

/// What is said of a file here, and not by the system.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("it is no plain file (a folder, a device or a pipe)")]
    NoPlainFile,
    #[error("it has more than {} MiB", .0 >> 20)]
    TooLarge(u64),
}

/// Opens a file to read it.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for what is no regular file; what the system refuses.
pub fn open(path: &Path) -> io::Result<File> {
    let refused = || io::Error::new(io::ErrorKind::InvalidInput, Failure::NoPlainFile);
    if !std::fs::metadata(path)?.is_file() {
        return Err(refused());
    }
    let file = File::open(path)?;
    // It may be another by now.
    if file.metadata()?.is_file() { Ok(file) } else { Err(refused()) }
}

/// The bytes of a file that has `most` of them or fewer.
///
/// # Errors
/// As [`open`]; [`io::ErrorKind::FileTooLarge`].
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let too_large = || io::Error::new(io::ErrorKind::FileTooLarge, Failure::TooLarge(most));
    let length = file.metadata()?.len();
    if length > most {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(length).map_err(|_| too_large())?)?;
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large()) } else { Ok(bytes) }
}

/// The bytes of a file or pipe that people write.
///
/// # Errors
/// What the system refuses; [`io::ErrorKind::FileTooLarge`] for more than 64 MiB.
pub fn short(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_TEXT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_TEXT {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, Failure::TooLarge(MOST_TEXT)));
    }
    Ok(bytes)
}

/// The text of a file or pipe that people write.
///
/// # Errors
/// As [`short`]; [`io::ErrorKind::InvalidData`] for what is not UTF-8.
pub fn text(path: &Path) -> io::Result<String> {
    String::from_utf8(short(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_whole_up_to_the_longest_that_is_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, "text").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"text");
        assert_eq!(read(&path, 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(text(&path).unwrap(), "text");
        std::fs::write(&path, [0xff]).unwrap();
        assert_eq!(text(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(open(folder.path()).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
