//! The choice of matrices that a random program's optimizer gets whole.
//!
//! Law: all that was drawn of a program stays, but that some weights say this of themselves, and that they may have
//! the format, the shape and the parameter group of others: a round is of matrices of one size and group. Frozen
//! weights may say it too, which changes nothing of a step.

use warpweft_base::id::{GroupId, WeightId};
use warpweft_plan::model::{Model, StepProgram, WeightSpec};
use warpweft_session::config::Scaling;

use super::collective_calls::over;
use super::{Draw, Ending};

/// The same program, of which all weights are to be updated as whole matrices, or some.
pub(super) fn with_matrices(
    program: &StepProgram,
    scaling: Scaling,
    ending: Ending,
    draw: &mut Draw,
) -> StepProgram {
    let (all, alike) = (draw.one_in(2), !draw.one_in(4));
    // Delayed scaling is for one format.
    let of_one_format = draw.one_in(2) && scaling == Scaling::Current;
    let (old, mut model) = (program.model(), Model::builder());
    for spec in old.weights() {
        let mut spec = spec.clone();
        spec.group = None;
        let kind = |spec: &WeightSpec| (spec.placement, (!of_one_format).then_some(spec.format));
        if alike && let Some(first) = old.weights().iter().find(|other| kind(other) == kind(&spec)) {
            (spec.format, spec.shape, spec.parameters) = (first.format, first.shape, first.parameters);
        }
        spec.parameters.whole_matrix = all || draw.one_in(2);
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
