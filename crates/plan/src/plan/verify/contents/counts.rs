//! PL-10, the counts of a dispatch.
//!
//! Law: a dispatch goes by counts that a closure wrote, and leaves with the rows that come how many they are. What
//! goes back, or the same way again, goes by both counts of one dispatch in the same micro-batch, unchanged since.
//! Whoever reads rows reads the counts that they came with, unchanged since. So nobody goes beyond a count.

use super::{BufferValue, Held, Run, Verdict};
use crate::model::{Collective, Counts};
use crate::op::CountSlots;
use warpweft_base::id::{BufferId, CallId, TaskId};

/// Where the counts came from by which a call brought rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    counts: Counts,
    /// How many rows each rank had for the others.
    given: BufferValue,
    /// How many came from each.
    taken: BufferValue,
}

impl Run<'_> {
    /// The counts by which a collective moves rows; what it gives was checked.
    pub(super) fn check_counts(
        &mut self,
        (task, id): (TaskId, CallId),
        declared: Collective,
        slots: Option<CountSlots>,
    ) -> Verdict<()> {
        let plan = self.plan;
        let call = &plan.calls[id.index()];
        let wrong = |run: &Self, problem: String| {
            let remedy =
                "move rows by the counts of the dispatch that the call follows, and keep these until then";
            run.wrong_program(plan.describe(task), problem, remedy)
        };
        if declared.counts != slots.map(|slots| slots.declared) {
            return wrong(self, format!("moves rows by other counts than `{}` declares", call.label()));
        }
        let Some(CountSlots { given, taken, declared: counts }) = slots else { return Ok(()) };
        let ranks = plan.weights.mesh.size(declared.group) as usize;
        let elements = |buffer: BufferId| plan.buffers[buffer.index()].elements;
        let slots = elements(counts.given);
        let rows = slots.saturating_mul(counts.capacity);
        if rows == 0 || !slots.is_multiple_of(ranks) || !elements(declared.from).is_multiple_of(rows) {
            return wrong(self, format!("has {slots} counts for {ranks} ranks, and no room for {rows} rows"));
        }
        if elements(counts.taken) != slots {
            return wrong(self, format!("gives {slots} counts and gets {}", elements(counts.taken)));
        }
        self.check_buffer((task, call), counts.given, given)?;
        let Some(value) = self.value(counts.given, call.micro_batch) else {
            return wrong(self, "goes by counts that nobody wrote".into());
        };
        self.proven.buffers += 2;
        if !counts.known {
            let closures = |writer: CallId| plan.calls[writer.index()].collective.is_none();
            if !matches!(value, BufferValue::Written(writer) if closures(writer)) {
                return wrong(self, "goes by counts that no closure wrote, so nothing compared them".into());
            }
            let brought = BufferValue::Written(id);
            self.writers[counts.taken.index()] = Some(id);
            self.counted.insert(id, Counted { counts, given: value, taken: brought });
            return self.fill(task, taken, Held::Buffer(counts.taken, brought));
        }
        self.check_buffer((task, call), counts.taken, taken)?;
        let Some(got) = self.value(counts.taken, call.micro_batch) else {
            return wrong(self, "goes by counts that nobody wrote".into());
        };
        let pair = [(counts.given, value), (counts.taken, got)];
        let is_followed = |(dispatch, other): (&CallId, &Counted)| {
            let of = plan.calls[dispatch.index()].collective.map(|dispatch| dispatch.group);
            let theirs = [(other.counts.given, other.given), (other.counts.taken, other.taken)];
            of.is_some_and(|group| plan.weights.mesh.alike(group, declared.group))
                && counts.follow(other.counts)
                && theirs.iter().all(|one| pair.contains(one))
        };
        if !self.counted.iter().any(is_followed) {
            let [given, taken] =
                [counts.given, counts.taken].map(|buffer| &plan.buffers[buffer.index()].name);
            let problem = format!(
                "goes by `{given}` and `{taken}`, which are not the counts of one dispatch before it"
            );
            return wrong(self, problem);
        }
        self.counted.insert(id, Counted { counts, given: value, taken: got });
        Ok(())
    }

    /// A call that reads a buffer into which rows came by counts goes by these counts.
    pub(super) fn check_read_counts(&self, (task, id): (TaskId, CallId), buffer: BufferId) -> Verdict<()> {
        let call = &self.plan.calls[id.index()];
        let Some(BufferValue::Written(writer)) = self.value(buffer, call.micro_batch) else { return Ok(()) };
        let by = self.plan.calls[writer.index()].collective.filter(|by| by.to == buffer);
        let (Some(_), Some(counted)) = (by, self.counted.get(&writer)) else { return Ok(()) };
        let taken = counted.counts.taken;
        let reads = match call.collective {
            Some(collective) => collective.counts.is_some_and(|own| own.given == taken),
            None => call.buffers.iter().any(|access| access.buffer == taken && access.access.reads()),
        };
        if reads && self.value(taken, call.micro_batch) == Some(counted.taken) {
            return Ok(());
        }
        let [rows, count] = [buffer, taken].map(|buffer| &self.plan.buffers[buffer.index()].name);
        self.wrong_program(
            self.plan.describe(task),
            format!("reads rows `{rows}` without the counts `{count}` that they came with"),
            "rows after the count are undefined: read both, and write neither in between",
        )
    }
}
