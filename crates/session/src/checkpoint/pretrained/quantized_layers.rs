//! The quantized layers of a model's folder among its tensors.
//!
//! Laws: `config.json` says which dialect it is and which encodings there are; shapes and dtypes then say which of
//! these a layer has. A layer without its scale, a scale without its layer, and tensors of another dialect are refused
//! when the folder is opened: what is not understood is never a weight.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype;
use warpweft_base::errors::shown;
use warpweft_format::Shape;

use super::{PIECE, PretrainedFiles, Tensor};
use crate::checkpoint::CheckpointError;
use crate::checkpoint::engines::dialect::{Dialect, Holds, StoredTensor};
use crate::checkpoint::engines::encoding::Encoding;
use crate::checkpoint::engines::quantized_layer::Decoding;
use crate::checkpoint::engines::read_config::Quantization;

/// What makes values of the codes of a layer.
#[derive(Debug)]
pub(super) struct QuantizedLayer {
    decoding: Decoding,
    /// Scales of blocks or rows, or of the tensor in FP8.
    scales: Place,
    /// The scale of the tensor in NVFP4.
    tensor_scale: Option<Place>,
    /// The tensors that it is stored as.
    stored: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
struct Place {
    file: usize,
    begin: u64,
}

/// Endings of the names of codes and scales in any dialect.
const ENDINGS: [&str; 5] =
    ["weight_packed", "weight_scale", "weight_global_scale", "weight_scale_2", "weight_scale_inv"];

/// Puts a layer in the place of the tensors that it is stored as.
pub(super) fn find(
    tensors: &mut BTreeMap<String, Tensor>,
    quantization: &Quantization,
    folder: &Path,
) -> Result<(), CheckpointError> {
    let wrong = |reason: String| CheckpointError::Engine { path: folder.to_owned(), reason };
    let codes: Vec<(String, &'static str)> = tensors
        .iter()
        .filter_map(|(name, tensor)| {
            let packed = name.strip_suffix(".weight_packed").map(|layer| (layer, "weight_packed"));
            let is_codes = matches!(tensor.dtype, Dtype::U8 | Dtype::F8_E4M3);
            let plain = name.strip_suffix(".weight").filter(|_| is_codes).map(|layer| (layer, "weight"));
            let (layer, suffix) = packed.or(plain)?;
            Some((layer.to_owned(), suffix))
        })
        .collect();
    for (name, suffix) in codes {
        let layer = layer(tensors, quantization, &name, suffix).map_err(&wrong)?;
        let mut codes = None;
        for stored in &layer.stored {
            let taken = tensors.remove(stored);
            codes = codes.or(taken);
        }
        let Some(Tensor { file, begin, .. }) = codes else { continue };
        let Shape { rows, cols } = layer.decoding.shape;
        let weight =
            Tensor { file, begin, dtype: Dtype::BF16, shape: vec![rows, cols], layer: Some(Box::new(layer)) };
        let weight_name = format!("{name}.weight");
        if tensors.insert(weight_name.clone(), weight).is_some() {
            let said =
                format!("layer `{}` is there both quantized and in plain numbers; keep one", shown(&name));
            return Err(wrong(said));
        }
    }
    let orphan = tensors.iter().find(|(name, tensor)| {
        let ending = name.rsplit('.').next().unwrap_or_default();
        tensor.layer.is_none() && ENDINGS.contains(&ending)
    });
    match orphan {
        None => Ok(()),
        Some((name, tensor)) => Err(wrong(format!(
            "`{}` ({} {:?}) belongs to no layer that is stored as `{}` has it; the folder mixes dialects, or is damaged",
            shown(name),
            tensor.dtype,
            tensor.shape,
            quantization.dialect
        ))),
    }
}

/// The layer whose codes are the tensor with this ending.
fn layer(
    tensors: &BTreeMap<String, Tensor>,
    quantization: &Quantization,
    name: &str,
    suffix: &str,
) -> Result<QuantizedLayer, String> {
    let Quantization { dialect, encodings } = quantization;
    let found = tensors.get(&format!("{name}.{suffix}")).ok_or("a tensor went away")?;
    let mut missing = Vec::new();
    for encoding in encodings {
        let Some(shape) = shape_of(*encoding, found) else { continue };
        let Some(stored) = dialect.tensors(*encoding, shape) else { continue };
        if stored[0].suffix != suffix || stored[0].dtype != found.dtype {
            continue;
        }
        match fitting(tensors, name, &stored, *encoding) {
            Ok(parts) => return Ok(assembled(*dialect, *encoding, shape, name, &stored, &parts)),
            Err(what) => missing.push(what),
        }
    }
    let kinds: Vec<String> = encodings.iter().map(|encoding| format!("{encoding:?}")).collect();
    let why = match missing.is_empty() {
        true => format!("{} {:?} is no tensor of {}", found.dtype, found.shape, kinds.join(" or ")),
        false => missing.join("; "),
    };
    Err(format!("layer `{}` is not stored as `{dialect}` has it: {why}; fetch the model again", shown(name)))
}

/// The shape of the weight whose codes these are.
fn shape_of(encoding: Encoding, codes: &Tensor) -> Option<Shape> {
    match codes.shape[..] {
        [rows, cols] if encoding == Encoding::Nvfp4 => Some(Shape { rows, cols: cols.checked_mul(2)? }),
        [rows, cols] => Some(Shape { rows, cols }),
        _ => None,
    }
    .filter(|shape| shape.rows > 0 && shape.cols > 0)
}

/// The tensors of a layer, if all are there as they should be.
fn fitting<'a>(
    tensors: &'a BTreeMap<String, Tensor>,
    layer: &str,
    stored: &[StoredTensor],
    encoding: Encoding,
) -> Result<Vec<&'a Tensor>, String> {
    let fit = |expected: &StoredTensor| {
        let StoredTensor { suffix, dtype, shape, holds } = expected;
        let found =
            tensors.get(&format!("{layer}.{suffix}")).ok_or_else(|| format!("it has no `{suffix}`"))?;
        // FP8 scales are in the dtype of the weights that they were computed of; one number may have no dimension.
        let is_fp8_scale = *holds != Holds::Codes && !matches!(encoding, Encoding::Nvfp4 | Encoding::Mxfp8);
        let dtypes: &[Dtype] = if is_fp8_scale { &[Dtype::F32, Dtype::BF16, Dtype::F16] } else { &[*dtype] };
        let one = |shape: &[usize]| shape.iter().product::<usize>() == 1 && shape.len() <= 1;
        let is_shape = found.shape == *shape || (*holds == Holds::TensorScale && one(&found.shape));
        match dtypes.contains(&found.dtype) && is_shape {
            true => Ok(found),
            false => Err(format!(
                "its `{suffix}` is {} {:?}, and {dtype} {shape:?} is needed for {encoding:?}",
                found.dtype, found.shape
            )),
        }
    };
    stored.iter().map(fit).collect()
}

fn assembled(
    dialect: Dialect,
    encoding: Encoding,
    shape: Shape,
    layer: &str,
    stored: &[StoredTensor],
    parts: &[&Tensor],
) -> QuantizedLayer {
    let place = |tensor: &Tensor| Place { file: tensor.file, begin: tensor.begin };
    let scales = parts.get(1).copied().unwrap_or(parts[0]);
    let tensor_scale = parts.get(2).copied();
    let is_scalar = tensor_scale.is_some_and(|scale| scale.shape.is_empty());
    let decoding = Decoding { dialect, encoding, shape, scale_dtype: scales.dtype, is_scalar };
    let stored = stored.iter().map(|tensor| format!("{layer}.{}", tensor.suffix)).collect();
    QuantizedLayer { decoding, scales: place(scales), tensor_scale: tensor_scale.map(place), stored }
}

impl PretrainedFiles {
    /// Fills `values` with whole rows of a quantized layer.
    pub(super) fn dequantize(
        &self,
        tensor: &str,
        codes: &Tensor,
        layer: &QuantizedLayer,
        first_row: usize,
        values: &mut [f32],
    ) -> Result<(), CheckpointError> {
        let QuantizedLayer { decoding, scales, .. } = layer;
        let wrong = |what: String| {
            let reason =
                format!("`{}`: {what}, so its values are lost; fetch the model again", shown(tensor));
            CheckpointError::Engine { path: self.path(codes), reason }
        };
        let scale = self.scale_of(tensor, codes, layer)?.unwrap_or(1.0);
        let cols = decoding.shape.cols;
        let rows_at_once = (PIECE / cols).max(1);
        let (mut row, mut code_bytes, mut scale_bytes) = (first_row, Vec::new(), Vec::new());
        for piece in values.chunks_mut(rows_at_once * cols) {
            let rows = piece.len() / cols;
            code_bytes.resize(rows * decoding.code_bytes(), 0);
            let place = Place { file: codes.file, begin: codes.begin };
            self.read_at(place, row * decoding.code_bytes(), &mut code_bytes)?;
            let needed = decoding.scale_bytes(row, rows);
            scale_bytes.resize(needed.len(), 0);
            self.read_at(*scales, needed.start, &mut scale_bytes)?;
            decoding.values(row, &code_bytes, &scale_bytes, scale, piece).map_err(wrong)?;
            row += rows;
        }
        Ok(())
    }

    /// How the quantized layers are stored, by the names of their weights.
    pub(in crate::checkpoint) fn decodings(&self) -> impl Iterator<Item = (&str, &Decoding)> {
        let tensors = self.opened.tensors.iter();
        tensors.filter_map(|(name, tensor)| Some((name.as_str(), &tensor.layer.as_ref()?.decoding)))
    }

    /// The scale of the tensor of a quantized layer, as it is stored; `None` where blocks or rows have scales alone.
    pub(in crate::checkpoint) fn tensor_scale(&self, weight: &str) -> Result<Option<f32>, CheckpointError> {
        let found = self.find(weight)?;
        let Some(layer) = &found.layer else { return Ok(None) };
        self.scale_of(weight, found, layer)
    }

    fn scale_of(
        &self,
        tensor: &str,
        codes: &Tensor,
        layer: &QuantizedLayer,
    ) -> Result<Option<f32>, CheckpointError> {
        let QuantizedLayer { decoding, scales, tensor_scale, .. } = layer;
        let scale = match (tensor_scale, decoding.encoding) {
            (Some(place), _) => {
                let mut number = [0; size_of::<f32>()];
                self.read_at(*place, 0, &mut number)?;
                f32::from_le_bytes(number)
            }
            (None, Encoding::Fp8Tensor) => {
                let mut number = vec![0; decoding.scale_bytes(0, 1).len()];
                self.read_at(*scales, 0, &mut number)?;
                decoding.numbers(&number).first().copied().unwrap_or(f32::NAN)
            }
            (None, _) => return Ok(None),
        };
        let is_zero = scale == 0.0 && decoding.dialect == Dialect::ModelOpt;
        if scale.is_finite() && (scale > 0.0 || is_zero) {
            return Ok(Some(scale));
        }
        let said = shown(tensor);
        let reason = format!(
            "`{said}`: its scale of the tensor is {scale}, so its values are lost; fetch the model again"
        );
        Err(CheckpointError::Engine { path: self.path(codes), reason })
    }

    fn read_at(&self, place: Place, at: usize, bytes: &mut [u8]) -> Result<(), CheckpointError> {
        self.opened.files[place.file].bytes(place.begin + at as u64, bytes)
    }

    /// Has some file a tensor of this name, as a whole or as a part of a quantized layer?
    pub(super) fn has(&self, tensor: &str) -> bool {
        let layer = tensor.rsplit_once('.').map(|(layer, _)| format!("{layer}.weight"));
        let layer = layer.and_then(|name| self.opened.tensors.get(&name)?.layer.as_deref());
        self.opened.tensors.contains_key(tensor)
            || layer.is_some_and(|layer| layer.stored.iter().any(|stored| stored == tensor))
    }
}
