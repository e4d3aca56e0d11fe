//! The strict reader of safetensors files.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use super::entry::{LENGTH_BYTES, TensorEntry};
use super::header::Header;
use super::invalid::{Invalid, TensorFileError};
use warpweft_base::whole_file::regular;

/// A file whose header is valid.
#[derive(Debug)]
pub struct TensorFile {
    file: File,
    bytes: u64,
    /// Where the bytes of tensors begin.
    data: u64,
}

impl TensorFile {
    /// Opens a file and reads its header, which is also given as its text.
    ///
    /// # Errors
    /// [`TensorFileError`].
    pub fn open(path: &Path) -> Result<(Header, Self, Vec<u8>), TensorFileError> {
        let mut file = regular::open(path)?;
        let bytes = file.metadata()?.len();
        if bytes < LENGTH_BYTES {
            let what = "and the length of the header alone takes 8; it is empty or cut off";
            return Err(Invalid::CutOff(format!("it has {bytes} bytes, {what}")).into());
        }
        let mut length = [0; LENGTH_BYTES as usize];
        file.read_exact(&mut length)?;
        let mut json = vec![0; Header::length(length, bytes)? as usize];
        file.read_exact(&mut json)?;
        let data = LENGTH_BYTES + json.len() as u64;
        let header = Header::parse(&json, bytes - data)?;
        Ok((header, Self { file, bytes, data }, json))
    }

    /// Bytes of the whole file.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The first byte of a tensor in the file.
    #[must_use]
    pub const fn begin(&self, tensor: &TensorEntry) -> u64 {
        self.data + tensor.begin
    }

    /// The bytes of a tensor.
    ///
    /// # Errors
    /// What the file system refuses, and more than there is memory for.
    pub fn read(&mut self, tensor: &TensorEntry) -> io::Result<Vec<u8>> {
        let (mut bytes, length) = (Vec::new(), tensor.bytes() as usize);
        bytes.try_reserve_exact(length)?;
        self.file.seek(SeekFrom::Start(self.begin(tensor)))?;
        match self.file.by_ref().take(tensor.bytes()).read_to_end(&mut bytes)? {
            read if read == length => Ok(bytes),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Fills `into` from the byte `at` of the file on.
    ///
    /// # Errors
    /// What the file system refuses.
    pub fn read_at(&mut self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(at))?;
        self.file.read_exact(into)
    }
}
