//! Transient memory of a rank during a step, as counters of a trace.
//!
//! Law: a slot is live from the begin of the first task that touches it to the end of the last, by the times
//! that the backend measured. Slots, bytes and who touches them are the plan's; no device is queried.
//! At the end of a step nothing is live. Tasks that were not timed touch nothing here.

use crate::trace::{CounterSample, Nanoseconds};
use warpweft_backend::TaskInterval;
use warpweft_base::id::RankId;
use warpweft_plan::layout::{Content, Residency, Slot};
use warpweft_plan::plan::StepPlan;

/// Which transient slots are counted.
type Counts = fn(&Slot) -> bool;

/// The counters, each with its name.
const COUNTERS: [(&str, Counts); 2] = [
    ("live transient memory, bytes", |_| true),
    ("live gathered planes, bytes", |slot| {
        matches!(slot.content, Content::Gathered(..) | Content::Published(..))
    }),
];

/// The values of the counters over one step of `rank`, in times since `origin`, of one counter in time order.
pub(in crate::session) fn live_bytes(
    plan: &StepPlan,
    rank: RankId,
    origin: u64,
    intervals: &[TaskInterval],
) -> Vec<CounterSample> {
    let mut lives: Vec<Option<(u64, u64)>> = vec![None; plan.arena.slots.len()];
    for ((_, task), interval) in plan.entries().zip(intervals).filter(|(_, interval)| interval.ran()) {
        for (slot, _) in task.op.accesses() {
            let (begin, end) = lives[slot.index()].unwrap_or((interval.begin, interval.end));
            lives[slot.index()] = Some((begin.min(interval.begin), end.max(interval.end)));
        }
    }
    let lives = || {
        let slots = plan.arena.slots.iter().zip(&lives);
        let transient = slots.filter(|(slot, _)| slot.residency == Residency::Transient);
        transient.filter_map(|(slot, life)| life.map(|life| (slot, life)))
    };
    let mut samples = Vec::new();
    for (name, counts) in COUNTERS {
        let mut changes: Vec<(u64, i128)> = lives()
            .filter(|(slot, _)| counts(slot))
            .flat_map(|(slot, (begin, end))| {
                let bytes = slot.region.bytes as i128;
                [(begin, bytes), (end, -bytes)]
            })
            .collect();
        changes.sort_unstable();
        let mut live = 0;
        for together in changes.chunk_by(|one, next| one.0 == next.0) {
            live += together.iter().map(|(_, bytes)| bytes).sum::<i128>();
            let at = Nanoseconds::new(together[0].0 - origin);
            samples.push(CounterSample { rank, name: name.to_owned(), at, value: live as f64 });
        }
    }
    samples
}
