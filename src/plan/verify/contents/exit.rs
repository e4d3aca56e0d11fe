//! The edge at which a step ends.
//!
//! Law: every call ran; resident slots hold what the plan's exit state declares; outputs lie in
//! staging as the last call that wrote them left them; the vote and the fault word are there for
//! the session to read.

use super::entry::describe;
use super::{BufferValue, Held, Run, Verdict, VerifyError};
use crate::id::{BufferId, SlotId, WeightId};
use crate::layout::{Content, Residency};
use crate::model::{Placement, Role};

impl Run<'_> {
    pub(super) fn leave(&self) -> Verdict<()> {
        self.all_calls_ran()?;
        self.all_slots_exist()?;
        for (id, slot) in self.plan.arena.entries() {
            if slot.residency == Residency::Resident {
                self.check_resident(id, slot.content)?;
            }
        }
        self.outputs_are_staged()
    }

    fn all_calls_ran(&self) -> Verdict<()> {
        let plan = self.plan;
        if let Some(call) = plan.calls.get(self.calls) {
            let problem = format!("never runs; {} of {} calls do", self.calls, plan.calls.len());
            return self.wrong_program(format!("call `{}`", call.name), problem, "run every call once");
        }
        let seen = Held::FaultWord { calls: plan.calls.len() };
        if !plan.calls.is_empty() && !self.slots.all().any(|(_, held)| *held == seen) {
            let problem = "ends without a fault word that has seen all calls".into();
            return self.wrong_program(
                format!("plan `{}`", plan.name),
                problem,
                "keep the fault word until the step's edge",
            );
        }
        if !plan.updates_weights {
            if let Some((call, weight)) = self.unconsumed() {
                return Err(Box::new(VerifyError::LostGradient {
                    task: format!("plan `{}`", plan.name),
                    weight: self.name(weight).into(),
                    call: call.into(),
                    whereabouts: "the plan has no optimizer".into(),
                }));
            }
        } else if !self.slots.all().any(|(_, held)| *held == Held::Vote) {
            let problem = "ends without the vote, from which the session reports the outcome".into();
            return self.wrong_program(
                format!("plan `{}`", plan.name),
                problem,
                "vote, and keep the vote's bytes until the step's edge",
            );
        }
        Ok(())
    }

    /// The first gradient a call writes.
    fn unconsumed(&self) -> Option<(&str, WeightId)> {
        self.plan.calls.iter().find_map(|call| call.grads.first().map(|weight| (call.name.as_str(), *weight)))
    }

    /// Without a slot there is nothing that could hold a wrong version.
    fn all_slots_exist(&self) -> Verdict<()> {
        let resident: std::collections::BTreeSet<Content> = self
            .plan
            .arena
            .slots
            .iter()
            .filter(|slot| slot.residency == Residency::Resident)
            .map(|slot| slot.content)
            .collect();
        for (number, layout) in self.plan.weights.layouts.iter().enumerate() {
            let weight = WeightId::at(number);
            let shards = layout.format.stored_orientations().iter().map(|o| Content::Shard(weight, *o));
            let shards = shards.filter(|_| layout.placement == Placement::Sharded);
            let state = [Content::Master(weight), Content::ExpAvg(weight), Content::ExpAvgSq(weight)];
            if let Some(absent) = state.into_iter().chain(shards).find(|content| !resident.contains(content))
            {
                return Err(Box::new(VerifyError::Edge {
                    subject: format!("plan `{}`", self.plan.name),
                    needs: format!("a resident slot for {absent:?} of `{}`", layout.name),
                    holds: "none".into(),
                    remedy: "lay out every weight's state before planning".into(),
                }));
            }
        }
        Ok(())
    }

    fn check_resident(&self, slot: SlotId, content: Content) -> Verdict<()> {
        let exit = self.plan.exit;
        let needs = match content {
            Content::Master(weight) => Held::Master(weight, exit.masters),
            Content::ExpAvg(weight) => Held::ExpAvg(weight, exit.masters),
            Content::ExpAvgSq(weight) => Held::ExpAvgSq(weight, exit.masters),
            Content::Shard(weight, orientation) => {
                Held::Shard { weight, orientation, data: exit.shards, scale: exit.shards }
            }
            Content::TensorScale(bucket) => {
                exit.shards.map_or(Held::Nothing, |version| Held::TensorScale(bucket, version))
            }
            Content::OptimizerStep => Held::OptimizerStep { votes: u32::from(self.plan.updates_weights) },
            Content::Buffer(buffer) => match self.value(buffer) {
                // A carried input that no call read need not have been copied in.
                Some(BufferValue::Staged) | None => return Ok(()),
                Some(value) => Held::Buffer(buffer, value),
            },
            _ => return Ok(()),
        };
        if *self.slots.held(slot) == needs {
            return Ok(());
        }
        Err(Box::new(VerifyError::Edge {
            subject: format!("the end of plan `{}`, which declares {},", self.plan.name, describe(exit)),
            needs: format!("{} in slot `{}`", needs.describe(self.plan), self.slot_name(slot)),
            holds: self.slots.describe(slot),
            remedy: "let exactly one task bring each resident slot to the declared state".into(),
        }))
    }

    fn outputs_are_staged(&self) -> Verdict<()> {
        for (number, spec) in
            self.plan.buffers.iter().enumerate().filter(|(_, spec)| spec.role == Role::Output)
        {
            let buffer = BufferId::at(number);
            let Some(value) = self.value(buffer) else { continue };
            let needs = Held::Buffer(buffer, value);
            let staging = self.plan.arena.find(Content::Staging(buffer));
            if staging.is_none_or(|slot| *self.slots.held(slot) != needs) {
                let holds = staging.map_or("no slot".into(), |slot| self.slots.describe(slot));
                let problem = format!("ends with {holds} in the staging of output `{}`", spec.name);
                let remedy = "copy every output behind the last call that writes it";
                return self.wrong_program(format!("plan `{}`", self.plan.name), problem, remedy);
            }
        }
        Ok(())
    }
}
