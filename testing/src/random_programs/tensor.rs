//! The choice of what tensor parallelism does with the weights of a random program.
//!
//! Law: all that was drawn of a program stays, but that every weight says what becomes of it. A weight is cut only
//! where each rank gets whole blocks of it, and where its optimizer does not need it whole.

use warpweft_base::id::{GroupId, WeightId};
use warpweft_plan::model::{Model, Placement, Segments, StepProgram, TensorParallel, WeightSpec};

use super::collective_calls::over;
use super::{Draw, Ending};

/// The same program, of whose weights some are cut over groups of `tensor` ranks.
pub(super) fn with_tensor(
    program: &StepProgram,
    tensor: u32,
    ending: Ending,
    draw: &mut Draw,
) -> StepProgram {
    let (old, mut model) = (program.model(), Model::builder());
    for spec in old.weights() {
        let mut spec = spec.clone();
        spec.group = None;
        let mut hows = vec![TensorParallel::SplitTokens, TensorParallel::AlikeTokens];
        hows.extend(cuts(&spec, tensor as usize));
        spec.tensor = draw.of(&hows).copied();
        if spec.tensor == Some(TensorParallel::ColumnParallel) {
            spec.segments = segments(&spec, tensor as usize, draw);
        }
        model.add(spec).unwrap();
    }
    for (number, name) in old.groups().iter().enumerate() {
        let is_member = |spec: &WeightSpec| spec.group == Some(GroupId::at(number));
        let members: Vec<WeightId> =
            old.entries().filter(|(_, spec)| is_member(spec)).map(|(id, _)| id).collect();
        model.group(name, &members).unwrap();
    }
    over(&model.build(), program, ending)
}

/// The cuts that a weight can have, more than once, so that they are drawn more often.
fn cuts(spec: &WeightSpec, tensor: usize) -> Vec<TensorParallel> {
    if spec.placement == Placement::Replicated || spec.parameters.whole_matrix {
        return Vec::new();
    }
    let (row, column) = (spec.format.row_tile(), spec.format.column_tile());
    let by_rows = spec.shape.rows.is_multiple_of(tensor * row).then_some([TensorParallel::ColumnParallel; 2]);
    // A part whose last block of rows is short would be another weight than a part of the whole one.
    let columns = spec.shape.cols.is_multiple_of(tensor * column) && spec.shape.rows.is_multiple_of(row);
    let by_columns = columns.then_some([TensorParallel::RowParallel; 2]);
    by_rows.into_iter().chain(by_columns).flatten().collect()
}

/// Up to three segments of a weight that is cut by rows, each of whole blocks on every rank; or none.
fn segments(spec: &WeightSpec, tensor: usize, draw: &mut Draw) -> Segments {
    let least = tensor * spec.format.row_tile();
    let mut left = spec.shape.rows / least;
    if draw.one_in(3) {
        return Segments::NONE;
    }
    let mut rows = Vec::new();
    while left > 0 {
        let own = if rows.len() == 2 { left } else { 1 + draw.below(left) };
        rows.push(own * least);
        left -= own;
    }
    Segments::new(&rows).unwrap_or_default()
}
