//! The choice of which weights of a random program are those of experts.
//!
//! Law: all that was drawn of a program stays. Where every rank has all experts, a weight of one is another's equal but
//! for the ranks that share its rows, and those that copy them. Where ranks share the experts it has the number of an
//! expert in its name as well, so that other ranks have others in its place. Weights of a scale group are all of
//! experts there, or none is.

use std::collections::BTreeMap;

use warpweft_base::id::WeightId;
use warpweft_plan::model::{Levels, Mesh, Model, Placement, StepProgram, TensorParallel, WeightSpec};

use super::collective_calls::over;
use super::{Draw, Ending};

/// How many ranks may share the experts, and over how many of these one is sharded then.
pub(super) fn axes(mesh: Mesh, levels: Levels, draw: &mut Draw) -> Option<(u32, u32)> {
    let fits = |ep: &u32| !shards(mesh, levels, *ep).is_empty();
    let ep = *draw.of(&[2, 4].into_iter().filter(fits).collect::<Vec<_>>())?;
    Some((ep, *draw.of(&shards(mesh, levels, ep))?))
}

/// Over how many ranks an expert may be sharded where each of `ep` ranks has experts of its own, other than the ranks
/// of a replica.
pub(super) fn shards(mesh: Mesh, levels: Levels, ep: u32) -> Vec<u32> {
    let fits = |shards: &u32| {
        let other = mesh.with_experts(ep, Some(*shards)).and_then(|mesh| mesh.with_levels(levels));
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
    with(program, ending, |spec| {
        // A scale is of experts alone or of none.
        spec.expert = may_be(spec, tensor) && spec.scale_group.is_none() && draw.one_in(2);
    })
}

/// The same program, of whose weights some are those of a rank's own experts: of up to two layers, whose experts count
/// from 0.
pub(super) fn with_own_experts(
    program: &StepProgram,
    tensor: u32,
    ending: Ending,
    draw: &mut Draw,
) -> StepProgram {
    let may_be = |spec: &WeightSpec| may_be(spec, tensor);
    let mut of_experts: BTreeMap<Option<String>, bool> = BTreeMap::new();
    for spec in program.model().weights() {
        *of_experts.entry(spec.scale_group.clone()).or_insert(true) &= may_be(spec);
    }
    of_experts.values_mut().for_each(|all| *all &= draw.one_in(2));
    let mut experts = [0; 2];
    with(program, ending, |spec| {
        spec.expert = match spec.scale_group {
            Some(_) => of_experts[&spec.scale_group],
            None => may_be(spec) && !draw.one_in(3),
        };
        let layer = draw.below(experts.len());
        if spec.expert {
            spec.name = format!("layers.{layer}.experts.{}.w", experts[layer]);
            experts[layer] += 1;
        }
    })
}

fn may_be(spec: &WeightSpec, tensor: u32) -> bool {
    let is_split = tensor == 1 || spec.tensor == Some(TensorParallel::SplitTokens);
    spec.placement == Placement::Sharded && !spec.frozen && is_split
}

/// The same program over weights of which each says something else of itself.
fn with(program: &StepProgram, ending: Ending, mut say: impl FnMut(&mut WeightSpec)) -> StepProgram {
    let (old, mut model) = (program.model(), Model::builder());
    for spec in old.weights() {
        let mut spec = spec.clone();
        spec.group = None;
        say(&mut spec);
        model.add(spec).unwrap();
    }
    for (number, name) in old.groups().iter().enumerate() {
        let is_member = |spec: &WeightSpec| spec.group.is_some_and(|group| group.index() == number);
        // By their numbers, as some have other names now.
        let members = old.entries().filter(|(_, spec)| is_member(spec)).map(|(id, _)| id.index());
        let members: Vec<WeightId> = members.map(WeightId::at).collect();
        model.group(name, &members).unwrap();
    }
    over(&model.build(), program, ending)
}
