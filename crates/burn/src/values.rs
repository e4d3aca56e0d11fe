//! Copies of values between burn's tensors and the memory that a session lends.
//!
//! Law: bytes are the tensor's elements, row-major, little endian, in its own dtype. What the session has no type for
//! travels as bytes.

use burn::tensor::{BoolStore, DType, TensorData, bf16, f16};
use warpweft::bytemuck::{self, Pod};
use warpweft::format::ElementType;
use warpweft_blocks::Flow;

/// Shape and dtype of what goes into a block or comes out of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    pub(crate) dims: Vec<usize>,
    pub(crate) dtype: DType,
}

impl Form {
    pub(crate) fn of(data: &TensorData) -> Self {
        Self { dims: data.shape().to_vec(), dtype: data.dtype() }
    }

    pub(crate) fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.elements() * self.dtype.size()
    }

    /// As the session sees it; `None` for a dtype that tensors here do not have.
    pub(crate) fn flow(&self) -> Option<Flow> {
        let elements = self.elements();
        let (element, each) = match self.dtype {
            DType::F32 => (ElementType::F32, 1),
            DType::BF16 => (ElementType::Bf16, 1),
            DType::U32 => (ElementType::U32, 1),
            DType::U8 | DType::I8 | DType::Bool(BoolStore::Native | BoolStore::U8) => (ElementType::U8, 1),
            DType::F16 | DType::I16 | DType::U16 => (ElementType::U8, 2),
            DType::I32 => (ElementType::U8, 4),
            DType::F64 | DType::I64 | DType::U64 => (ElementType::U8, 8),
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

    /// Zeros of this form.
    pub(crate) fn zeros(&self) -> Result<TensorData, String> {
        data(&vec![0; self.bytes()], self)
    }
}

/// The values of a tensor of `form` from as many bytes as it needs of the first of `bytes`.
pub(crate) fn data(bytes: &[u8], form: &Form) -> Result<TensorData, String> {
    fn of<T: Pod + burn::tensor::Element>(bytes: &[u8], form: &Form) -> TensorData {
        TensorData::new(bytemuck::allocation::pod_collect_to_vec::<u8, T>(bytes), form.dims.clone())
    }
    let length = form.bytes();
    let Some(bytes) = bytes.get(..length) else {
        return Err(format!("{} bytes for a tensor of {length}", bytes.len()));
    };
    Ok(match form.dtype {
        DType::F32 => of::<f32>(bytes, form),
        DType::F64 => of::<f64>(bytes, form),
        DType::BF16 => of::<bf16>(bytes, form),
        DType::F16 => of::<f16>(bytes, form),
        DType::U8 => of::<u8>(bytes, form),
        DType::U16 => of::<u16>(bytes, form),
        DType::U32 => of::<u32>(bytes, form),
        DType::U64 => of::<u64>(bytes, form),
        DType::I8 => of::<i8>(bytes, form),
        DType::I16 => of::<i16>(bytes, form),
        DType::I32 => of::<i32>(bytes, form),
        DType::I64 => of::<i64>(bytes, form),
        DType::Bool(BoolStore::Native | BoolStore::U8) => {
            TensorData::from_bytes_vec(bytes.to_vec(), form.dims.clone(), form.dtype)
        }
        other => return Err(format!("tensors of dtype {other:?} do not go between blocks")),
    })
}

/// Overwrites `bytes` with those of values, which may be fewer; the rest become zeros.
pub(crate) fn store(data: &TensorData, bytes: &mut [u8]) -> Result<(), String> {
    let (values, room) = (data.as_bytes(), bytes.len());
    let Some(begin) = bytes.get_mut(..values.len()) else {
        return Err(format!("{} bytes for {room}", values.len()));
    };
    begin.copy_from_slice(values);
    bytes[values.len()..].fill(0);
    Ok(())
}

/// The values as f32: what they are, or copies.
pub(crate) fn in_f32(data: TensorData) -> Result<TensorData, String> {
    match data.dtype() {
        DType::F32 => Ok(data),
        _ => data.try_cast(DType::F32).map_err(|error| error.to_string()),
    }
}

/// Elements `begin` to `end`, row-major.
pub(crate) fn elements(data: &TensorData, (begin, end): (usize, usize)) -> Result<TensorData, String> {
    let form = Form { dims: vec![end - begin], dtype: data.dtype() };
    let each = form.dtype.size();
    let bytes = data.as_bytes().get(begin * each..end * each);
    self::data(bytes.ok_or_else(|| format!("no elements {begin} to {end}"))?, &form)
}

/// Begin to end of dimension 0.
pub(crate) fn narrowed(data: &TensorData, (begin, end): (usize, usize)) -> Result<TensorData, String> {
    let mut form = Form::of(data);
    let rows = form.dims.first_mut().ok_or("a tensor without dimensions")?;
    let each = data.as_bytes().len().checked_div(*rows).unwrap_or(0);
    *rows = end - begin;
    let bytes = data.as_bytes().get(begin * each..end * each);
    self::data(bytes.ok_or_else(|| format!("no rows {begin} to {end}"))?, &form)
}
