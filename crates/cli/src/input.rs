//! The input checkpoint: its header is read at once, its tensors in pieces (TL-3).

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use warpweft_format::Format;
use warpweft_session::checkpoint::kind::of_start;
use warpweft_session::checkpoint::manifest::{KEY, Manifest, ManifestError, VERSION};
use warpweft_session::checkpoint::safetensors::floats::{float_bytes, to_f32};
use warpweft_session::checkpoint::safetensors::{Header, TensorEntry, TensorFile, TensorFileError};

use super::{Progress, ToolError};

/// Bytes read at once; a multiple of every element.
const PIECE: usize = 1 << 20;

/// The data of a checkpoint. Its header is handed out by [`Input::open`].
#[derive(Debug)]
pub(crate) struct Input {
    path: PathBuf,
    file: TensorFile,
    piece: Vec<u8>,
}

/// What a file that was quantized says about itself; `None` if it says nothing.
pub(crate) fn manifest_of(header: &Header, path: &Path) -> Result<Option<Manifest>, ToolError> {
    let Some(text) = header.metadata().get(KEY) else { return Ok(None) };
    let wrong = |problem| ToolError::Manifest { path: path.to_owned(), problem };
    let manifest = Manifest::read(text).map_err(|error| match error {
        ManifestError::NotUnderstood(error) => wrong(format!("is not understood: {error}")),
        ManifestError::Version(version) => {
            wrong(format!("has version {version}, and this program reads 1 to {VERSION}"))
        }
    })?;
    if matches!(manifest.format, Format::F32 | Format::Bf16) {
        return Err(wrong(format!("names {}, which does not quantize", manifest.format)));
    }
    Ok(Some(manifest))
}

impl Input {
    /// Opens a checkpoint and reads its header. What is none is recognized by how it begins.
    pub(crate) fn open(path: &Path) -> Result<(Header, Self), ToolError> {
        let (header, file, _) = TensorFile::open(path).map_err(|error| match (error, path.to_owned()) {
            (TensorFileError::File(error), _) if error.kind() != ErrorKind::InvalidInput => {
                ToolError::file("read", path)(error)
            }
            (error, path) => match (of_start(&path), error) {
                (Some(what), _) => ToolError::NotWeights { path, what: what.to_owned() },
                (None, TensorFileError::Invalid(source)) => ToolError::Checkpoint { path, source },
                (None, TensorFileError::File(_)) => ToolError::NotAFile { path },
            },
        })?;
        Ok((header, Self { path: path.to_owned(), file, piece: vec![0; PIECE] }))
    }

    /// Bytes of the whole file.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.file.bytes()
    }

    /// Hands the bytes of a tensor to `each`, piece by piece. No element spans two pieces.
    pub(crate) fn pieces(
        &mut self,
        entry: &TensorEntry,
        progress: &mut dyn Progress,
        mut each: impl FnMut(&[u8]) -> Result<(), ToolError>,
    ) -> Result<(), ToolError> {
        let failed = ToolError::file("read", &self.path);
        let (mut at, mut left) = (self.file.begin(entry), entry.bytes());
        loop {
            let piece = &mut self.piece[..left.min(PIECE as u64) as usize];
            self.file.read_at(at, piece).map_err(&failed)?;
            each(piece)?;
            (at, left) = (at + piece.len() as u64, left - piece.len() as u64);
            if progress.advance(piece.len() as u64).is_break() {
                return Err(ToolError::Interrupted);
            }
            if left == 0 {
                return Ok(());
            }
        }
    }

    /// Reads a whole tensor.
    pub(crate) fn bytes(
        &mut self,
        entry: &TensorEntry,
        progress: &mut dyn Progress,
    ) -> Result<Vec<u8>, ToolError> {
        let mut bytes = Vec::new();
        reserve(&mut bytes, &entry.name, entry.bytes())?;
        self.pieces(entry, progress, |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Reads a tensor of F32, BF16 or F16 into `values`, which loses what it held. The conversion is exact. Of any
    /// other dtype nothing is read.
    pub(crate) fn values(
        &mut self,
        entry: &TensorEntry,
        progress: &mut dyn Progress,
        values: &mut Vec<f32>,
    ) -> Result<(), ToolError> {
        values.clear();
        let Some(width) = float_bytes(entry.dtype) else {
            return Ok(());
        };
        reserve(values, &entry.name, entry.bytes() / width as u64)?;
        self.pieces(entry, progress, |piece| {
            let begin = values.len();
            values.resize(begin + piece.len() / width, 0.0);
            to_f32(entry.dtype, piece, &mut values[begin..]);
            Ok(())
        })
    }
}

/// Makes room for `count` elements of a tensor, and for no more.
pub(crate) fn reserve<T>(list: &mut Vec<T>, tensor: &str, count: u64) -> Result<(), ToolError> {
    let bytes = count.saturating_mul(size_of::<T>() as u64);
    let refused = || ToolError::Memory { tensor: tensor.to_owned(), bytes };
    let count = usize::try_from(count).map_err(|_| refused())?;
    list.try_reserve_exact(count).map_err(|_| refused())
}
