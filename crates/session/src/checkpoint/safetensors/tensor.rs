//! A tensor on its way into a file.
//!
//! Law: nothing large is copied here. What a tensor holds is written when it is its turn, from where it is.

use std::borrow::Cow;
use std::io::{self, Write};

use bytemuck::Pod;
use safetensors::Dtype;

use warpweft_format::ElementType;

/// One tensor of a file. What it holds is the checkpoint's own, but for single numbers.
pub(in crate::checkpoint) struct Tensor<'checkpoint> {
    pub(in crate::checkpoint) name: String,
    pub(in crate::checkpoint) dtype: Dtype,
    pub(in crate::checkpoint) shape: Vec<usize>,
    pub(in crate::checkpoint) content: Content<'checkpoint>,
}

/// Writes the bytes of a tensor.
pub(in crate::checkpoint) type LateBytes<'a> = dyn Fn(&mut dyn Write) -> io::Result<()> + 'a;

/// A function as a place for bytes, which says how many of them it took.
pub(in crate::checkpoint) struct Taker<F>(pub(in crate::checkpoint) F);

impl<F: FnMut(&[u8]) -> io::Result<usize>> Write for Taker<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a tensor holds.
pub(in crate::checkpoint) enum Content<'checkpoint> {
    /// As it is in the file.
    Bytes(Cow<'checkpoint, [u8]>),
    /// So many bytes, which whoever has them writes when it is their turn.
    Later { bytes: usize, write: Box<LateBytes<'checkpoint>> },
}

impl Content<'_> {
    /// Bytes in the file.
    pub(in crate::checkpoint) fn bytes(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Later { bytes, .. } => *bytes,
        }
    }

    /// Puts them there.
    pub(in crate::checkpoint) fn write(&self, file: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Bytes(bytes) => file.write_all(bytes),
            Self::Later { write, .. } => write(file),
        }
    }
}

/// The dtype of elements of a plane.
pub(in crate::checkpoint) const fn dtype(element: ElementType) -> Dtype {
    match element {
        ElementType::F32 => Dtype::F32,
        ElementType::Bf16 => Dtype::BF16,
        ElementType::U8 => Dtype::U8,
        ElementType::U32 => Dtype::U32,
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
}
