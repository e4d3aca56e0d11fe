//! The entry state of a plan: what slots hold when a step begins.
//!
//! Law: before the step, resident slots hold what the plan's entry state promises, inputs, hyperparameters,
//! loss scale and gradient scale what the session put there, and nothing else holds anything of this step. What
//! the entry state promises is for the session to keep; every plan's exit is checked against it. A step that
//! continues a sum of gradients finds in main grads, and in what a rank adds up of replicated weights, what the step
//! before left there; to any other these hold nothing.

use std::collections::BTreeSet;

use super::{BufferValue, Held, Run, Verdict, VerifyError};
use crate::layout::{Content, Residency, Slot, WeightLayout};
use crate::model::{Accumulation, Lifetime, Role};
use crate::plan::{BoundaryState, StepPlan};
use warpweft_base::id::{BucketId, CallId, Version, WeightId};

impl Run<'_> {
    pub(super) fn enter(&mut self) -> Verdict<()> {
        self.check_declared()?;
        self.check_micro_batches()?;
        self.nothing_frozen_has_a_gradient()?;
        self.check_accumulation()?;
        for (id, slot) in self.plan.arena.entries() {
            let held = self.initial(slot);
            if held != Held::Nothing {
                self.slots.put(None, id, held);
            }
        }
        Ok(())
    }

    /// Entry and exit must fit each other and what kind of step it is.
    fn check_declared(&self) -> Verdict<()> {
        let BoundaryState { masters, shards } = self.plan.entry;
        if shards.is_some_and(|shards| shards > masters) {
            return Err(Box::new(VerifyError::Edge {
                subject: self.plan.title(),
                needs: "shards cast from masters that there are".into(),
                finds: format!("declares {} at its entry", describe(self.plan.entry)),
                remedy: "declare the version the shards were cast from".into(),
            }));
        }
        let next = if self.plan.updates_weights { masters.next() } else { masters };
        let left = if self.plan.updates_weights || self.plan.calls.is_empty() { Some(next) } else { shards };
        let exit = BoundaryState { masters: next, shards: left };
        let quantized = BoundaryState { masters: next, shards: Some(next) };
        if self.plan.exit == exit || self.plan.exit == quantized {
            return Ok(());
        }
        Err(Box::new(VerifyError::Edge {
            subject: self.plan.title(),
            needs: format!("to declare {} at its exit", describe(exit)),
            finds: format!("declares {}", describe(self.plan.exit)),
            remedy: "a step with an optimizer ends one version on, a prologue with shards of the masters' version, \
                     any other as it began"
                .into(),
        }))
    }

    /// PL-4: nothing would take it in.
    fn nothing_frozen_has_a_gradient(&self) -> Verdict<()> {
        for (layout, contributors) in self.plan.weights.layouts.iter().zip(&self.contributors) {
            if let Some(call) = contributors.first().filter(|_| layout.frozen) {
                return Err(Box::new(VerifyError::Coverage {
                    task: self.call_name(*call),
                    problem: format!(
                        "writes the gradient of `{}`, which is frozen; leave the gradient out, or let the weight train",
                        layout.name
                    ),
                }));
            }
        }
        Ok(())
    }

    /// PL-4: what an accumulation leaves to the next step is a sum for every weight that trains, which no optimizer
    /// has used; its last step uses it.
    fn check_accumulation(&self) -> Verdict<()> {
        let StepPlan { accumulation, updates_weights, weights, .. } = self.plan;
        let lacks = |(layout, calls): &(&WeightLayout, &Vec<CallId>)| !layout.frozen && calls.is_empty();
        let lacking = weights.layouts.iter().zip(&self.contributors).find(lacks);
        let (problem, remedy) = match (accumulation, lacking) {
            (Accumulation::Whole, _) => return Ok(()),
            (_, Some((layout, _))) => (
                format!("has no call that writes a gradient of `{}`, which trains", layout.name),
                "make the parts of an accumulation of one program that trains",
            ),
            (Accumulation::First | Accumulation::Next, _) if *updates_weights => (
                "runs the optimizer on a sum that stays open for later steps".to_owned(),
                "run the optimizer in the last step alone",
            ),
            (Accumulation::Last, _) if !updates_weights => (
                "has no optimizer, and no later step has one for its sum".to_owned(),
                "run the optimizer in the last step",
            ),
            _ => return Ok(()),
        };
        Err(Box::new(VerifyError::Accumulation { task: self.plan.title(), problem, remedy: remedy.into() }))
    }

    /// The version of a weight's shards at a step boundary. A shard that is half of a master is never behind it, and
    /// neither is one that has none: of a frozen weight, it is what was set.
    pub(super) fn shard_version(&self, weight: WeightId, edge: BoundaryState) -> Option<Version> {
        self.version_in(self.plan.weights.layout(weight).bucket, edge)
    }

    /// The version of the shards and tensor scales of a bucket at a step boundary.
    pub(super) fn version_in(&self, bucket: BucketId, edge: BoundaryState) -> Option<Version> {
        let weights = &self.plan.weights;
        let is_set = weights.splits_masters(bucket) || weights.bucket(bucket).is_planes_alone();
        if is_set { Some(edge.masters) } else { edge.shards }
    }

    /// What this plan's exit is for weights that are `frozen` or not. A step leaves frozen ones as they were: what
    /// the next edge calls its version is, of them, the one they had before.
    pub(super) fn exit_of(&self, frozen: bool) -> BoundaryState {
        let StepPlan { entry, exit, updates_weights, .. } = self.plan;
        if frozen && *updates_weights {
            BoundaryState { masters: entry.masters, shards: Some(entry.masters) }
        } else {
            *exit
        }
    }

    /// What a slot holds when the step begins.
    pub(super) fn initial(&self, slot: &Slot) -> Held {
        let BoundaryState { masters, .. } = self.plan.entry;
        let shard = |weight| self.shard_version(weight, self.plan.entry);
        let role = |buffer: warpweft_base::id::BufferId| self.plan.buffers[buffer.index()].role;
        match (slot.content, slot.residency) {
            (Content::Staging(buffer, micro_batch), _) if role(buffer) == Role::Input => {
                Held::Buffer(buffer, BufferValue::Staged(micro_batch))
            }
            (_, Residency::Transient) => Held::Nothing,
            (Content::Master(weight), _) => Held::Master(weight, masters),
            (Content::MasterRemainder(weight), _) => Held::MasterRemainder(weight, masters),
            (Content::State(weight, list), _) => Held::State(weight, list, masters),
            (Content::Shard(weight, orientation), _) => {
                Held::Shard { weight, orientation, data: shard(weight), scale: shard(weight) }
            }
            (Content::TensorScale(bucket), _) => {
                let version = self.version_in(bucket, self.plan.entry);
                version.map_or(Held::Nothing, |version| Held::TensorScale(bucket, version))
            }
            (Content::AmaxHistory(bucket), _) => Held::AmaxHistory(bucket, masters),
            (Content::DelayedScale(bucket), _) => Held::DelayedScale(bucket, masters),
            (Content::MainGrad(weight), _) if self.plan.accumulation.continues() => {
                Held::MainGrad(weight, BTreeSet::new())
            }
            (Content::LocalGrad(weight), _) if self.plan.accumulation.continues() => {
                Held::LocalSum(weight, BTreeSet::new())
            }
            (Content::OptimizerStep, _) => Held::OptimizerStep { votes: 0 },
            (Content::Hyperparameters, _) => Held::Hyperparameters,
            (Content::LossScale, _) => Held::LossScale,
            (Content::GradientScale, _) => Held::GradientScale,
            (Content::Buffer(buffer), _)
                if self.plan.buffers[buffer.index()].lifetime == Lifetime::Carried =>
            {
                Held::Buffer(buffer, BufferValue::Carried)
            }
            _ => Held::Stale,
        }
    }
}

/// An entry or exit state in words.
pub(super) fn describe(edge: BoundaryState) -> String {
    match edge.shards {
        Some(version) => format!("masters at {} and shards at {version}", edge.masters),
        None => format!("masters at {} and no shards", edge.masters),
    }
}
