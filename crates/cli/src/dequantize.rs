//! `warpweft quantize --dequantize`: converts a quantized checkpoint back to f32.
//!
//! The manifest of the file says which tensors there are; every part is checked against it before the output
//! exists.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use safetensors::Dtype;
use warpweft_base::errors::shown;
use warpweft_format::{Format, Orientation, Planes, dequantize};
use warpweft_session::checkpoint::manifest::{KEY, Manifest, Matrices, Part};
use warpweft_session::checkpoint::safetensors::{Header, Outline, TensorEntry, TensorId};

use super::input::{Input, manifest_of, reserve};
use super::output::Output;
use super::report::{Converted, Copied, CopyReason, Lost, Report};
use super::{Progress, ToolError};

/// Values written at once.
const PIECE: usize = 1 << 18;

/// Turns every quantized tensor of a checkpoint that [`quantize_checkpoint`](super::quantize_checkpoint) wrote
/// into F32 `[M, K]`, or `[N, M, K]` where it was a stack of matrices, under its old name, from its rowwise parts;
/// all other tensors are copied. `replace` allows that there is a file `output`.
///
/// The dtype is F32 whatever it was before, for codes times scales are f32 values. The columnwise parts may be
/// absent.
///
/// Memory: the header, and at most 6 bytes per element of the largest matrix.
///
/// # Errors
/// Any [`ToolError`]; `output` is as it was then.
pub fn dequantize_checkpoint(
    input: &Path,
    output: &Path,
    replace: bool,
    progress: &mut dyn Progress,
) -> Result<Report, ToolError> {
    let begin = Instant::now();
    let (header, mut data) = Input::open(input)?;
    let Some(manifest) = manifest_of(&header, input)? else {
        return Err(ToolError::NotQuantized { path: input.to_owned() });
    };
    if manifest.tensors.is_empty() {
        return Err(ToolError::NothingConverted { path: input.to_owned(), copies: Vec::new() });
    }
    Output::check(output, replace, input)?;

    let plan = Plan::of(&header, &manifest, input)?;
    let mut metadata = header.metadata().clone();
    metadata.remove(KEY);
    let layout = Output::lay_out(&plan.outline, &metadata, output)?;
    let mut report = Report::new(data.file_bytes(), layout.file_bytes);
    let mut target = Output::create(output, replace, layout)?;
    let copied = plan.copies.iter().map(|(entry, _)| entry.bytes());
    progress.start(copied.chain(plan.weights.iter().map(Weight::bytes_read)).sum());
    for (entry, id) in plan.copies {
        progress.tensor(&entry.name);
        data.pieces(entry, progress, |piece| target.append(id, piece))?;
        let (name, bytes, reason) = (entry.name.clone(), entry.bytes(), CopyReason::NotQuantized);
        report.copied.push(Copied { name, bytes, reason });
    }
    for weight in plan.weights {
        progress.tensor(weight.name);
        let begin = Instant::now();
        let mut bytes_after = 0;
        for number in 0..weight.matrices.count() {
            let values = weight.read(number, manifest.format, &mut data, progress)?;
            let name = weight.matrices.name(weight.name, number);
            report.lost.extend(Lost::first(&name, weight.matrices.shape().cols, None, &values));
            for values in values.chunks(PIECE) {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                target.append(weight.target, &bytes)?;
                bytes_after += bytes.len() as u64;
            }
        }
        report.tensors.push(Converted {
            name: weight.name.to_owned(),
            matrices: weight.matrices.count(),
            shape: weight.matrices.shape(),
            bytes_before: weight.bytes_before,
            bytes_after,
            relative_error: None,
            time: begin.elapsed(),
        });
    }
    progress.finish();
    target.commit()?;
    report.elapsed = begin.elapsed();
    Ok(report)
}

/// What becomes of the tensors, and what the output is going to be.
struct Plan<'a> {
    copies: Vec<(&'a TensorEntry, TensorId)>,
    weights: Vec<Weight<'a>>,
    outline: Outline,
}

/// A quantized tensor: its rowwise parts in the input, and its place in the output.
struct Weight<'a> {
    name: &'a str,
    matrices: Matrices,
    data: &'a TensorEntry,
    /// The scales of the blocks, of a format that has blocks.
    scale_plane: Option<&'a TensorEntry>,
    /// The part that is the tensor scale, of a format that has one.
    tensor_scale: Option<&'a TensorEntry>,
    /// Bytes of all its parts.
    bytes_before: u64,
    target: TensorId,
}

impl<'a> Plan<'a> {
    fn of(header: &'a Header, manifest: &'a Manifest, input: &'a Path) -> Result<Self, ToolError> {
        let named = header.tensors().iter().map(|entry| (entry.name.as_str(), entry));
        let mut parts = Parts { format: manifest.format, unused: named.collect(), input };
        let (mut weights, mut outline) = (Vec::new(), Outline::default());
        for (name, original) in &manifest.tensors {
            let shape = original.shape;
            manifest.format.check_shape(shape.shape()).map_err(|error| ToolError::Manifest {
                path: input.to_owned(),
                problem: format!("describes a tensor `{}` that cannot be: {error}", shown(name)),
            })?;
            let data = parts.need(name, shape, Part::Data(Orientation::Rowwise))?;
            let scale = parts.need(name, shape, Part::Scale(Orientation::Rowwise))?;
            let amax = parts.need(name, shape, Part::Amax)?;
            let columnwise = [
                parts.take(name, shape, Part::Data(Orientation::Columnwise))?,
                parts.take(name, shape, Part::Scale(Orientation::Columnwise))?,
            ];
            let all = [data, scale, amax].into_iter().chain(columnwise.into_iter().flatten());
            let bytes_before = all.map(TensorEntry::bytes).sum();
            let (scale_plane, tensor_scale) = match Part::tensor_scale(manifest.format) {
                Some(Part::Amax) => (Some(scale), Some(amax)),
                Some(_) => (None, Some(scale)),
                None => (Some(scale), None),
            };
            let target = outline.add(name.clone(), Dtype::F32, shape.dimensions());
            weights.push(Weight {
                name,
                matrices: shape,
                data,
                scale_plane,
                tensor_scale,
                bytes_before,
                target,
            });
        }
        // In the order of the input, so that it is read from front to back.
        weights.sort_by_key(|weight| weight.data.begin);
        let copied = header.tensors().iter().filter(|entry| parts.unused.contains_key(entry.name.as_str()));
        let mut copy = |entry: &'a TensorEntry| {
            (entry, outline.add(entry.name.clone(), entry.dtype, entry.shape.clone()))
        };
        let copies = copied.map(&mut copy).collect();
        Ok(Self { copies, weights, outline })
    }
}

/// The tensors of the input that are no part of a quantized tensor, as far as is known yet.
struct Parts<'a> {
    format: Format,
    unused: HashMap<&'a str, &'a TensorEntry>,
    input: &'a Path,
}

impl<'a> Parts<'a> {
    /// A part of a tensor; `None` if it is absent.
    fn take(
        &mut self,
        name: &str,
        shape: Matrices,
        part: Part,
    ) -> Result<Option<&'a TensorEntry>, ToolError> {
        let Some(entry) = self.unused.remove(part.name(name).as_str()) else {
            return Ok(None);
        };
        let (dtype, stored) = part.stored(self.format, shape);
        if (entry.dtype, &entry.shape) == (dtype, &stored) {
            return Ok(Some(entry));
        }
        let found = format!("is {} of shape {:?}", entry.dtype, entry.shape);
        Err(self.wrong(name, part, format!("{found}, and not {dtype} of shape {stored:?}")))
    }

    /// A part that must be there.
    fn need(&mut self, name: &str, shape: Matrices, part: Part) -> Result<&'a TensorEntry, ToolError> {
        self.take(name, shape, part)?.ok_or_else(|| self.wrong(name, part, "is missing".to_owned()))
    }

    fn wrong(&self, name: &str, part: Part, problem: String) -> ToolError {
        ToolError::Part { path: self.input.to_owned(), tensor: part.name(name), problem }
    }
}

impl Weight<'_> {
    /// Bytes of the parts that are read.
    fn bytes_read(&self) -> u64 {
        let scales = self.scale_plane.into_iter().chain(self.tensor_scale);
        self.data.bytes() + scales.map(TensorEntry::bytes).sum::<u64>()
    }

    /// The values of one of its matrices.
    fn read(
        &self,
        number: usize,
        format: Format,
        input: &mut Input,
        progress: &mut dyn Progress,
    ) -> Result<Vec<f32>, ToolError> {
        let (count, shape) = (self.matrices.count(), self.matrices.shape());
        let data = input.bytes(&self.data.part(number, count), progress)?;
        let scale = match self.scale_plane {
            Some(plane) => input.bytes(&plane.part(number, count), progress)?,
            None => Vec::new(),
        };
        let mut values = Vec::new();
        if let Some(entry) = self.tensor_scale {
            input.values(&entry.part(number, count), progress, &mut values)?;
        }
        let tensor_scale = values.first().copied().unwrap_or(1.0);
        values.clear();
        reserve(&mut values, self.name, shape.elements() as u64)?;
        values.resize(shape.elements(), 0.0);
        let planes = Planes { data: &data, scale: &scale };
        dequantize(format, Orientation::Rowwise, shape, planes, tensor_scale, &mut values)
            .map_err(|source| ToolError::Values { tensor: self.matrices.name(self.name, number), source })?;
        Ok(values)
    }
}
