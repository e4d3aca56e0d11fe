//! `warpweft quantize`: a checkpoint into a format.
//!
//! Order of work: read the header, decide for every tensor, lay out the output, then take the tensors one by
//! one. Everything that names and shapes can say is said before the output exists.

use std::borrow::Cow;
use std::path::Path;
use std::time::Instant;

use super::checkpoint::{Input, Output, TensorEntry};
use super::manifest::{KEY, Manifest, Part};
use super::options::QuantizeOptions;
use super::plan::{Fate, Plan, check_patterns};
use super::report::{Converted, Lost, Report, relative_error};
use super::source::Source;
use super::{Progress, ToolError};
use crate::format::{Format, Orientation, Quantized, Shape};

/// Quantizes the matrices of F32, BF16 and F16 in the checkpoint `input`, in both orientations, and writes
/// them to the checkpoint `output`; all other tensors are copied.
///
/// Tensor `X` of shape `[M, K]` becomes `X.rowwise_data`, `X.rowwise_scale`, `X.columnwise_data` and
/// `X.columnwise_scale`, with the dtypes and padded shapes of [`Format::planes`], and `X.amax`, F32 `[1]`. Where
/// one decode scale serves the whole tensor, both scales hold it, as F32 `[1]`. The metadata keeps what it had
/// and gains `warpweft_quantized`, a JSON text with version, format and the original dtypes and shapes.
///
/// Of a checkpoint that a session saved ([`FileStore`](crate::session::FileStore)) only the masters are taken, under
/// the names of their weights, and compared with their digests before anything is written. Moments, planes and carried
/// buffers are left out, and so is what would make the output look like a checkpoint to resume from. A master of one
/// row or one column is copied, as a tensor of one dimension.
///
/// Memory: the header, and at most 12 bytes per element of the largest matrix.
///
/// # Errors
/// Any [`ToolError`]; `output` is as it was then.
pub fn quantize_checkpoint(
    input: &Path,
    output: &Path,
    options: &QuantizeOptions,
    progress: &mut dyn Progress,
) -> Result<Report, ToolError> {
    let begin = Instant::now();
    options.check()?;
    let (header, mut data) = Input::open(input)?;
    if let Some(Manifest { format, .. }) = Manifest::of(&header, input)? {
        return Err(ToolError::AlreadyQuantized { path: input.to_owned(), format });
    }
    Output::check(output, options.replace, input)?;
    let source = Source::of(&header, input)?;
    check_patterns(&source.tensors, input, &options.only)?;

    let plan = Plan::of(&source.tensors, options)?;
    let to_take: u64 = source.tensors.iter().map(TensorEntry::bytes).sum();
    progress.start(source.compared_bytes() + to_take);
    source.compare(&mut data, progress)?;
    let Source { tensors, mut metadata, left_out, .. } = source;
    metadata.insert(KEY.to_owned(), plan.manifest.to_text(output)?);
    let layout = plan.outline.lay_out(&metadata, output)?;
    let mut report = Report::new(data.file_bytes(), layout.file_bytes);
    report.refused = plan.refused;
    report.passed_over = plan.passed_over;
    report.left_out = left_out;

    let mut target = Output::create(output, options.replace, layout)?;
    let mut values = Vec::new();
    for (entry, fate) in tensors.iter().zip(plan.fates) {
        progress.tensor(&entry.name);
        let (shape, parts) = match fate {
            Fate::Quantize(shape, parts) => (shape, parts),
            Fate::Copy(id) => {
                data.pieces(entry, progress, |piece| target.append(id, piece))?;
                report.count_copy(entry.bytes());
                continue;
            }
        };
        let begin = Instant::now();
        let unfit = |source| ToolError::Values { tensor: entry.name.clone(), source };
        data.values(entry, progress, &mut values)?;
        check_finite(entry, options, shape, &values)?;
        let quantized = options.quantize(shape, &values).map_err(unfit)?;
        let mut bytes_after = 0;
        for (part, id) in Part::ALL.into_iter().zip(parts) {
            let bytes = bytes_of(part, &quantized);
            target.append(id, &bytes)?;
            bytes_after += bytes.len() as u64;
        }
        let time = begin.elapsed();
        let back = quantized.dequantize(Orientation::Rowwise).map_err(unfit)?;
        report.lost.extend(lost(entry, &quantized, &values, &back));
        report.tensors.push(Converted {
            name: entry.name.clone(),
            shape,
            bytes_before: entry.bytes(),
            bytes_after,
            relative_error: Some(relative_error(&values, &back)),
            time,
        });
    }
    progress.finish();
    target.commit()?;
    report.elapsed = begin.elapsed();
    Ok(report)
}

/// Refuses a value that is no number, or infinite, or infinite once it is rounded: of its block or tensor
/// nothing would come back.
fn check_finite(
    entry: &TensorEntry,
    options: &QuantizeOptions,
    shape: Shape,
    values: &[f32],
) -> Result<(), ToolError> {
    let QuantizeOptions { format, via, .. } = *options;
    let rounded = |value: f32| via.round(format, value);
    let Some(at) = values.iter().position(|value| !rounded(*value).is_finite()) else { return Ok(()) };
    let (tensor, row, column, value) = (entry.name.clone(), at / shape.cols, at % shape.cols, values[at]);
    if value.is_finite() {
        let back = rounded(value);
        return Err(ToolError::TooLarge { tensor, row, column, value, back, format });
    }
    Err(ToolError::NotFinite { tensor, row, column, value })
}

/// The first finite value that comes back as another: next to those near the largest of f32, in some formats.
fn lost(entry: &TensorEntry, quantized: &Quantized, values: &[f32], rowwise: &[f32]) -> Option<Lost> {
    let at = rowwise.iter().position(|value| !value.is_finite())?;
    let (row, column) = (at / quantized.shape.cols, at % quantized.shape.cols);
    Some(Lost { name: entry.name.clone(), row, column, value: values[at], back: rowwise[at] })
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
