//! PL-9, rounds of matrices: what a whole-matrix optimizer finds; PL-4, which weights may be one.
//!
//! Law: a round is the same weights in the same order from its preparation to its update, at most one for each rank
//! that shares them, with shards of one size; so the n-th rank has the n-th matrix and no other, and gets back the rows
//! that it gave. Lists that the custom optimizer keeps are one version on when their rows are prepared; the update may
//! change them again. A weight comes to each stage of its round once a step, so no part of the optimizer runs twice.

use super::{Held, Run, Verdict, VerifyError};
use crate::layout::{Content, RoundStage};
use crate::op::PrepareOperand;
use warpweft_base::id::{BucketId, SlotId, TaskId, Version, WeightId};

impl Run<'_> {
    pub(super) fn prepare(
        &mut self,
        task: TaskId,
        bucket: BucketId,
        states: &[PrepareOperand],
        (vote, hyperparameters): (SlotId, SlotId),
        to: SlotId,
    ) -> Verdict<()> {
        let weights: Vec<_> = states.iter().map(|state| state.weight).collect();
        self.is_vote(task, vote)?;
        self.are_hyperparameters(task, hyperparameters)?;
        self.is_of_one_group(task, bucket, &weights)?;
        self.is_round(task, &weights)?;
        let (old, new) = (self.plan.entry.masters, self.plan.entry.masters.next());
        for PrepareOperand { weight, kept, main_grad } in states {
            self.complete(task, *weight, *main_grad)?;
            self.rewrite_lists(task, *weight, kept, (old, new))?;
        }
        self.fill_round(task, to, &weights, RoundStage::Prepared)
    }

    pub(super) fn exchange_rows(
        &mut self,
        task: TaskId,
        weights: &[WeightId],
        from: SlotId,
        to: SlotId,
    ) -> Verdict<()> {
        self.is_round(task, weights)?;
        if !self.is_shared(weights) {
            return self
                .no_round(task, "exchanges rows that every rank has whole; transform them where they are");
        }
        let stage = match self.slots.held(from) {
            Held::Round { weights: of, stage: RoundStage::Prepared } if of == weights => RoundStage::Gathered,
            Held::Round { weights: of, stage: RoundStage::Transformed } if of == weights => {
                RoundStage::Returned
            }
            _ => {
                let wanted = match self.plan.arena.slot(to).content {
                    Content::Round(_, RoundStage::Returned) => RoundStage::Transformed,
                    _ => RoundStage::Prepared,
                };
                return self.wrong_round(task, from, weights, wanted);
            }
        };
        self.fill_round(task, to, weights, stage)
    }

    pub(super) fn transform(
        &mut self,
        task: TaskId,
        bucket: BucketId,
        weights: &[WeightId],
        vote: SlotId,
        (from, to): (SlotId, SlotId),
    ) -> Verdict<()> {
        self.is_vote(task, vote)?;
        self.is_of_one_group(task, bucket, weights)?;
        self.is_round(task, weights)?;
        let (wanted, made) = match self.is_shared(weights) {
            true => (RoundStage::Gathered, RoundStage::Transformed),
            false => (RoundStage::Prepared, RoundStage::Returned),
        };
        self.holds_round(task, from, weights, wanted)?;
        self.fill_round(task, to, weights, made)
    }

    /// What an update of `weights` finds of their matrices: rows that came back if its optimizer needs them whole,
    /// otherwise none. Returns the version of the lists that it finds.
    pub(super) fn round_of_update(
        &self,
        task: TaskId,
        weights: &[WeightId],
        transformed: Option<SlotId>,
    ) -> Verdict<Version> {
        let entry = self.plan.entry.masters;
        let whole = |weight: &WeightId| self.plan.weights.layout(*weight).parameters.whole_matrix;
        match (weights.first().is_some_and(whole), transformed) {
            (false, None) => Ok(entry),
            (true, Some(slot)) => {
                self.holds_round(task, slot, weights, RoundStage::Returned)?;
                Ok(entry.next())
            }
            (true, None) => {
                self.no_round(task, "updates weights whose optimizer needs whole matrices, without them")
            }
            (false, Some(_)) => self
                .no_round(task, "updates weights by transformed rows that their optimizer does not request"),
        }
    }

    /// Lets `task` write rows that have come to `stage`, to which none of them came before in this step.
    fn fill_round(
        &mut self,
        task: TaskId,
        to: SlotId,
        weights: &[WeightId],
        stage: RoundStage,
    ) -> Verdict<()> {
        self.fill(task, to, Held::Round { weights: weights.to_vec(), stage })?;
        for weight in weights {
            if let Some(first) = self.stages.insert((*weight, stage), task) {
                let made = Held::Round { weights: vec![*weight], stage }.describe(self.plan);
                let problem = format!(
                    "makes {made} again, which {} made; run each part of a round once a step",
                    self.plan.describe(first)
                );
                return Err(Box::new(VerifyError::Coverage { task: self.plan.describe(task), problem }));
            }
        }
        Ok(())
    }

    fn holds_round(
        &self,
        task: TaskId,
        slot: SlotId,
        weights: &[WeightId],
        stage: RoundStage,
    ) -> Verdict<()> {
        match self.slots.held(slot) {
            Held::Round { weights: of, stage: at } if of == weights && *at == stage => Ok(()),
            _ => self.wrong_round(task, slot, weights, stage),
        }
    }

    fn wrong_round<T>(
        &self,
        task: TaskId,
        slot: SlotId,
        weights: &[WeightId],
        stage: RoundStage,
    ) -> Verdict<T> {
        let needs = Held::Round { weights: weights.to_vec(), stage }.describe(self.plan);
        let remedy =
            "prepare, exchange, transform and exchange a round of matrices, then update by what came back";
        self.wrong_state(task, slot, needs, remedy)
    }

    /// What holds of every round.
    fn is_round(&self, task: TaskId, weights: &[WeightId]) -> Verdict<()> {
        let layout = |weight: &WeightId| self.plan.weights.layout(*weight);
        if self.plan.weights.state.custom_states.is_none() {
            return self.no_round(task, "makes matrices whole for Adam, which updates rows");
        }
        if !weights.iter().all(|weight| layout(weight).parameters.whole_matrix) {
            return self.no_round(task, "makes matrices whole whose optimizer does not request it");
        }
        let size = |weight: &WeightId| (layout(weight).shard.ranks, layout(weight).stored_elements());
        if weights.array_windows().any(|[first, other]| size(first) != size(other)) {
            return self.no_round(task, "puts shards of several sizes into one round");
        }
        let ranks = weights.first().map_or(1, |first| layout(first).shard.ranks);
        if weights.len() > ranks as usize {
            let problem = format!("puts {} matrices into one round, for {ranks} ranks", weights.len());
            return self.no_round(task, &problem);
        }
        Ok(())
    }

    fn is_shared(&self, weights: &[WeightId]) -> bool {
        weights.first().is_some_and(|first| self.plan.weights.layout(*first).shard.ranks > 1)
    }

    fn no_round<T>(&self, task: TaskId, problem: &str) -> Verdict<T> {
        let problem = format!("{problem}; plan rounds of weights as their parameter groups request");
        Err(Box::new(VerifyError::Coverage { task: self.plan.describe(task), problem }))
    }
}
