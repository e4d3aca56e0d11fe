//! A tensor on its way into a file.
//!
//! Law: nothing large is copied here. What a tensor holds is written when it is its turn, from where it is.

use std::borrow::Cow;
use std::io::{self, Write};

use bytemuck::Pod;
use half::bf16;
use safetensors::Dtype;

/// One tensor of a file. What it holds is the checkpoint's own, but for single numbers.
pub(in crate::checkpoint) struct Tensor<'checkpoint> {
    pub(in crate::checkpoint) name: String,
    pub(in crate::checkpoint) dtype: Dtype,
    pub(in crate::checkpoint) shape: Vec<usize>,
    pub(in crate::checkpoint) content: Content<'checkpoint>,
}

/// Writes the bytes of a tensor.
pub(in crate::checkpoint) type LateBytes<'a> = dyn Fn(&mut dyn Write) -> io::Result<()> + 'a;

/// What a tensor holds.
pub(in crate::checkpoint) enum Content<'checkpoint> {
    /// As it is in the file.
    Bytes(Cow<'checkpoint, [u8]>),
    /// So many bytes, which whoever has them writes when it is their turn.
    Later { bytes: usize, write: Box<LateBytes<'checkpoint>> },
    /// Values that are rounded to bf16 on their way into the file, to nearest, ties to even.
    Rounded(&'checkpoint [f32]),
}

impl Content<'_> {
    /// Values rounded at once.
    const PIECE: usize = 1 << 15;

    /// Bytes in the file.
    pub(in crate::checkpoint) fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Later { bytes, .. } => *bytes,
            Self::Rounded(values) => values.len() * size_of::<bf16>(),
        }
    }

    /// Puts them there.
    pub(in crate::checkpoint) fn write(&self, file: &mut dyn Write) -> io::Result<()> {
        let values = match self {
            Self::Bytes(bytes) => return file.write_all(bytes),
            Self::Later { write, .. } => return write(file),
            Self::Rounded(values) => values,
        };
        let mut rounded = Vec::with_capacity(values.len().min(Self::PIECE));
        for piece in values.chunks(Self::PIECE) {
            rounded.clear();
            rounded.extend(piece.iter().map(|value| bf16::from_f32(*value)));
            file.write_all(bytemuck::cast_slice(&rounded))?;
        }
        Ok(())
    }
}

impl<'checkpoint> Tensor<'checkpoint> {
    pub(in crate::checkpoint) fn scalar(name: String, value: f32) -> Self {
        let content = Content::Bytes(Cow::Owned(value.to_le_bytes().to_vec()));
        Self { name, dtype: Dtype::F32, shape: vec![1], content }
    }

    /// Values or bytes that are fetched when it is their turn: `elements` of `dtype`, in this shape.
    pub(in crate::checkpoint) fn later<T: Pod>(
        name: String,
        dtype: Dtype,
        shape: Vec<usize>,
        fetch: impl Fn() -> io::Result<Vec<T>> + 'checkpoint,
    ) -> Self {
        let elements = shape.iter().fold(1_usize, |elements, extent| elements.saturating_mul(*extent));
        let write = move |file: &mut dyn Write| {
            let values = fetch()?;
            if values.len() != elements {
                let said = format!("there are {} values for a tensor of {elements}", values.len());
                return Err(io::Error::new(io::ErrorKind::InvalidData, said));
            }
            file.write_all(bytemuck::cast_slice(&values))
        };
        let bytes = elements.saturating_mul(size_of::<T>());
        Self { name, dtype, shape, content: Content::Later { bytes, write: Box::new(write) } }
    }

    /// Values in f32.
    pub(in crate::checkpoint) fn values(name: String, shape: Vec<usize>, values: &'checkpoint [f32]) -> Self {
        let content = Content::Bytes(Cow::Borrowed(bytemuck::cast_slice(values)));
        Self { name, dtype: Dtype::F32, shape, content }
    }

    /// Values in bf16.
    pub(in crate::checkpoint) fn rounded(
        name: String,
        shape: Vec<usize>,
        values: &'checkpoint [f32],
    ) -> Self {
        Self { name, dtype: Dtype::BF16, shape, content: Content::Rounded(values) }
    }
}
