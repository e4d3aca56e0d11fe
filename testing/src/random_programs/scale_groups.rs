//! The choice of weights of a random program that share a scale of the tensor.
//!
//! Law: all that was drawn of a program stays, but that some weights are of scale groups. Members of one have
//! one format, need not be declared next to one another, and are of any parameter group, shape and cut. Where
//! a format has no such scale they may be frozen too, which changes nothing.

use warpweft_base::id::WeightId;
use warpweft_plan::model::{Group, ModelBuilder, Placement, StepProgram, WeightSpec};
use warpweft_plan::plan::StepPlan;

use super::collective_calls::over;
use super::row::Feature;
use super::{Draw, Ending};

/// The same program with up to two scale groups for each format.
pub(super) fn with_scale_groups(program: &StepProgram, ending: Ending, draw: &mut Draw) -> StepProgram {
    let old = program.model();
    let mut model = ModelBuilder::with_groups_of(old);
    for spec in old.weights() {
        let scale_group = draw
            .among(&[None, Some("one"), Some("one"), Some("other")])
            .filter(|_| can_be_of_one(spec))
            .map(|group| format!("{group} in {}", spec.format));
        let mut spec = spec.clone();
        spec.scale_group = scale_group;
        model.add(spec).unwrap();
    }
    over(&model.build(), program, ending)
}

fn can_be_of_one(spec: &WeightSpec) -> bool {
    !spec.format.needs_tensor_amax() || spec.placement == Placement::Sharded && !spec.frozen
}

/// What may come up, as of `feature`.
pub(super) fn features() -> Vec<Feature> {
    let mut all: Vec<Feature> = Vec::new();
    let mut add = |name: &str, has: fn(&StepPlan, WeightId) -> bool| {
        all.push((
            name.into(),
            Box::new(move |_, plan| sharing(plan).any(|weight| plan.updates_weights && has(plan, weight))),
        ));
    };
    add("a scale group", |_, _| true);
    add("a scale group whose weights are not declared next to one another", |plan, weight| {
        let members = members(plan, weight);
        members.array_windows().any(|[one, next]| one.index() + 1 != next.index())
    });
    add("a scale group of several parameter groups", |plan, weight| {
        let parameters = |weight: &WeightId| plan.weights.layout(*weight).parameters;
        members(plan, weight).iter().any(|other| parameters(other) != parameters(&weight))
    });
    add("a scale group whose amaxes an update takes", |plan, weight| {
        plan.weights.amaxes_in_update(plan.weights.layout(weight).bucket)
    });
    add("a scale group that a custom optimizer updates", |plan, _| {
        plan.weights.state.custom_states.is_some()
    });
    add("a scale group with delayed scales", |plan, weight| {
        plan.weights.delayed(plan.weights.layout(weight).bucket).is_some()
    });
    add(
        "a scale group with a weight that tensor parallelism cuts, and one that it does not",
        |plan, weight| {
            let is_cut = |weight: &WeightId| {
                let shard = &plan.weights.layout(*weight).shard;
                shard.shape != shard.whole()
            };
            let members = members(plan, weight);
            members.iter().any(is_cut) && !members.iter().all(is_cut)
        },
    );
    add("a scale group on several replicas", |plan, _| plan.weights.mesh.size(Group::Replicate) > 1);
    all
}

/// The weights that share a scale with others.
fn sharing(plan: &StepPlan) -> impl Iterator<Item = WeightId> {
    let weights = (0..plan.weights.layouts.len()).map(WeightId::at);
    weights.filter(|weight| plan.weights.scaled_with(*weight).len() > 1)
}

/// The weights that share a scale with one, and it.
fn members(plan: &StepPlan, weight: WeightId) -> &[WeightId] {
    &plan.weights.bucket(plan.weights.layout(weight).bucket).weights[plan.weights.scaled_with(weight)]
}
