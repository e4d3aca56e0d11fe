//! The resident region: memory that lives as long as the session.
//!
//! Law: common slots (optimizer state, shards, fault word, step count) have the same id and
//! address in every program of a session; staging and carried buffers follow, each program's in
//! its own place. Carried buffers of one name are one buffer.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashSet};

use super::PlanError;
use crate::layout::{Content, MAX_ARENA, Region, Residency, Slot, WeightLayout, Weights, aligned};
use crate::model::{BufferSpec, Group, Lifetime, Placement, Role, StepProgram, TensorParallel};
use crate::policy::{self, Masters, Moments};
use warpweft_base::id::{BufferId, MicroBatchId};
use warpweft_format::Shape;

/// Places of all resident slots of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResidentLayout {
    common: Vec<Slot>,
    programs: BTreeMap<String, Vec<Slot>>,
    bytes: usize,
}

impl ResidentLayout {
    /// Lays out optimizer state and shards of `weights`, then the staging and carried buffers of
    /// every program.
    ///
    /// # Errors
    /// [`PlanError::Carried`] when two programs disagree on a carried buffer's size or type,
    /// [`PlanError::Masters`] when masters are to be split and a sharded weight that trains is not bf16,
    /// [`PlanError::Policy`] when a custom optimizer is to have more than eight lists, or other values than f32,
    /// [`PlanError::WholeMatrix`] when Adam is to update a weight as a whole matrix,
    /// [`PlanError::Slices`] when a custom optimizer is to, and each replica has a slice of its rows,
    /// [`PlanError::TensorParallel`] for a weight that the mesh's tensor parallelism does not cut evenly, or that does
    /// not say how,
    /// [`PlanError::ExpertParallel`] for the weight of an expert that is not shared as the mesh says,
    /// [`PlanError::Scaling`] when scales are to be delayed and no weight has a per-tensor FP8 format,
    /// [`PlanError::ScaleGroup`] for weights that are to share a scale of the tensor, and of which one is frozen or has
    /// another format,
    /// [`PlanError::TooLarge`] for more bytes than an arena can have.
    pub fn new(weights: &Weights, programs: &[&StepProgram]) -> Result<Self, PlanError> {
        check_masters(weights)?;
        check_custom_optimizer(weights)?;
        check_matrices(weights, programs)?;
        check_tensor_parallel(weights)?;
        check_expert_parallel(weights)?;
        check_scaling(weights)?;
        check_scale_groups(weights)?;
        check_slices(weights)?;
        let mut cursor = Cursor { bytes: 0 };
        let mut names: Vec<(String, Content)> = Vec::new();
        let mut add = |name: String, content: Content| names.push((name, content));
        add("fault word".into(), Content::FaultWord);
        add("optimizer step".into(), Content::OptimizerStep);
        add("hyperparameters".into(), Content::Hyperparameters);
        add("loss scale".into(), Content::LossScale);
        add("gradient scale".into(), Content::GradientScale);
        for (bucket, members) in weights.entries() {
            if members.has_scales() {
                add(format!("{bucket} ({}) tensor scales", members.format), Content::TensorScale(bucket));
            }
            if weights.delayed(bucket).is_some() {
                add(format!("{bucket} delayed scales"), Content::DelayedScale(bucket));
                add(format!("{bucket} amax history"), Content::AmaxHistory(bucket));
            }
            for weight in &members.weights {
                let layout = weights.layout(*weight);
                let name = &layout.name;
                if weights.splits_masters(bucket) {
                    add(format!("{name} master remainder"), Content::MasterRemainder(*weight));
                } else if !members.is_planes_alone() {
                    add(format!("{name} master"), Content::Master(*weight));
                }
                if !members.frozen {
                    let is_adam = weights.state.custom_states.is_none();
                    for list in weights.state.states() {
                        let what = match list.index() {
                            0 if is_adam => "exp_avg",
                            1 if is_adam => "exp_avg_sq",
                            _ => weights.state.in_words(list),
                        };
                        add(format!("{name} {what}"), Content::State(*weight, list));
                    }
                    add(format!("{name} main grad"), Content::MainGrad(*weight));
                }
                match members.placement {
                    Placement::Replicated if members.frozen => {}
                    Placement::Replicated => add(format!("{name} local grad"), Content::LocalGrad(*weight)),
                    Placement::Sharded => {
                        for orientation in layout.format.stored_orientations() {
                            add(format!("{name} {orientation} shard"), Content::Shard(*weight, *orientation));
                        }
                    }
                }
            }
        }
        let mut common = Vec::with_capacity(names.len());
        for (name, content) in names {
            common.push(cursor.place(name, content, content.bytes(weights, |_| 0))?);
        }
        let mut carried: BTreeMap<&str, (&str, &BufferSpec, Region)> = BTreeMap::new();
        let mut own = BTreeMap::new();
        for program in programs {
            let mut slots = Vec::new();
            for (number, buffer) in program.buffers().iter().enumerate() {
                let id = BufferId::at(number);
                if buffer.lifetime == Lifetime::Carried {
                    let (first, like, region) = match carried.entry(&buffer.name) {
                        Entry::Occupied(known) => *known.get(),
                        Entry::Vacant(new) => {
                            let (name, content) = (buffer.name.clone(), Content::Buffer(id));
                            let slot = cursor.place(name, content, buffer.bytes())?;
                            *new.insert((program.name(), buffer, slot.region))
                        }
                    };
                    if (like.elements, like.element) != (buffer.elements, buffer.element) {
                        return Err(PlanError::Carried {
                            buffer: buffer.name.clone(),
                            first: first.to_owned(),
                            first_elements: like.elements,
                            first_type: like.element,
                            second: program.name().to_owned(),
                            second_elements: buffer.elements,
                            second_type: buffer.element,
                        });
                    }
                    let (name, residency) = (buffer.name.clone(), Residency::Resident);
                    slots.push(Slot { name, content: Content::Buffer(id), residency, region });
                }
                let staged = if is_staged(buffer) { program.micro_batches() } else { 0 };
                for micro_batch in (0..staged).map(MicroBatchId::new) {
                    let name = match micro_batch.number() {
                        0 => format!("{} staging", buffer.name),
                        _ => format!("{} staging of {micro_batch}", buffer.name),
                    };
                    slots.push(cursor.place(name, Content::Staging(id, micro_batch), buffer.bytes())?);
                }
            }
            own.insert(program.name().to_owned(), slots);
        }
        Ok(Self { common, programs: own, bytes: cursor.bytes })
    }

    /// Bytes of the whole region; the transient region begins there.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Resident slots of every program.
    #[must_use]
    pub fn common(&self) -> Vec<Slot> {
        self.common.clone()
    }

    /// Resident slots of every program, then those of the program called `name`.
    #[must_use]
    pub fn slots(&self, name: &str) -> Vec<Slot> {
        let own = self.programs.get(name).map_or(&[][..], Vec::as_slice);
        self.common.iter().chain(own).cloned().collect()
    }
}

/// Only a bf16 shard is the upper half of an f32.
fn check_masters(weights: &Weights) -> Result<(), PlanError> {
    let splits = weights.state.masters == Masters::Bf16Remainder;
    let unfit = |layout: &&WeightLayout| {
        let has_whole = layout.placement == Placement::Sharded && !layout.is_planes_alone();
        has_whole && !weights.splits_masters(layout.bucket)
    };
    match weights.layouts.iter().find(unfit).filter(|_| splits) {
        None => Ok(()),
        Some(layout) => {
            Err(PlanError::Masters { weight: layout.name.clone(), format: layout.format.to_string() })
        }
    }
}

/// A custom optimizer gets f32 values, in eight lists at most.
fn check_custom_optimizer(weights: &Weights) -> Result<(), PlanError> {
    let state = weights.state;
    let is_f32 = (state.moments, state.masters) == (Moments::F32, Masters::F32);
    match state.custom_states {
        Some(lists) if !is_f32 || !policy::CUSTOM_STATES.contains(&lists) => Err(PlanError::Policy {
            key: "optimizer.custom_states",
            value: lists.to_string(),
            advice: "keep at most 8 lists for a custom optimizer, and masters and moments in f32",
        }),
        _ => Ok(()),
    }
}

/// Adam would update a matrix row by row.
fn check_matrices(weights: &Weights, programs: &[&StepProgram]) -> Result<(), PlanError> {
    let by_adam =
        weights.state.custom_states.is_none() && programs.iter().any(|program| program.updates_weights());
    let whole = |layout: &&WeightLayout| layout.parameters.whole_matrix && !layout.frozen;
    match weights.layouts.iter().find(whole).filter(|_| by_adam) {
        None => Ok(()),
        Some(layout) => Err(PlanError::WholeMatrix { weight: layout.name.clone() }),
    }
}

/// Parts of a weight are of one size, of whole blocks, and stay apart.
fn check_tensor_parallel(weights: &Weights) -> Result<(), PlanError> {
    for layout in &weights.layouts {
        let Some(cut) = layout.shard.tensor else { continue };
        let tiles = Shape { rows: layout.format.row_tile(), cols: layout.format.column_tile() };
        let parts = || {
            let is_cut = layout.shard.group() == Group::Shard;
            (is_cut && layout.parameters.whole_matrix && !layout.frozen).then(|| {
                "is to be updated as a whole matrix (whole_matrix), and each rank of the group has a part; take whole_matrix from it"
                    .to_owned()
            })
        };
        if let Some(problem) = cut.problem(layout.placement, tiles).or_else(parts) {
            return Err(PlanError::TensorParallel { weight: layout.name.clone(), tp: cut.ranks, problem });
        }
    }
    Ok(())
}

/// Experts are whole on the ranks that share their rows, and have numbers.
fn check_expert_parallel(weights: &Weights) -> Result<(), PlanError> {
    let problem = |layout: &WeightLayout| {
        if layout.placement == Placement::Replicated {
            return Some(
                "is replicated, and ranks would have other experts under one name; declare it sharded in f32",
            );
        }
        if layout.shard.tensor.is_some_and(|cut| cut.how != Some(TensorParallel::SplitTokens)) {
            return Some(
                "does not say that the ranks of a tensor-parallel group send it other tokens, and each token would reach it once from each of them; declare split tokens (TensorParallel::SplitTokens) and split them at the dispatch, or set mesh.tp to 1",
            );
        }
        if layout.frozen {
            return Some(
                "is frozen, and digests of frozen weights are not yet taken of experts that other ranks have; train it, or set mesh.ep to 1 and leave mesh.ep_shard out",
            );
        }
        let is_unnumbered = layout.shard.expert > Some(1) && layout.expert.is_none();
        is_unnumbered.then_some(
            "has no number of its own among the experts of a rank; let the part of its name after `experts` count these from 0, as `layers.3.experts.0.w1` and `layers.3.experts.1.w1`",
        )
    };
    for layout in &weights.layouts {
        let Some(ep) = layout.shard.expert else { continue };
        if let Some(problem) = problem(layout) {
            let problem = problem.to_owned();
            return Err(PlanError::ExpertParallel { weight: layout.name.clone(), ep, problem });
        }
    }
    let mut names = HashSet::new();
    for (weight, place) in weights.in_files() {
        let (layout, name) = (weights.layout(weight), weights.layout(weight).name_at(place).into_owned());
        if let (false, Some(ep)) =
            (names.insert(name.clone()), weights.layouts.iter().find_map(|of| of.shard.expert))
        {
            let problem = format!(
                "would be `{name}` on some ranks, and so is another weight called; rename one of them"
            );
            return Err(PlanError::ExpertParallel { weight: layout.name.clone(), ep, problem });
        }
    }
    Ok(())
}

/// A choice that would change nothing is a mistake.
fn check_scaling(weights: &Weights) -> Result<(), PlanError> {
    if weights.state.delayed.is_some_and(|delayed| delayed.history == 0) {
        return Err(PlanError::Policy {
            key: "quantize.amax_history",
            value: "0".into(),
            advice: "remember at least 1 step",
        });
    }
    if weights.state.delayed.is_none()
        || weights.entries().any(|(bucket, _)| weights.delayed(bucket).is_some())
    {
        return Ok(());
    }
    let trained = weights.buckets.iter().filter(|members| !members.frozen);
    let formats: Vec<String> = trained.map(|members| members.format.to_string()).collect();
    Err(PlanError::Scaling { formats: formats.join(", ") })
}

/// A matrix is brought together from the ranks of a replica.
fn check_slices(weights: &Weights) -> Result<(), PlanError> {
    let whole = |layout: &&WeightLayout| layout.is_in_slices() && layout.parameters.whole_matrix;
    match weights.layouts.iter().find(whole) {
        None => Ok(()),
        Some(layout) => Err(PlanError::Slices { weight: layout.name.clone() }),
    }
}

/// Weights that share a scale of the tensor are quantized by the same tasks.
fn check_scale_groups(weights: &Weights) -> Result<(), PlanError> {
    let mut groups: BTreeMap<&str, Vec<&WeightLayout>> = BTreeMap::new();
    for layout in &weights.layouts {
        if let Some(group) = &layout.scale_group {
            groups.entry(group).or_default().push(layout);
        }
    }
    for (group, members) in groups {
        let Some(scaled) = members.iter().find(|layout| layout.format.needs_tensor_amax()) else { continue };
        let refuse = |problem| Err(PlanError::ScaleGroup { group: group.to_owned(), problem });
        if let Some(other) = members.iter().find(|layout| layout.format != scaled.format) {
            return refuse(format!(
                "`{}` is in {} and `{}` in {}; give all of its weights one format, or take one of the two out of it",
                scaled.name, scaled.format, other.name, other.format
            ));
        }
        if let Some(other) = members.iter().find(|layout| layout.shard.expert != scaled.shard.expert) {
            return refuse(format!(
                "`{}` and `{}` are not both of experts, and other ranks have others in their place; take one of the two out of it",
                scaled.name, other.name
            ));
        }
        if let Some(frozen) = members.iter().find(|layout| layout.frozen) {
            return refuse(format!(
                "`{}` is frozen, and no step quantizes it; train it, or take it out of the group (scale_group = \"\" in a rule of [[weights]])",
                frozen.name
            ));
        }
    }
    Ok(())
}

/// Do the user's bytes pass through a staging slot?
pub(super) fn is_staged(buffer: &BufferSpec) -> bool {
    matches!(buffer.role, Role::Input | Role::Output)
}

/// The end of what is placed so far, never beyond [`MAX_ARENA`].
struct Cursor {
    bytes: usize,
}

impl Cursor {
    fn place(&mut self, name: String, content: Content, bytes: usize) -> Result<Slot, PlanError> {
        let region = Region { offset: self.bytes, bytes };
        self.bytes = add_slot(self.bytes, &name, bytes)?;
        Ok(Slot { name, content, residency: Residency::Resident, region })
    }
}

/// The bytes of an arena of `placed` bytes with one more slot, if an arena can have them.
pub(super) fn add_slot(placed: usize, name: &str, bytes: usize) -> Result<usize, PlanError> {
    match placed.checked_add(aligned(bytes)) {
        Some(sum) if sum <= MAX_ARENA => Ok(sum),
        _ => Err(PlanError::TooLarge { what: format!("slot `{name}`"), limit: MAX_ARENA }),
    }
}
