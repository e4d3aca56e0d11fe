//! Copies of values between candle's tensors and the memory that a session lends.
//!
//! Law: bytes are the tensor's elements, row-major, little endian, in its own dtype. What the session has no type for
//! travels as bytes.

use candle_core::{CpuStorage, DType, Device, Result, Storage, Tensor, Var, bail};
use warpweft::bytemuck::{self, Pod};
use warpweft::format::ElementType;
use warpweft_blocks::Flow;

/// Shape and dtype of what goes into a block or comes out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    pub(crate) dims: Vec<usize>,
    pub(crate) dtype: DType,
}

impl Form {
    pub(crate) fn of(tensor: &Tensor) -> Self {
        Self { dims: tensor.dims().to_vec(), dtype: tensor.dtype() }
    }

    pub(crate) fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.elements() * self.dtype.size_in_bytes()
    }

    /// As the session sees it; `None` for a dtype that tensors here do not have.
    pub(crate) fn flow(&self) -> Option<Flow> {
        let elements = self.elements();
        let (element, each) = match self.dtype {
            DType::F32 => (ElementType::F32, 1),
            DType::BF16 => (ElementType::Bf16, 1),
            DType::U32 => (ElementType::U32, 1),
            DType::U8 => (ElementType::U8, 1),
            DType::F16 | DType::I16 => (ElementType::U8, 2),
            DType::I32 => (ElementType::U8, 4),
            DType::F64 | DType::I64 => (ElementType::U8, 8),
            _ => return None,
        };
        Some(Flow { elements: elements * each, element })
    }

    /// The same for `part` of `whole` samples; `None` where dimension 0 does not divide so.
    pub(crate) fn part(&self, part: usize, whole: usize) -> Option<Self> {
        let (first, rest) = self.dims.split_first()?;
        let each = first.checked_div(whole).filter(|each| each * whole == *first)?;
        let dims = [each * part].into_iter().chain(rest.iter().copied()).collect();
        Some(Self { dims, dtype: self.dtype })
    }
}

/// A tensor of `form` from as many bytes as it needs of the first of `bytes`.
pub(crate) fn tensor(bytes: &[u8], form: &Form, variable: bool) -> Result<Tensor> {
    fn of<T: Pod + candle_core::WithDType>(bytes: &[u8], form: &Form, variable: bool) -> Result<Tensor> {
        let length = form.elements() * size_of::<T>();
        let Some(bytes) = bytes.get(..length) else {
            bail!("{} bytes for a tensor of {length}", bytes.len());
        };
        let values: Vec<T> = bytemuck::allocation::pod_collect_to_vec(bytes);
        match variable {
            true => Ok(Var::from_vec(values, form.dims.as_slice(), &Device::Cpu)?.into_inner()),
            false => Tensor::from_vec(values, form.dims.as_slice(), &Device::Cpu),
        }
    }
    match form.dtype {
        DType::F32 => of::<f32>(bytes, form, variable),
        DType::F64 => of::<f64>(bytes, form, variable),
        DType::BF16 => of::<warpweft::bf16>(bytes, form, variable),
        DType::F16 => of::<warpweft::f16>(bytes, form, variable),
        DType::U8 => of::<u8>(bytes, form, variable),
        DType::U32 => of::<u32>(bytes, form, variable),
        DType::I16 => of::<i16>(bytes, form, variable),
        DType::I32 => of::<i32>(bytes, form, variable),
        DType::I64 => of::<i64>(bytes, form, variable),
        other => bail!("tensors of dtype {other:?} do not go between blocks"),
    }
}

/// Calls `with` with the bytes of a tensor, which may be on a GPU.
pub(crate) fn with_bytes<R>(tensor: &Tensor, with: impl FnOnce(&[u8]) -> R) -> Result<R> {
    let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { bail!("a tensor of another device than the CPU") };
    let range = layout.start_offset()..layout.start_offset() + layout.shape().elem_count();
    Ok(match storage {
        CpuStorage::F32(values) => with(bytemuck::cast_slice(&values[range])),
        CpuStorage::F64(values) => with(bytemuck::cast_slice(&values[range])),
        CpuStorage::BF16(values) => with(bytemuck::cast_slice(&values[range])),
        CpuStorage::F16(values) => with(bytemuck::cast_slice(&values[range])),
        CpuStorage::U8(values) => with(&values[range]),
        CpuStorage::U32(values) => with(bytemuck::cast_slice(&values[range])),
        CpuStorage::I16(values) => with(bytemuck::cast_slice(&values[range])),
        CpuStorage::I32(values) => with(bytemuck::cast_slice(&values[range])),
        CpuStorage::I64(values) => with(bytemuck::cast_slice(&values[range])),
        _ => bail!("tensors of dtype {:?} do not go between blocks", tensor.dtype()),
    })
}

/// Overwrites `bytes` with those of a tensor, which may be fewer; the rest become zeros.
pub(crate) fn store(tensor: &Tensor, bytes: &mut [u8]) -> Result<()> {
    let room = bytes.len();
    let given = with_bytes(tensor, |values| {
        if let Some(begin) = bytes.get_mut(..values.len()) {
            begin.copy_from_slice(values);
            bytes[values.len()..].fill(0);
        }
        values.len()
    })?;
    if given > room {
        bail!("{given} bytes for {room}");
    }
    Ok(())
}

/// Have two tensors the same bits?
pub(crate) fn same_bits(one: &Tensor, other: &Tensor) -> Result<bool> {
    if Form::of(one) != Form::of(other) {
        return Ok(false);
    }
    with_bytes(one, |one| with_bytes(other, |other| one == other))?
}
