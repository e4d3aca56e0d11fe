//! PL-4 and PL-9, the optimizer: norm, records, vote, Adam or a custom optimizer.
//!
//! Law: the norm counts every complete main grad of a weight that trains once, by itself or by squares that were taken
//! of it when it was complete, and carries the fault word of all calls; the vote sees all ranks' records and counts the
//! step once; Adam, or the custom optimizer in its place, rewrites every such weight once, and no other, from state and
//! main grads of this step, under that vote; one task of it speaks of one parameter group.

use super::{Held, Run, Verdict, VerifyError};
use crate::op::{Adam, AdamOperand, GradNorm, MasterOperand, UpdateOperand};
use warpweft_base::id::{BucketId, SlotId, TaskId, Version, WeightId};
use warpweft_format::Orientation;

impl Run<'_> {
    pub(super) fn grad_norm(&mut self, task: TaskId, op: &GradNorm) -> Verdict<()> {
        let GradNorm { main_grads, squares, fault, record } = op;
        let mut counted = vec![0usize; self.plan.weights.layouts.len()];
        for (weight, slot) in squares {
            self.squared(task, *weight, *slot)?;
            counted[weight.index()] += 1;
        }
        for (weight, slot) in main_grads {
            self.complete(task, *weight, *slot)?;
            counted[weight.index()] += 1;
        }
        let wanted = |weight: usize| usize::from(!self.plan.weights.layouts[weight].frozen);
        if let Some(weight) = (0..counted.len()).find(|weight| counted[*weight] != wanted(*weight)) {
            let name = self.name(WeightId::at(weight));
            return Err(Box::new(VerifyError::Coverage {
                task: self.plan.describe(task),
                problem: format!(
                    "counts the main grad of `{name}` {} times in the norm, and it has {}",
                    counted[weight],
                    wanted(weight)
                ),
            }));
        }
        let calls = self.all_closures();
        if *self.slots.held(*fault) != (Held::FaultWord { calls }) {
            let needs = format!("a fault word that has seen all {calls} calls of the step");
            return self.wrong_operand(task, *fault, &needs, "take the norm after the last call");
        }
        self.fill(task, *record, Held::Record)
    }

    pub(super) fn gather_records(&mut self, task: TaskId, from: SlotId, to: SlotId) -> Verdict<()> {
        if *self.slots.held(from) != Held::Record {
            return self.wrong_operand(
                task,
                from,
                "this rank's record of the step",
                "gather the record the norm wrote",
            );
        }
        self.fill(task, to, Held::Records)
    }

    pub(super) fn vote(
        &mut self,
        task: TaskId,
        records: SlotId,
        optimizer_step: SlotId,
        gradient_scale: SlotId,
        vote: SlotId,
    ) -> Verdict<()> {
        if *self.slots.held(records) != Held::Records {
            return self.wrong_operand(
                task,
                records,
                "all ranks' records of the step",
                "gather the records before the vote",
            );
        }
        if *self.slots.held(gradient_scale) != Held::GradientScale {
            return self.wrong_operand(
                task,
                gradient_scale,
                "the gradient scale",
                "name the slot of the gradient scale",
            );
        }
        let Held::OptimizerStep { votes } = *self.slots.held(optimizer_step) else {
            return self.wrong_operand(
                task,
                optimizer_step,
                "the optimizer's step count",
                "name the step count's slot",
            );
        };
        self.fill(task, optimizer_step, Held::OptimizerStep { votes: votes + 1 })?;
        self.fill(task, vote, Held::Vote)
    }

    pub(super) fn adam(&mut self, task: TaskId, op: &Adam) -> Verdict<()> {
        let Adam { bucket, ref states, vote, hyperparameters, tensor_scale, amaxes } = *op;
        let weights: Vec<_> = states.iter().map(|state| state.weight).collect();
        self.is_update(task, bucket, &weights, vote, hyperparameters)?;
        if self.plan.weights.state.custom_states.is_some() {
            return self.other_rule(task, "lets Adam update weights that a custom optimizer updates");
        }
        if weights.iter().any(|weight| self.plan.weights.layout(*weight).parameters.whole_matrix) {
            return self.other_rule(task, "lets Adam update weights whose optimizer needs whole matrices");
        }
        let (old, new) = (self.plan.entry.masters, self.plan.entry.masters.next());
        for state in states {
            let AdamOperand { weight, master, exp_avg, exp_avg_sq, main_grad } = *state;
            self.complete(task, weight, main_grad)?;
            match master {
                MasterOperand::Whole(master) => {
                    self.rewrite(task, master, Held::Master(weight, old), Held::Master(weight, new))?;
                }
                MasterOperand::Cast { master, shard } => {
                    self.rewrite(task, master, Held::Master(weight, old), Held::Master(weight, new))?;
                    self.cast_in_update(task, bucket, (weight, shard), new)?;
                }
                MasterOperand::Split { shard, remainder } => {
                    let upper = |version| Held::Shard {
                        weight,
                        orientation: Orientation::Rowwise,
                        data: Some(version),
                        scale: Some(version),
                    };
                    let lower = |version| Held::MasterRemainder(weight, version);
                    self.rewrite(task, shard, upper(old), upper(new))?;
                    self.rewrite(task, remainder, lower(old), lower(new))?;
                }
            }
            for (slot, list) in [exp_avg, exp_avg_sq].into_iter().zip(self.plan.weights.state.states()) {
                self.rewrite(task, slot, Held::State(weight, list, old), Held::State(weight, list, new))?;
            }
        }
        self.scales_of_update(task, bucket, (states, tensor_scale), new)?;
        amaxes.map_or(Ok(()), |amaxes| self.amaxes_of_update(task, bucket, (states, amaxes), new))
    }

    /// The custom optimizer gets what Adam gets, and rewrites the master and every list that it keeps.
    pub(super) fn update(
        &mut self,
        task: TaskId,
        bucket: BucketId,
        states: &[UpdateOperand],
        (vote, hyperparameters): (SlotId, SlotId),
        transformed: Option<SlotId>,
    ) -> Verdict<()> {
        let weights: Vec<_> = states.iter().map(|state| state.weight).collect();
        self.is_update(task, bucket, &weights, vote, hyperparameters)?;
        if self.plan.weights.state.custom_states.is_none() {
            return self.other_rule(task, "runs a custom optimizer on weights that Adam updates");
        }
        let found = self.round_of_update(task, &weights, transformed)?;
        let (old, new) = (self.plan.entry.masters, self.plan.entry.masters.next());
        for UpdateOperand { weight, master, kept, main_grad } in states {
            self.complete(task, *weight, *main_grad)?;
            self.rewrite(task, *master, Held::Master(*weight, old), Held::Master(*weight, new))?;
            self.rewrite_lists(task, *weight, kept, (found, new))?;
        }
        Ok(())
    }

    /// All lists that a custom optimizer keeps of a weight go from one version to another, or are changed within it.
    pub(super) fn rewrite_lists(
        &mut self,
        task: TaskId,
        weight: WeightId,
        kept: &[SlotId],
        (old, new): (Version, Version),
    ) -> Verdict<()> {
        let lists = self.plan.weights.state.lists();
        if kept.len() != lists {
            let name = self.name(weight);
            let problem = format!("updates {} lists of state of `{name}`, which has {lists}", kept.len());
            return self.other_rule(task, &problem);
        }
        for (slot, list) in kept.iter().zip(self.plan.weights.state.states()) {
            self.rewrite(task, *slot, Held::State(weight, list, old), Held::State(weight, list, new))?;
        }
        Ok(())
    }

    /// What holds of any update: it is under the vote and by the step's hyperparameters, of weights of one group.
    fn is_update(
        &self,
        task: TaskId,
        bucket: BucketId,
        weights: &[WeightId],
        vote: SlotId,
        hyperparameters: SlotId,
    ) -> Verdict<()> {
        self.is_vote(task, vote)?;
        self.are_hyperparameters(task, hyperparameters)?;
        self.is_of_one_group(task, bucket, weights)
    }

    pub(super) fn are_hyperparameters(&self, task: TaskId, slot: SlotId) -> Verdict<()> {
        if *self.slots.held(slot) == Held::Hyperparameters {
            return Ok(());
        }
        self.wrong_operand(task, slot, "the hyperparameters", "name the slot of the hyperparameters")
    }

    /// Weights of one task train and are of one bucket and one parameter group.
    pub(super) fn is_of_one_group(
        &self,
        task: TaskId,
        bucket: BucketId,
        weights: &[WeightId],
    ) -> Verdict<()> {
        let coverage =
            |problem| Err(Box::new(VerifyError::Coverage { task: self.plan.describe(task), problem }));
        let parameters = |weight: &WeightId| self.plan.weights.layout(*weight).parameters;
        if let Some([first, other]) =
            weights.array_windows().find(|[first, other]| parameters(first) != parameters(other))
        {
            return coverage(format!(
                "updates `{}` and `{}`, whose parameter groups differ, as one; give each parameter group \
                 a task of its own",
                self.name(*first),
                self.name(*other)
            ));
        }
        for weight in weights {
            if self.plan.weights.layout(*weight).frozen {
                return coverage(format!("updates `{}`, which is frozen; leave it out", self.name(*weight)));
            }
            if self.plan.weights.layout(*weight).bucket != bucket {
                return coverage(format!("updates `{}`, which is not of {bucket}", self.name(*weight)));
            }
        }
        Ok(())
    }

    pub(super) fn other_rule(&self, task: TaskId, problem: &str) -> Verdict<()> {
        let problem =
            format!("{problem}; update all weights by the optimizer that their state is laid out for");
        Err(Box::new(VerifyError::Coverage { task: self.plan.describe(task), problem }))
    }

    /// State goes from one version to the next, in place.
    fn rewrite(&mut self, task: TaskId, slot: SlotId, before: Held, after: Held) -> Verdict<()> {
        if *self.slots.held(slot) != before {
            let remedy = "update every weight once a step, from its own state";
            return self.wrong_state(task, slot, before.describe(self.plan), remedy);
        }
        self.fill(task, slot, after)
    }

    pub(super) fn is_vote(&self, task: TaskId, slot: SlotId) -> Verdict<()> {
        if *self.slots.held(slot) == Held::Vote {
            return Ok(());
        }
        self.wrong_operand(task, slot, "the vote of this step", "vote before anything that a fault must stop")
    }
}
