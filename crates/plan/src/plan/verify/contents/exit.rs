//! The exit state of a plan: what slots must hold when a step ends.
//!
//! Law: every call ran; every gradient is in its main grad, where the session and the next step of a sum look for
//! it, and so is what a rank added up of a replicated weight if the sum stays open; resident slots hold what the
//! plan's exit state declares; outputs lie in staging as the last call that wrote them left them; the vote and the
//! fault word are there for the session to read.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::describe;
use super::{BufferValue, Held, Run, Verdict, VerifyError};
use crate::layout::{Content, Residency};
use crate::model::{Lifetime, Placement, Role};
use crate::plan::StepPlan;
use warpweft_base::id::{BufferId, CallId, MicroBatchId, SlotId, WeightId};

impl Run<'_> {
    pub(super) fn leave(&self) -> Verdict<()> {
        self.all_calls_ran()?;
        self.gradients_are_complete()?;
        self.outcome_is_known()?;
        self.slots_of_weights_exist()?;
        self.other_slots_exist()?;
        self.snapshot_is_whole()?;
        for (id, slot) in self.plan.arena.entries() {
            if slot.residency == Residency::Resident {
                self.check_resident(id, slot.content)?;
            }
        }
        self.outputs_are_staged()
    }

    fn all_calls_ran(&self) -> Verdict<()> {
        let calls = &self.plan.calls;
        match calls.get(self.calls) {
            None => Ok(()),
            Some(call) => {
                let problem = format!("never runs; {} of {} calls do", self.calls, calls.len());
                self.wrong_program(format!("call `{}`", call.label()), problem, "run every call once")
            }
        }
    }

    /// PL-4: with an optimizer the norm requests every gradient; without one the step ends with complete main
    /// grads.
    fn gradients_are_complete(&self) -> Verdict<()> {
        if self.plan.updates_weights {
            return Ok(());
        }
        let mut main_grads: BTreeMap<WeightId, SlotId> = BTreeMap::new();
        for (id, slot) in self.plan.arena.entries() {
            if let (Content::MainGrad(weight), Residency::Resident) = (slot.content, slot.residency) {
                main_grads.insert(weight, id);
            }
        }
        for (number, contributors) in self.contributors.iter().enumerate() {
            let weight = WeightId::at(number);
            let main_grad = main_grads.get(&weight).map(|slot| self.slots.held(*slot));
            let is_in_sum = |call: &CallId| matches!(main_grad, Some(Held::MainGrad(of, sum)) if *of == weight && sum.contains(call));
            if let Some(call) = contributors.iter().find(|call| !is_in_sum(call)) {
                return Err(Box::new(VerifyError::LostGradient {
                    task: format!("the end of {}", self.plan.title()),
                    weight: self.name(weight).into(),
                    call: self.call_name(*call),
                    whereabouts: self.whereabouts(weight, *call),
                }));
            }
        }
        Ok(())
    }

    /// The session reads fault word and vote when the step is over.
    fn outcome_is_known(&self) -> Verdict<()> {
        let calls = self.all_closures();
        let remains = |wanted: Held| self.slots.all().any(|(_, held)| *held == wanted);
        if calls > 0 && !remains(Held::FaultWord { calls }) {
            let problem = "ends without a fault word that has seen all calls".into();
            return self.wrong_program(
                self.plan.title(),
                problem,
                "keep the fault word until the step boundary",
            );
        }
        if self.plan.updates_weights && !remains(Held::Vote) {
            let problem = "ends without the vote, from which the session reports the outcome".into();
            return self.wrong_program(
                self.plan.title(),
                problem,
                "vote, and keep the vote's bytes to the end",
            );
        }
        Ok(())
    }

    /// Without a slot there is nothing that could hold a wrong version.
    fn slots_of_weights_exist(&self) -> Verdict<()> {
        let slots = self.plan.arena.slots.iter();
        let resident: BTreeSet<Content> =
            slots.filter(|slot| slot.residency == Residency::Resident).map(|slot| slot.content).collect();
        for (number, layout) in self.plan.weights.layouts.iter().enumerate() {
            let weight = WeightId::at(number);
            let mut needed = Vec::new();
            if self.plan.weights.splits_masters(layout.bucket) {
                needed.push(("master remainder".to_owned(), Content::MasterRemainder(weight)));
            } else if !layout.is_planes_alone() {
                needed.push(("master".to_owned(), Content::Master(weight)));
            }
            if !layout.frozen {
                let state = self.plan.weights.state;
                let named = |list| (state.in_words(list).to_owned(), Content::State(weight, list));
                needed.extend(state.states().map(named));
            }
            if layout.placement == Placement::Sharded {
                let stored = layout.format.stored_orientations().iter();
                needed.extend(stored.map(|side| (format!("{side} shard"), Content::Shard(weight, *side))));
            }
            if !self.contributors[number].is_empty() {
                needed.push(("main grad".to_owned(), Content::MainGrad(weight)));
                if self.plan.accumulation.stays_open() && layout.placement == Placement::Replicated {
                    needed.push(("rank's own gradient sum".to_owned(), Content::LocalGrad(weight)));
                }
            }
            if self.plan.weights.delayed(layout.bucket).is_some() {
                needed.extend([
                    ("amax history".to_owned(), Content::AmaxHistory(layout.bucket)),
                    ("delayed scales".to_owned(), Content::DelayedScale(layout.bucket)),
                ]);
            }
            if let Some((absent, _)) = needed.iter().find(|(_, content)| !resident.contains(content)) {
                return Err(Box::new(VerifyError::Edge {
                    subject: self.plan.title(),
                    needs: format!("a resident slot for the {absent} of `{}`", layout.name),
                    finds: "has none".into(),
                    remedy: "lay out every weight's state before planning".into(),
                }));
            }
        }
        Ok(())
    }

    /// What the session, closures and later steps look for by its content is in one slot, which stays.
    fn other_slots_exist(&self) -> Verdict<()> {
        let mut slots: BTreeMap<Content, Vec<Residency>> = BTreeMap::new();
        for slot in &self.plan.arena.slots {
            slots.entry(slot.content).or_default().push(slot.residency);
        }
        for (name, content) in self.looked_for() {
            let found = slots.get(&content).map_or(&[][..], Vec::as_slice);
            if found != [Residency::Resident] {
                let transient = found.iter().filter(|of| **of == Residency::Transient).count();
                return Err(Box::new(VerifyError::Edge {
                    subject: self.plan.title(),
                    needs: format!("one slot for {name}, a resident one"),
                    finds: format!("has {} of them, {transient} transient", found.len()),
                    remedy: "lay out once what is looked for by its content".into(),
                }));
            }
        }
        Ok(())
    }

    /// Contents that belong to no weight and that every step of the session finds, with their names.
    fn looked_for(&self) -> Vec<(String, Content)> {
        let StepPlan { weights, buffers, micro_batches, .. } = self.plan;
        let mut all: Vec<_> = [
            ("the fault word", Content::FaultWord),
            ("the optimizer step", Content::OptimizerStep),
            ("the hyperparameters", Content::Hyperparameters),
            ("the loss scale", Content::LossScale),
            ("the gradient scale", Content::GradientScale),
        ]
        .map(|(name, content)| (name.to_owned(), content))
        .into();
        let scaled = weights.entries().filter(|(_, bucket)| bucket.has_scales());
        all.extend(scaled.map(|(id, _)| (format!("the tensor scales of {id}"), Content::TensorScale(id))));
        for (number, buffer) in buffers.iter().enumerate() {
            let (id, name) = (BufferId::at(number), &buffer.name);
            if buffer.lifetime == Lifetime::Carried {
                all.push((format!("the carried buffer `{name}`"), Content::Buffer(id)));
            }
            if buffer.role != Role::Internal {
                let staging = |number| Content::Staging(id, MicroBatchId::new(number));
                let staged = (0..*micro_batches).map(staging);
                all.extend(staged.map(|content| (format!("the staging of `{name}`"), content)));
            }
        }
        all
    }

    fn check_resident(&self, slot: SlotId, content: Content) -> Verdict<()> {
        let exit = self.plan.exit;
        let of = |weight: WeightId| self.exit_of(self.plan.weights.layout(weight).frozen);
        let needs = match content {
            Content::Master(weight) => Held::Master(weight, of(weight).masters),
            Content::MasterRemainder(weight) => Held::MasterRemainder(weight, of(weight).masters),
            Content::State(weight, list) => Held::State(weight, list, exit.masters),
            Content::Shard(weight, orientation) => {
                let version = self.shard_version(weight, of(weight));
                Held::Shard { weight, orientation, data: version, scale: version }
            }
            Content::TensorScale(bucket) => {
                let exit = self.exit_of(self.plan.weights.bucket(bucket).frozen);
                let version = self.version_in(bucket, exit);
                version.map_or(Held::Nothing, |version| Held::TensorScale(bucket, version))
            }
            Content::AmaxHistory(bucket) => Held::AmaxHistory(bucket, exit.masters),
            Content::DelayedScale(bucket) => Held::DelayedScale(bucket, exit.masters),
            Content::MainGrad(weight) | Content::LocalGrad(weight) => {
                return self.sum_stays(slot, content, weight);
            }
            Content::OptimizerStep => Held::OptimizerStep { votes: u32::from(self.plan.updates_weights) },
            Content::Buffer(buffer) => match self.value(buffer, self.last_micro_batch()) {
                // A carried input that no call read need not have been copied in.
                Some(BufferValue::Staged(_)) | None => return Ok(()),
                Some(value) => Held::Buffer(buffer, value),
            },
            _ => return Ok(()),
        };
        if *self.slots.held(slot) == needs {
            return Ok(());
        }
        Err(Box::new(VerifyError::Edge {
            subject: format!("the end of {}, which declares {},", self.plan.title(), describe(exit)),
            needs: needs.describe(self.plan),
            finds: self.finds(slot),
            remedy: "let exactly one task bring each resident slot to the declared state".into(),
        }))
    }

    /// PL-4: what was added up lies where it is looked for: main grads after every step that writes gradients, a
    /// rank's own sum of a replicated weight where the next step goes on from it.
    fn sum_stays(&self, slot: SlotId, content: Content, weight: WeightId) -> Verdict<()> {
        let calls: BTreeSet<CallId> = self.contributors[weight.index()].iter().copied().collect();
        let stays_open = self.plan.accumulation.stays_open();
        let (needs, remedy) = match content {
            _ if calls.is_empty() => return Ok(()),
            Content::MainGrad(_) => {
                (Held::MainGrad(weight, calls), "leave the sum in the slot where it is looked for")
            }
            _ if stays_open => (
                Held::LocalSum(weight, calls),
                "leave the sum there: the next step of the accumulation adds to it",
            ),
            _ => return Ok(()),
        };
        if *self.slots.held(slot) == needs {
            return Ok(());
        }
        Err(Box::new(VerifyError::Gradient {
            task: format!("the end of {}", self.plan.title()),
            slot: self.slot_name(slot),
            needs: needs.describe(self.plan),
            holds: self.slots.describe(slot),
            remedy: remedy.into(),
        }))
    }

    fn outputs_are_staged(&self) -> Verdict<()> {
        let outputs = self.plan.buffers.iter().enumerate().filter(|(_, spec)| spec.role == Role::Output);
        // Per buffer and micro-batch, the last call that writes it.
        let mut last: BTreeMap<(BufferId, MicroBatchId), CallId> = BTreeMap::new();
        for (number, call) in self.plan.calls.iter().enumerate() {
            for access in call.buffers.iter().filter(|access| access.access.writes()) {
                last.insert((access.buffer, call.micro_batch), CallId::at(number));
            }
        }
        for (number, spec) in outputs {
            let buffer = BufferId::at(number);
            for micro_batch in (0..self.plan.micro_batches).map(MicroBatchId::new) {
                let Some(call) = last.get(&(buffer, micro_batch)) else { continue };
                let needs = Held::Buffer(buffer, BufferValue::Written(*call));
                let staging = self.plan.arena.find(Content::Staging(buffer, micro_batch));
                if staging.is_none_or(|slot| *self.slots.held(slot) != needs) {
                    let holds = staging.map_or("no slot".into(), |slot| self.slots.describe(slot));
                    let problem = format!("ends with {holds} in the staging of output `{}`", spec.name);
                    let remedy = "copy every output after the last call that writes it";
                    return self.wrong_program(self.plan.title(), problem, remedy);
                }
            }
        }
        Ok(())
    }

    fn last_micro_batch(&self) -> MicroBatchId {
        self.plan.calls.last().map_or_else(MicroBatchId::default, |call| call.micro_batch)
    }
}
