//! The choice of which weights of a random program are those of experts.
//!
//! Law: all that was drawn of a program stays. Every rank has all experts, so a weight of one is another's equal but
//! for the ranks that share its rows, and those that copy them.

use warpweft_plan::model::{Levels, Mesh, Model, Placement, StepProgram, TensorParallel, WeightSpec};

use super::collective_calls::over;
use super::{Draw, Ending};

/// Over how many ranks an expert may be sharded, other than the ranks of a replica.
pub(super) fn shards(mesh: Mesh, levels: Levels) -> Vec<u32> {
    let fits = |shards: &u32| {
        let other = mesh.with_experts(1, Some(*shards)).and_then(|mesh| mesh.with_levels(levels));
        other.is_ok_and(Mesh::has_experts)
    };
    (1..=mesh.ranks()).filter(fits).collect()
}

/// The same program, of whose weights some are those of experts.
pub(super) fn with_experts(
    program: &StepProgram,
    tensor: u32,
    ending: Ending,
    draw: &mut Draw,
) -> StepProgram {
    let (old, mut model) = (program.model(), Model::builder());
    let mut model_of = |spec: &WeightSpec| {
        let mut spec = spec.clone();
        // A scale is of experts alone or of none.
        let may_be = spec.placement == Placement::Sharded && !spec.frozen && spec.scale_group.is_none();
        let is_split = tensor == 1 || spec.tensor == Some(TensorParallel::SplitTokens);
        spec.expert = may_be && is_split && draw.one_in(2);
        spec.group = None;
        model.add(spec).unwrap();
    };
    old.weights().iter().for_each(&mut model_of);
    for (number, name) in old.groups().iter().enumerate() {
        let is_member = |spec: &WeightSpec| spec.group.is_some_and(|group| group.index() == number);
        let members: Vec<_> = old.entries().filter(|(_, spec)| is_member(spec)).map(|(id, _)| id).collect();
        model.group(name, &members).unwrap();
    }
    over(&model.build(), program, ending)
}
