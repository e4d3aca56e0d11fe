//! What becomes of every tensor of a checkpoint, decided from names, dtypes and shapes alone.

use std::path::Path;

use super::ToolError;
use super::checkpoint::{Outline, TensorEntry, TensorId, float_bytes};
use super::manifest::{Manifest, Original, Part};
use super::options::QuantizeOptions;
use super::report::{PassedOver, Refused};
use crate::config::pattern_matches;
use crate::format::Shape;

/// What becomes of the tensors, and what the output is going to be.
pub(super) struct Plan {
    /// One per tensor of the source, in its order.
    pub(super) fates: Vec<Fate>,
    /// The matrices among them that are copied for their shape.
    pub(super) refused: Vec<Refused>,
    /// What patterns select that select no matrix.
    pub(super) passed_over: Vec<PassedOver>,
    pub(super) outline: Outline,
    pub(super) manifest: Manifest,
}

/// What becomes of one tensor.
pub(super) enum Fate {
    /// It is copied.
    Copy(TensorId),
    /// It is quantized, into the parts of [`Part::ALL`].
    Quantize(Shape, [TensorId; Part::ALL.len()]),
}

impl Plan {
    pub(super) fn of(tensors: &[TensorEntry], options: &QuantizeOptions) -> Result<Self, ToolError> {
        let mut plan = Self {
            fates: Vec::new(),
            refused: Vec::new(),
            passed_over: passed_over(tensors, &options.only),
            outline: Outline::default(),
            manifest: Manifest::new(options.format, options.via),
        };
        for entry in tensors {
            let shape = matrix(entry).filter(|_| is_selected(&options.only, &entry.name));
            let fate = match shape.map(|shape| (shape, options.format.check_shape(shape))) {
                None => plan.copy(entry),
                Some((shape, Ok(()))) => plan.quantize(entry, shape),
                Some((_, Err(source))) if options.strict => {
                    return Err(ToolError::Refused { tensor: entry.name.clone(), source });
                }
                Some((_, Err(reason))) => {
                    plan.refused.push(Refused { name: entry.name.clone(), reason });
                    plan.copy(entry)
                }
            };
            plan.fates.push(fate);
        }
        Ok(plan)
    }

    fn copy(&mut self, entry: &TensorEntry) -> Fate {
        Fate::Copy(self.outline.add(entry.name.clone(), entry.dtype, entry.shape.clone()))
    }

    fn quantize(&mut self, entry: &TensorEntry, shape: Shape) -> Fate {
        let original = Original { dtype: entry.dtype, shape: [shape.rows, shape.cols] };
        self.manifest.tensors.insert(entry.name.clone(), original);
        let parts = Part::ALL.map(|part| {
            let (dtype, stored) = part.stored(self.manifest.format, shape);
            self.outline.add(part.name(&entry.name), dtype, stored)
        });
        Fate::Quantize(shape, parts)
    }
}

/// The shape of a tensor that can be quantized: two dimensions of floats.
fn matrix(entry: &TensorEntry) -> Option<Shape> {
    match entry.shape[..] {
        [rows, cols] if float_bytes(entry.dtype).is_some() => Some(Shape::new(rows, cols)),
        _ => None,
    }
}

fn is_selected(only: &[String], name: &str) -> bool {
    only.is_empty() || only.iter().any(|pattern| pattern_matches(pattern, name))
}

/// What patterns select that select no matrix, each tensor once.
fn passed_over(tensors: &[TensorEntry], only: &[String]) -> Vec<PassedOver> {
    let selects_a_matrix = |pattern: &&String| {
        tensors.iter().any(|entry| matrix(entry).is_some() && pattern_matches(pattern, &entry.name))
    };
    let idle: Vec<&String> = only.iter().filter(|pattern| !selects_a_matrix(pattern)).collect();
    let is_idle = |entry: &&TensorEntry| idle.iter().any(|pattern| pattern_matches(pattern, &entry.name));
    let passed = |entry: &TensorEntry| PassedOver {
        name: entry.name.clone(),
        what: format!("{:?} of shape {:?}", entry.dtype, entry.shape),
    };
    tensors.iter().filter(is_idle).map(passed).collect()
}

/// Refuses a pattern that matches no tensor: it is misspelt.
pub(super) fn check_patterns(
    tensors: &[TensorEntry],
    input: &Path,
    only: &[String],
) -> Result<(), ToolError> {
    let idle = |pattern: &&String| !tensors.iter().any(|entry| pattern_matches(pattern, &entry.name));
    let Some(pattern) = only.iter().find(idle) else {
        return Ok(());
    };
    let example = tensors.iter().find(|entry| matrix(entry).is_some());
    Err(ToolError::NothingMatches {
        pattern: pattern.clone(),
        path: input.to_owned(),
        example: example.map(|entry| entry.name.clone()),
    })
}
