//! `warpweft quantize`: quantizes a checkpoint into a format.
//!
//! Order of work: read the header, decide for every tensor, lay out the output, then take the tensors one by
//! one. Everything that names and shapes can say is said before the output exists.

use std::borrow::Cow;
use std::path::Path;
use std::time::{Duration, Instant};

use warpweft_format::{Format, Orientation, Quantized, Shape};
use warpweft_session::checkpoint::manifest::{KEY, Manifest, Matrices, Part};
use warpweft_session::checkpoint::safetensors::{TensorEntry, TensorId};

use super::input::{Input, manifest_of};
use super::options::QuantizeOptions;
use super::output::Output;
use super::plan::{Fate, Plan, check_absent, check_patterns};
use super::report::{Converted, Deviation, Lost, Report};
use super::source::Source;
use super::{Progress, ToolError};

/// Quantizes the matrices of F32, BF16 and F16 in the checkpoint `input`, in both orientations, and writes
/// them to the checkpoint `output`; all other tensors are copied, and the report says why.
///
/// Tensor `X` of shape `[M, K]` becomes `X.rowwise_data`, `X.rowwise_scale`, `X.columnwise_data` and
/// `X.columnwise_scale`, with the dtypes and padded shapes of [`Format::planes`], and `X.amax`, F32 `[1]`. Where
/// one decode scale serves the whole tensor, both scales hold it, as F32 `[1]`. The metadata keeps what it had
/// and gains `warpweft_quantized`, a JSON text with version, format and the original dtypes and shapes.
///
/// A tensor of three dimensions `[N, M, K]`, such as the experts of a layer, is N matrices, each quantized by itself:
/// what `X` becomes has a first dimension N, so that the planes of a matrix follow those of the one before, and what
/// would be F32 `[1]` is F32 `[N]`.
///
/// Of a checkpoint that a session saved ([`FileStore`](warpweft_session::checkpoint::FileStore)) only the masters are
/// taken, under the names of their weights, and compared with their digests before anything is written. Moments,
/// planes and carried buffers are left out, and so is what would make the output look like a checkpoint to resume
/// from. A master of one row or one column is copied, as a tensor of one dimension.
///
/// Memory: the header, and at most 12 bytes per element of the largest matrix.
///
/// # Errors
/// Any [`ToolError`]; `output` is as it was then. So it is where nothing can be quantized, and where the input is
/// quantized already or holds no weights.
pub fn quantize_checkpoint(
    input: &Path,
    output: &Path,
    options: &QuantizeOptions,
    progress: &mut dyn Progress,
) -> Result<Report, ToolError> {
    let begin = Instant::now();
    options.check()?;
    let (header, mut data) = Input::open(input)?;
    if let Some(Manifest { format, .. }) = manifest_of(&header, input)? {
        return Err(ToolError::AlreadyQuantized { path: input.to_owned(), format });
    }
    Output::check(output, options.replace, input)?;
    let source = Source::of(&header, input)?;
    check_patterns(&source.tensors, input, options)?;
    check_absent(&source.absent, input, options)?;

    let plan = Plan::of(&source.tensors, input, options)?;
    let to_take: u64 = source.tensors.iter().map(TensorEntry::bytes).sum();
    progress.start(source.compared_bytes() + to_take);
    source.compare(&mut data, progress)?;
    let Source { tensors, mut metadata, left_out, absent, .. } = source;
    let text = serde_json::to_string(&plan.manifest);
    let text = text.map_err(|error| ToolError::file("write the metadata of", output)(error.into()))?;
    metadata.insert(KEY.to_owned(), text);
    let layout = Output::lay_out(&plan.outline, &metadata, output)?;
    let mut report = Report::new(data.file_bytes(), layout.file_bytes);
    report.copied = plan.copied;
    (report.left_out, report.absent) = (left_out, absent);

    let mut target = Output::create(output, options.replace, layout)?;
    for (entry, fate) in tensors.iter().zip(plan.fates) {
        progress.tensor(&entry.name);
        match fate {
            Fate::Quantize(matrices, parts) => {
                let tensor = Weight { entry, matrices, parts, options };
                let converted = tensor.convert(&mut data, &mut target, &mut report.lost, progress)?;
                report.tensors.push(converted);
            }
            Fate::Copy(id) => data.pieces(entry, progress, |piece| target.append(id, piece))?,
        }
    }
    progress.finish();
    target.commit()?;
    report.elapsed = begin.elapsed();
    Ok(report)
}

/// A tensor that is quantized, and its place in the output.
struct Weight<'a> {
    entry: &'a TensorEntry,
    matrices: Matrices,
    parts: [TensorId; Part::ALL.len()],
    options: &'a QuantizeOptions,
}

impl Weight<'_> {
    /// Reads its matrices, one at a time, and writes their parts.
    fn convert(
        &self,
        data: &mut Input,
        target: &mut Output,
        lost: &mut Vec<Lost>,
        progress: &mut dyn Progress,
    ) -> Result<Converted, ToolError> {
        let Self { entry, matrices, parts, options } = *self;
        let (shape, count) = (matrices.shape(), matrices.count());
        let (mut values, mut deviation) = (Vec::new(), Deviation::default());
        let (mut bytes_after, mut time) = (0, Duration::ZERO);
        for number in 0..count {
            let begin = Instant::now();
            let tensor = matrices.name(&entry.name, number);
            let unfit = |source| ToolError::Values { tensor: tensor.clone(), source };
            data.values(&entry.part(number, count), progress, &mut values)?;
            check_finite(&tensor, options, shape, &values)?;
            let quantized = options.quantize(shape, &values).map_err(unfit)?;
            for (part, id) in Part::ALL.into_iter().zip(parts) {
                let bytes = bytes_of(part, &quantized);
                target.append(id, &bytes)?;
                bytes_after += bytes.len() as u64;
            }
            time += begin.elapsed();
            let back = quantized.dequantize(Orientation::Rowwise).map_err(unfit)?;
            lost.extend(Lost::first(&tensor, shape.cols, Some(&values), &back));
            deviation.add(&values, &back);
        }
        Ok(Converted {
            name: entry.name.clone(),
            matrices: count,
            shape,
            bytes_before: entry.bytes(),
            bytes_after,
            relative_error: Some(deviation.relative()),
            time,
        })
    }
}

/// Refuses a value that is no number, or infinite, or infinite once it is rounded: of its block or tensor
/// nothing would come back.
fn check_finite(
    tensor: &str,
    options: &QuantizeOptions,
    shape: Shape,
    values: &[f32],
) -> Result<(), ToolError> {
    let QuantizeOptions { format, via, .. } = *options;
    let rounded = |value: f32| via.round(format, value);
    let Some(at) = values.iter().position(|value| !rounded(*value).is_finite()) else { return Ok(()) };
    let (tensor, row, column, value) = (tensor.to_owned(), at / shape.cols, at % shape.cols, values[at]);
    if value.is_finite() {
        let back = rounded(value);
        return Err(ToolError::TooLarge { tensor, row, column, value, back, format });
    }
    Err(ToolError::NotFinite { tensor, row, column, value })
}

/// A part of a weight that has both orientations.
fn bytes_of(part: Part, quantized: &Quantized) -> Cow<'_, [u8]> {
    let planes = |orientation| match orientation {
        Orientation::Rowwise => quantized.rowwise.as_ref(),
        Orientation::Columnwise => quantized.columnwise.as_ref(),
    };
    let plane = match part {
        Part::Amax => return Cow::Owned(quantized.amax.to_le_bytes().to_vec()),
        Part::Scale(_) if matches!(quantized.format, Format::Fp8Tensor(_)) => {
            return Cow::Owned(quantized.tensor_scale.to_le_bytes().to_vec());
        }
        Part::Scale(orientation) => planes(orientation).map(|planes| &planes.scale),
        Part::Data(orientation) => planes(orientation).map(|planes| &planes.data),
    };
    Cow::Borrowed(plane.map_or(&[], Vec::as_slice))
}
