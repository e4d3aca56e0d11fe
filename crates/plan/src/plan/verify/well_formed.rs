//! Well-formed plans: every id points into the plan.
//!
//! Law: after this check no lookup of the verifier can fail, so a plan from anywhere gets an
//! error and never a panic. It proves nothing else.

use std::collections::HashSet;

use super::{Verdict, VerifyError};
use crate::layout::Content;
use crate::model::Call;
use crate::op::Named;
use crate::plan::{StepPlan, Task};
use warpweft_base::id::{BucketId, BufferId, CallId, SlotId, TaskId, WeightId};

pub(super) fn check(plan: &StepPlan) -> Verdict<()> {
    let ids = Ids { plan };
    // Tables have a place for each event, so their number is not taken on trust.
    if plan.events > plan.tasks.len() {
        let named = format!("{} events", plan.events);
        return Err(ids.absent(
            &|| "events".into(),
            named,
            plan.tasks.len(),
            "tasks, each with one event at most",
        ));
    }
    ids.weights()?;
    for call in &plan.calls {
        ids.call(call)?;
    }
    for (id, slot) in plan.arena.entries() {
        ids.content(slot.content, || format!("{id} (`{}`)", slot.name))?;
    }
    for (id, task) in plan.entries() {
        ids.task(id, task)?;
    }
    if !plan.tasks.is_empty() {
        ids.task_id(plan.bounds.live_peak, &|| "bounds.live_peak".into())?;
    }
    Ok(())
}

struct Ids<'p> {
    plan: &'p StepPlan,
}

/// Where a name stands; only requested when it is wrong.
type Place<'a> = &'a dyn Fn() -> String;

impl Ids<'_> {
    fn absent(&self, place: Place<'_>, named: impl ToString, count: usize, kind: &str) -> Box<VerifyError> {
        Box::new(VerifyError::Malformed {
            place: place(),
            named: named.to_string(),
            present: format!("the plan has {count} {kind}"),
        })
    }

    fn within(
        &self,
        index: usize,
        count: usize,
        place: Place<'_>,
        named: impl ToString,
        kind: &str,
    ) -> Verdict<()> {
        if index < count { Ok(()) } else { Err(self.absent(place, named, count, kind)) }
    }

    fn weight(&self, weight: WeightId, place: Place<'_>) -> Verdict<()> {
        self.within(weight.index(), self.plan.weights.layouts.len(), place, weight, "weights")
    }

    fn bucket(&self, bucket: BucketId, place: Place<'_>) -> Verdict<()> {
        self.within(bucket.index(), self.plan.weights.buckets.len(), place, bucket, "buckets")
    }

    fn buffer(&self, buffer: BufferId, place: Place<'_>) -> Verdict<()> {
        self.within(buffer.index(), self.plan.buffers.len(), place, buffer, "buffers")
    }

    fn call_id(&self, call: CallId, place: Place<'_>) -> Verdict<()> {
        self.within(call.index(), self.plan.calls.len(), place, call, "calls")
    }

    fn slot(&self, slot: SlotId, place: Place<'_>) -> Verdict<()> {
        self.within(slot.index(), self.plan.arena.slots.len(), place, slot, "slots")
    }

    fn task_id(&self, task: TaskId, place: Place<'_>) -> Verdict<()> {
        self.within(task.index(), self.plan.tasks.len(), place, task, "tasks")
    }

    /// Buckets and layouts name each other.
    fn weights(&self) -> Verdict<()> {
        for (id, bucket) in self.plan.weights.entries() {
            for weight in &bucket.weights {
                self.weight(*weight, &|| id.to_string())?;
            }
        }
        for (number, layout) in self.plan.weights.layouts.iter().enumerate() {
            let weight = WeightId::at(number);
            let place = || format!("`{}`", layout.name);
            self.bucket(layout.bucket, &place)?;
            let bucket = self.plan.weights.bucket(layout.bucket);
            if bucket.frozen != layout.frozen {
                let word = |frozen| if frozen { "frozen" } else { "trained" };
                return Err(Box::new(VerifyError::Malformed {
                    place: place(),
                    named: format!("a weight that is {}", word(layout.frozen)),
                    present: format!("its {} is {}", layout.bucket, word(bucket.frozen)),
                }));
            }
            if (bucket.format, bucket.placement) != (layout.format, layout.placement) {
                return Err(Box::new(VerifyError::Malformed {
                    place: place(),
                    named: format!("the format {} ({:?})", layout.format, layout.placement),
                    present: format!(
                        "its weights' {} is quantized as {} ({:?}), so its bytes would be read in another format than they are written in",
                        layout.bucket, bucket.format, bucket.placement
                    ),
                }));
            }
            if bucket.weights.get(layout.position) != Some(&weight) {
                let named = format!("place {} of {}", layout.position, layout.bucket);
                return Err(self.absent(
                    &place,
                    named,
                    bucket.weights.len(),
                    "weights there, of which it is none",
                ));
            }
        }
        self.scale_groups()
    }

    /// Weights of a scale group are next to one another in one bucket, so what makes scales finds all their amaxes.
    fn scale_groups(&self) -> Verdict<()> {
        let weights = &self.plan.weights;
        let group = |weight: &WeightId| weights.layout(*weight).scale_group.as_deref();
        let mut known = HashSet::new();
        for (id, bucket) in weights.entries().filter(|(_, bucket)| bucket.format.needs_tensor_amax()) {
            for members in bucket.weights.chunk_by(|one, other| group(one) == group(other)) {
                let Some(name) = members.first().and_then(group) else { continue };
                if !known.insert(name) {
                    return Err(Box::new(VerifyError::Malformed {
                        place: format!("scale group `{name}`"),
                        named: format!("{} weights of {id}", members.len()),
                        present: "others of it are elsewhere, so their amaxes would be left out".to_owned(),
                    }));
                }
            }
        }
        Ok(())
    }

    fn call(&self, call: &Call) -> Verdict<()> {
        let place = || format!("call `{}`", call.name);
        for weight in call
            .uses
            .iter()
            .map(|usage| usage.weight)
            .chain(call.gradients.iter().map(|gradient| gradient.weight))
        {
            self.weight(weight, &place)?;
        }
        let exchanged = call.collective.iter().flat_map(|exchange| [exchange.from, exchange.to]);
        for buffer in call.buffers.iter().map(|access| access.buffer).chain(exchanged) {
            self.buffer(buffer, &place)?;
        }
        Ok(())
    }

    fn content(&self, content: Content, place: impl Fn() -> String) -> Verdict<()> {
        match content {
            Content::Master(weight)
            | Content::MasterRemainder(weight)
            | Content::State(weight, _)
            | Content::MainGrad(weight)
            | Content::LocalGrad(weight)
            | Content::BlockGrad(weight, _)
            | Content::Shard(weight, _)
            | Content::Published(weight, _)
            | Content::Gathered(weight, _)
            | Content::Transposed(weight)
            | Content::Round(weight, _)
            | Content::Squares(weight)
            | Content::Dense(weight, _, _) => self.weight(weight, &place),
            Content::Gradient(weight, call)
            | Content::WireGradient(weight, call)
            | Content::QuantizedGradient(weight, call)
            | Content::ReceivedGradient(weight, call, _)
            | Content::PartialGradient(weight, call, ..)
            | Content::ReceivedPartial(weight, call, ..)
            | Content::ReducedGradient(weight, call)
            | Content::SummedGradient(weight, call) => {
                self.weight(weight, &place)?;
                self.call_id(call, &place)
            }
            Content::TensorScale(bucket)
            | Content::LocalAmax(bucket)
            | Content::ReducedAmax(bucket)
            | Content::BlockAmax(bucket)
            | Content::AmaxHistory(bucket)
            | Content::DelayedScale(bucket)
            | Content::Encode(bucket) => self.bucket(bucket, &place),
            Content::Buffer(buffer) | Content::Staging(buffer, _) => self.buffer(buffer, &place),
            Content::OptimizerStep
            | Content::FaultWord
            | Content::Hyperparameters
            | Content::LossScale
            | Content::GradientScale
            | Content::NormRecord
            | Content::NormRecords
            | Content::Vote => Ok(()),
        }
    }

    fn task(&self, id: TaskId, task: &Task) -> Verdict<()> {
        let place = || self.plan.describe(id);
        self.within(task.lane.index(), self.plan.lanes.len(), &place, task.lane, "lanes")?;
        if let Some(event) = task.signals {
            self.within(event.index(), self.plan.events, &place, event, "events")?;
        }
        for other in task.waits.iter().copied().chain(task.release) {
            self.task_id(other, &place)?;
        }
        for (slot, _) in task.op.accesses() {
            self.slot(slot, &place)?;
        }
        task.op.named().into_iter().try_for_each(|named| self.named(named, &place))
    }

    /// What an op names besides slots.
    fn named(&self, named: Named, place: Place<'_>) -> Verdict<()> {
        match named {
            Named::Weight(weight) => self.weight(weight, place),
            Named::Bucket(bucket) => self.bucket(bucket, place),
            Named::Call(call) => self.call_id(call, place),
            Named::Buffer(buffer) => self.buffer(buffer, place),
            Named::Nothing(what) => Err(moves_nothing(what, place)),
        }
    }
}

/// A task that moves nothing: a collective would meet peers who may not come, a sum of nothing belongs
/// to nobody, and a custom optimizer would run once more than its weights say.
fn moves_nothing(what: &str, place: Place<'_>) -> Box<VerifyError> {
    let (named, present) = (
        format!("no {what}"),
        "every collective, every task that goes on with what one brought, and every part of a custom optimizer has at least one"
            .to_owned(),
    );
    VerifyError::Malformed { place: place(), named, present }.into()
}
