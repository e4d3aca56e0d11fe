//! A model converted, tensor by tensor.
//!
//! Law: in memory are rows of one weight at a time, at most [`MOST_ELEMENTS`] elements or 128 rows, and a scale group
//! where all of it is as small; never a file. A value that does not come back is refused with its place.

use std::cmp::Ordering::{Equal, Less};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, sync_channel};

use half::bf16;
use safetensors::Dtype;
use warpweft_base::errors::shown;
use warpweft_format::{Format, Shape, tensor_amax};

use super::EngineOptions;
use super::candidates::Source;
use super::dialect::Holds;
use super::encode::{EncodedRows, ROWS_OF_BLOCKS};
use super::encoding::Encoding;
use super::folder::ModelFolder;
use super::plan::{Layer, MOST_ELEMENTS, Place, Unit, reads};
use super::report::{ConvertedLayer, Deviation, EngineReport, ScaleGroup};
use super::weights::PlainWeights;
use crate::checkpoint::CheckpointError;

/// Bytes that are copied at once.
const PIECE: usize = 4 << 20;

/// Rows at the beginning of what is converted at once, by which the error of a large weight is measured.
const MEASURED_ROWS: usize = ROWS_OF_BLOCKS;

/// Pieces that are read before they are requested.
const READ_AHEAD: usize = 2;

/// Elements of a weight whose error is measured as a whole.
const MEASURED_WHOLE: usize = 1 << 20;

/// Gets the tensor and the bytes that were read of it; it may end the work.
pub type Watch<'w> = dyn FnMut(&str, u64) -> ControlFlow<()> + 'w;

/// A conversion on its way.
pub(super) struct Conversion<'a> {
    pub(super) weights: &'a dyn PlainWeights,
    pub(super) options: &'a EngineOptions,
    pub(super) folder: &'a mut ModelFolder,
    pub(super) report: &'a mut EngineReport,
    pub(super) watch: &'a mut Watch<'a>,
}

/// Where the scale of a tensor comes from.
#[derive(Clone, Copy)]
enum Scaled {
    /// From the largest magnitude of all layers that share it.
    ByAmax(f32),
    /// It is one over the factor that delayed scaling multiplied by.
    Delayed(f32),
}

/// Rows that were read ahead, in the order in which they are requested.
type Ahead = Receiver<Result<Vec<f32>, CheckpointError>>;

impl Conversion<'_> {
    /// Converts all of them, while another thread reads ahead.
    pub(super) fn convert(&mut self, units: &[Unit]) -> Result<(), CheckpointError> {
        let weights = self.weights;
        std::thread::scope(|scope| {
            let (read, ahead) = sync_channel(READ_AHEAD);
            scope.spawn(move || {
                for (source, rows) in units.iter().flat_map(reading) {
                    let mut values = Vec::new();
                    let values = read_rows(weights, source, rows, &mut values).map(|()| values);
                    let failed = values.is_err();
                    // Nobody takes it where the conversion ended early.
                    if read.send(values).is_err() || failed {
                        return;
                    }
                }
            });
            // Taken along, so that the reader ends when the conversion does.
            let ahead: Ahead = ahead;
            units.iter().try_for_each(|unit| match unit {
                Unit::Group(layers) => self.group(layers, &ahead),
                Unit::Copy { name, source, dtype, place } => self.copy(name, source, *dtype, *place),
            })
        })
    }

    /// Layers with one scale.
    fn group(&mut self, layers: &[Layer], ahead: &Ahead) -> Result<(), CheckpointError> {
        let needs_amax = layers.iter().any(|layer| layer.format.needs_tensor_amax());
        if !needs_amax {
            return layers.iter().try_for_each(|layer| self.layer(layer, Scaled::ByAmax(0.0), None, ahead));
        }
        let fits = reads(layers) == 1;
        let mut kept: Vec<Option<Vec<f32>>> = Vec::new();
        let mut amaxes = Vec::new();
        for layer in layers {
            let (mut amax, mut values) = (0.0_f32, Vec::new());
            for rows in chunks(layer.source.shape) {
                values = self.taken(layer, rows, ahead)?;
                let shape = Shape::new(values.len() / layer.source.shape.cols, layer.source.shape.cols);
                let found = tensor_amax(layer.format, self.options.via, shape, &values);
                amax = amax.max(found.map_err(|error| unfit(layer, &error.to_string()))?);
            }
            amaxes.push(amax);
            kept.push(fits.then_some(values));
        }
        let amax = amaxes.iter().copied().fold(0.0, f32::max);
        if layers.len() > 1 {
            let smallest = amaxes.iter().copied().fold(f32::INFINITY, f32::min);
            let layers = layers.iter().map(|layer| layer.name.clone()).collect();
            self.report
                .groups
                .push(ScaleGroup { layers, ratio: if amax == smallest { 1.0 } else { amax / smallest } });
        }
        let scaled = self.delayed(layers)?.map_or(Scaled::ByAmax(amax), Scaled::Delayed);
        layers.iter().zip(kept).try_for_each(|(layer, kept)| self.layer(layer, scaled, kept, ahead))
    }

    /// The factor of delayed scaling that all of these layers were trained with.
    fn delayed(&self, layers: &[Layer]) -> Result<Option<f32>, CheckpointError> {
        let mut common = None;
        for Layer { source, format, .. } in layers {
            let factor = match format {
                Format::Fp8Tensor(_) => self.weights.delayed_factor(&source.tensor)?,
                _ => None,
            };
            let factor = factor.filter(|factor| factor.is_normal() && *factor > 0.0);
            match (factor, common) {
                (Some(factor), None) => common = Some(factor),
                (Some(factor), Some(other)) if factor == other => {}
                _ => return Ok(None),
            }
        }
        Ok(common)
    }

    /// One layer. Its values may be `kept`.
    fn layer(
        &mut self,
        layer: &Layer,
        scaled: Scaled,
        mut kept: Option<Vec<f32>>,
        ahead: &Ahead,
    ) -> Result<(), CheckpointError> {
        let Layer { name, source: Source { shape, .. }, format, stored, input_amax } = layer;
        let (mut deviation, mut tensor_scale) = (Deviation::default(), 1.0);
        let is_small = shape.elements() <= MEASURED_WHOLE;
        for rows in chunks(*shape) {
            let values = match kept.take() {
                Some(values) => values,
                None => self.taken(layer, rows, ahead)?,
            };
            let chunk = Shape::new(values.len() / shape.cols, shape.cols);
            let encoded = match scaled {
                Scaled::ByAmax(amax) => {
                    EncodedRows::quantize(*format, self.options.via, chunk, &values, amax)
                }
                Scaled::Delayed(factor) => {
                    EncodedRows::delayed(*format, self.options.via, chunk, &values, factor)
                }
            };
            let encoded = encoded.map_err(|error| unfit(layer, &error.to_string()))?;
            for (tensor, place) in stored {
                match tensor.holds {
                    Holds::Codes => self.folder.append(*place, encoded.codes())?,
                    Holds::Scales => self.folder.append(*place, &encoded.scales())?,
                    Holds::TensorScale | Holds::InputScale => {}
                }
            }
            tensor_scale = encoded.tensor_scale;
            let measured = if is_small { chunk.rows } else { MEASURED_ROWS.min(chunk.rows) };
            let back = encoded.first_values(measured).map_err(|error| unfit(layer, &error.to_string()))?;
            deviation.add(&values[..back.len()], &back);
        }
        for (tensor, place) in stored {
            let dialect = self.options.dialect;
            let scale = match (tensor.holds, Encoding::of(*format)) {
                (Holds::Codes | Holds::Scales, _) => continue,
                (Holds::TensorScale, Some(Encoding::Nvfp4)) => dialect.nvfp4_scale(tensor_scale),
                (Holds::TensorScale, _) => tensor_scale,
                (Holds::InputScale, _) => dialect.nvfp4_scale(*input_amax),
            };
            self.folder.append(*place, &scale.to_le_bytes())?;
        }
        if format.needs_tensor_amax() {
            let trained = self.weights.trained_scale(&layer.source.tensor, *format)?;
            if trained.is_some_and(|trained| trained.to_bits() != tensor_scale.to_bits()) {
                self.report.rescaled.push(name.clone());
            }
        }
        let bytes_after = stored.iter().map(|(tensor, _)| tensor.bytes()).sum();
        let relative_error = deviation.relative();
        let (name, shape, format) = (name.clone(), *shape, *format);
        self.report.layers.push(ConvertedLayer { name, shape, format, bytes_after, relative_error });
        Ok(())
    }

    /// The next rows of a layer, which must be finite.
    fn taken(
        &mut self,
        layer: &Layer,
        rows: (usize, usize),
        ahead: &Ahead,
    ) -> Result<Vec<f32>, CheckpointError> {
        let Source { tensor, shape, width, .. } = &layer.source;
        // A reader ends early only after an error, which it sent.
        let values = ahead.recv().unwrap_or(Err(CheckpointError::Stopped))?;
        self.told(tensor, (values.len() * width) as u64)?;
        let largest = self.options.via.largest(layer.format).min(LARGEST);
        // What is no number is not below it either.
        let is_wrong = |value: &f32| !matches!(value.abs().partial_cmp(&largest), Some(Less | Equal));
        // Whole pieces first, which the compiler does many at once.
        let mut pieces = values.chunks(1024);
        let piece = pieces.position(|piece| piece.iter().fold(false, |any, value| any | is_wrong(value)));
        let Some(begin) = piece.map(|piece| piece * 1024) else { return Ok(values) };
        let at = begin + values[begin..].iter().position(is_wrong).unwrap_or(0);
        let (row, column) = (rows.0 + at / shape.cols, at % shape.cols);
        let value = values[at];
        Err(unfit(
            layer,
            &format!("it holds {value:?} in row {row}, column {column}, which does not come back"),
        ))
    }

    fn copy(
        &mut self,
        name: &str,
        source: &Source,
        dtype: Dtype,
        place: Place,
    ) -> Result<(), CheckpointError> {
        if source.transpose {
            let mut values = Vec::new();
            for rows in chunks(source.shape) {
                read_rows(self.weights, source, rows, &mut values)?;
                let bytes = in_dtype(&values, dtype);
                self.folder.append(place, &bytes)?;
                self.told(name, bytes.len() as u64)?;
            }
            return Ok(());
        }
        let Source { tensor, first_row, shape, width, .. } = source;
        let (mut at, mut left) = (first_row * shape.cols * width, shape.elements() * width);
        let mut piece = vec![0; PIECE.min(left)];
        while left > 0 {
            let bytes = &mut piece[..PIECE.min(left)];
            self.weights.bytes(tensor, shape.cols, at, bytes)?;
            self.folder.append(place, bytes)?;
            (at, left) = (at + bytes.len(), left - bytes.len());
            let read = bytes.len() as u64;
            self.told(name, read)?;
        }
        Ok(())
    }

    fn told(&mut self, tensor: &str, bytes: u64) -> Result<(), CheckpointError> {
        match (self.watch)(tensor, bytes) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(CheckpointError::Stopped),
        }
    }
}

/// The largest magnitude of which every scale and every product is finite.
const LARGEST: f32 = f32::MAX / 1024.0;

/// What is read for a unit, in its order.
fn reading(unit: &Unit) -> Vec<(&Source, (usize, usize))> {
    let Unit::Group(layers) = unit else { return Vec::new() };
    let all = || layers.iter().flat_map(|layer| chunks(layer.source.shape).map(|rows| (&layer.source, rows)));
    (0..reads(layers)).flat_map(|_| all()).collect()
}

/// Rows of the output's matrix, so many from the first on.
fn read_rows(
    weights: &dyn PlainWeights,
    source: &Source,
    (first, count): (usize, usize),
    values: &mut Vec<f32>,
) -> Result<(), CheckpointError> {
    let Source { tensor, first_row, shape, transpose, .. } = source;
    values.resize(count * shape.cols, 0.0);
    if !transpose {
        return weights.rows(tensor, first_row + first, shape.cols, values);
    }
    // The input has as many rows as the output has columns, and as many columns as it has rows.
    let mut line = vec![0.0; shape.rows];
    for row in 0..shape.cols {
        weights.rows(tensor, first_row + row, shape.rows, &mut line)?;
        for (at, value) in line[first..first + count].iter().enumerate() {
            values[at * shape.cols + row] = *value;
        }
    }
    Ok(())
}

/// First rows and numbers of rows, each of a multiple of every block but the last.
fn chunks(shape: Shape) -> impl Iterator<Item = (usize, usize)> {
    let most = (MOST_ELEMENTS / shape.cols.max(1)).next_multiple_of(ROWS_OF_BLOCKS).max(ROWS_OF_BLOCKS);
    (0..shape.rows).step_by(most).map(move |first| (first, most.min(shape.rows - first)))
}

/// Values that were read of a dtype, in it again.
fn in_dtype(values: &[f32], dtype: Dtype) -> Vec<u8> {
    match dtype {
        Dtype::BF16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        Dtype::F16 => values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect(),
        _ => bytemuck::cast_slice(values).to_vec(),
    }
}

fn unfit(layer: &Layer, what: &str) -> CheckpointError {
    let Layer { name, format, .. } = layer;
    let reason =
        format!("layer `{}` cannot become {format}: {what}; keep it by a rule, or mend it", shown(name));
    CheckpointError::Unfit { reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_every_row_once_and_end_between_blocks() {
        for shape in
            [Shape::new(1, 16), Shape::new(129, 1 << 20), Shape::new(5000, 4096), Shape::new(128, 1 << 24)]
        {
            let mut next = 0;
            for (first, count) in chunks(shape) {
                assert_eq!(first, next);
                assert!(first.is_multiple_of(ROWS_OF_BLOCKS));
                next = first + count;
            }
            assert_eq!(next, shape.rows);
        }
    }
}
