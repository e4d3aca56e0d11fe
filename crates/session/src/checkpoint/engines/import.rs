//! Import by a name map.
//!
//! Law: the map is the one by which they are exported; so what was cut is put together again, what was transposed is
//! transposed back, and a tied weight is read from where it is written.

use std::collections::HashMap;
use std::sync::Arc;

use warpweft_base::errors::shown;
use warpweft_format::Shape;
use warpweft_plan::model::Model;

use super::name_map::{Mapped, NameMap};
use crate::checkpoint::pretrained::of_weight;
use crate::checkpoint::ranks::MasterRows;
use crate::checkpoint::{CheckpointError, PretrainedFiles};

impl PretrainedFiles {
    /// As [`PretrainedFiles::initializer`], by a name map: for
    /// [`SessionBuilder::try_initialize`](crate::session::SessionBuilder::try_initialize).
    ///
    /// # Errors
    /// [`CheckpointError::Unfit`] for a weight that the map has no rule for, and as
    /// [`PretrainedFiles::initializer`].
    pub fn initializer_by(
        &self,
        model: &Model,
        names: &NameMap,
    ) -> Result<
        impl Fn(MasterRows<'_>, &mut [f32]) -> Result<(), CheckpointError> + Clone + Send + Sync + 'static,
        CheckpointError,
    > {
        let mut weights = HashMap::new();
        for spec in model.weights() {
            let parts = names.of(&spec.name)?;
            let held =
                parts.iter().map(|part| part.rows.unwrap_or(spec.shape.rows)).fold(0, usize::saturating_add);
            if held != spec.shape.rows {
                let (weight, rows) = (shown(&spec.name), spec.shape.rows);
                let reason = format!(
                    "the name map cuts weight `{weight}` of {rows} rows into {held}; mend its `rows`"
                );
                return Err(CheckpointError::Unfit { reason });
            }
            for part in &parts {
                let rows = part.rows.unwrap_or(spec.shape.rows);
                let shape = Shape { rows, cols: spec.shape.cols };
                let stored = if part.transpose { shape.transposed() } else { shape };
                self.check(&part.name, stored).map_err(|error| of_weight(&spec.name, error))?;
            }
            weights.insert(spec.name.clone(), (spec.shape, parts));
        }
        let (files, weights) = (self.clone(), Arc::new(weights));
        Ok(move |rows: MasterRows<'_>, values: &mut [f32]| {
            let MasterRows { weight, first_row, columns } = rows;
            let none = || CheckpointError::NoName { weight: weight.to_owned() };
            let (shape, parts) = weights.get(weight).ok_or_else(none)?;
            parts
                .iter()
                .try_for_each(|part| fill(&files, part, *shape, first_row, columns, values))
                .map_err(|error| of_weight(weight, error))
        })
    }
}

/// Fills those of the rows that a tensor has.
fn fill(
    files: &PretrainedFiles,
    part: &Mapped,
    shape: Shape,
    first_row: usize,
    columns: usize,
    values: &mut [f32],
) -> Result<(), CheckpointError> {
    let held = part.rows.unwrap_or(shape.rows);
    let requested = values.len() / columns.max(1);
    let begin = first_row.max(part.first_row);
    let end = (first_row + requested).min(part.first_row + held);
    if begin >= end {
        return Ok(());
    }
    let target = &mut values[(begin - first_row) * columns..(end - first_row) * columns];
    if !part.transpose {
        return files.rows(&part.name, begin - part.first_row, columns, target);
    }
    // A row of the tensor is a column of the weight.
    let mut line = vec![0.0; held];
    for column in 0..columns {
        files.rows(&part.name, column, held, &mut line)?;
        for (row, value) in line[begin - part.first_row..end - part.first_row].iter().enumerate() {
            target[row * columns + column] = *value;
        }
    }
    Ok(())
}
