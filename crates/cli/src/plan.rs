//! The plan of a conversion: the decision about every tensor, from names, dtypes and shapes alone.

use std::path::Path;

use warpweft_base::pattern::pattern_matches;
use warpweft_format::{Format, FormatError};
use warpweft_session::checkpoint::manifest::{Manifest, Matrices, Original, Part};
use warpweft_session::checkpoint::safetensors::floats::float_bytes;
use warpweft_session::checkpoint::safetensors::{Outline, TensorEntry, TensorId};

use super::ToolError;
use super::options::QuantizeOptions;
use super::report::{Copied, CopyReason};

/// What becomes of the tensors, and what the output is going to be.
pub(super) struct Plan {
    /// One per tensor of the source, in its order.
    pub(super) fates: Vec<Fate>,
    /// Those among them that are copied, and why.
    pub(super) copied: Vec<Copied>,
    pub(super) outline: Outline,
    pub(super) manifest: Manifest,
}

/// What becomes of one tensor.
pub(super) enum Fate {
    /// It is copied.
    Copy(TensorId),
    /// Each of its matrices is quantized, into the parts of [`Part::ALL`].
    Quantize(Matrices, [TensorId; Part::ALL.len()]),
}

impl Plan {
    /// # Errors
    /// [`ToolError::Refused`] for a strict plan that would copy what is selected and could be a matrix, or what a
    /// pattern selects that selects nothing else; [`ToolError::NothingConverted`].
    pub(super) fn of(
        tensors: &[TensorEntry],
        input: &Path,
        options: &QuantizeOptions,
    ) -> Result<Self, ToolError> {
        let mut plan = Self {
            fates: Vec::new(),
            copied: Vec::new(),
            outline: Outline::default(),
            manifest: Manifest::new(options.format, options.via),
        };
        let idle = idle_patterns(tensors, options);
        for entry in tensors {
            let selected = is_selected(&options.only, &entry.name);
            let matrices =
                if selected { matrices(entry, options.format) } else { Err(CopyReason::NotSelected) };
            let fate = match matrices {
                Ok(matrices) => plan.quantize(entry, matrices),
                Err(reason) => {
                    let asked_for = idle.iter().any(|pattern| pattern_matches(pattern, &entry.name));
                    let is_left_out = match reason {
                        CopyReason::NotSelected => false,
                        CopyReason::NoMatrix { .. } => asked_for,
                        _ => true,
                    };
                    if options.strict && is_left_out {
                        return Err(ToolError::Refused { tensor: entry.name.clone(), reason });
                    }
                    plan.copied.push(Copied { name: entry.name.clone(), bytes: entry.bytes(), reason });
                    Fate::Copy(plan.outline.add(entry.name.clone(), entry.dtype, entry.shape.clone()))
                }
            };
            plan.fates.push(fate);
        }
        if plan.manifest.tensors.is_empty() {
            return Err(ToolError::NothingConverted { path: input.to_owned(), copies: plan.copied });
        }
        Ok(plan)
    }

    fn quantize(&mut self, entry: &TensorEntry, matrices: Matrices) -> Fate {
        let original = Original { dtype: entry.dtype, shape: matrices };
        self.manifest.tensors.insert(entry.name.clone(), original);
        let parts = Part::ALL.map(|part| {
            let (dtype, stored) = part.stored(self.manifest.format, matrices);
            self.outline.add(part.name(&entry.name), dtype, stored)
        });
        Fate::Quantize(matrices, parts)
    }
}

/// The matrices of a tensor that the format takes, or why it is copied.
fn matrices(entry: &TensorEntry, format: Format) -> Result<Matrices, CopyReason> {
    let (dtype, shape) = (entry.dtype, entry.shape.clone());
    let Some(matrices) = Matrices::of(&shape) else {
        return Err(match shape.len() {
            0 | 1 => CopyReason::NoMatrix { dtype, shape },
            _ => CopyReason::Dimensions { dtype, shape },
        });
    };
    if float_bytes(dtype).is_none() {
        return Err(CopyReason::Dtype { dtype, shape });
    }
    format.check_shape(matrices.shape())?;
    match matrices.count() {
        0 => Err(FormatError::EmptyShape { shape: matrices.shape() }.into()),
        _ => Ok(matrices),
    }
}

fn is_selected(only: &[String], name: &str) -> bool {
    only.is_empty() || only.iter().any(|pattern| pattern_matches(pattern, name))
}

/// Patterns that select nothing that is quantized.
fn idle_patterns<'a>(tensors: &[TensorEntry], options: &'a QuantizeOptions) -> Vec<&'a String> {
    let quantizes = |pattern: &&String| {
        tensors
            .iter()
            .any(|entry| pattern_matches(pattern, &entry.name) && matrices(entry, options.format).is_ok())
    };
    options.only.iter().filter(|pattern| !quantizes(pattern)).collect()
}

/// Refuses, where nothing selected may be left out, frozen weights that the input lacks.
pub(super) fn check_absent(
    absent: &[String],
    input: &Path,
    options: &QuantizeOptions,
) -> Result<(), ToolError> {
    let selected = absent.iter().filter(|name| options.strict && is_selected(&options.only, name));
    let weights: Vec<String> = selected.cloned().collect();
    if weights.is_empty() { Ok(()) } else { Err(ToolError::Frozen { path: input.to_owned(), weights }) }
}

/// Refuses a pattern that matches no tensor: it is misspelt.
pub(super) fn check_patterns(
    tensors: &[TensorEntry],
    input: &Path,
    options: &QuantizeOptions,
) -> Result<(), ToolError> {
    let idle = |pattern: &&String| !tensors.iter().any(|entry| pattern_matches(pattern, &entry.name));
    let Some(pattern) = options.only.iter().find(idle) else {
        return Ok(());
    };
    let example = tensors.iter().find(|entry| matrices(entry, options.format).is_ok());
    Err(ToolError::NothingMatches {
        pattern: pattern.clone(),
        path: input.to_owned(),
        example: example.map(|entry| entry.name.clone()),
    })
}
