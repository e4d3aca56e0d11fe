//! What one gather brought, derived by one task.
//!
//! Law: parts are joined that one gather brought and that are due for one call at one stage, so nobody waits
//! for planes of another gather because of it. What it is for: beside a matrix product a kernel waits until a
//! multiprocessor is given up, and before a call it has the device to itself, mostly idle; a kernel for each
//! of six weights waits, or idles, six times. A task that touches [`ENOUGH`] bytes takes no more parts: one
//! more kernel is little beside that, and planes that are read live no longer than they must.

use super::super::draft::{Carrier, Draft, DraftTask, Supply};
use super::of_group;
use crate::id::SlotId;
use crate::op::Op;

/// At 3 TB/s some 20 µs, of which a launch of its own is a tenth to a fifth.
const ENOUGH: usize = 64 << 20;

/// What is derived for one call, `P` for every weight.
pub(super) struct Joined<'a, P> {
    tasks: Vec<Task<'a, P>>,
}

struct Task<'a, P> {
    gather: SlotId,
    issue: usize,
    /// Of the weights, each once.
    names: Vec<&'a str>,
    bytes: usize,
    parts: Vec<P>,
}

impl<'a, P> Joined<'a, P> {
    pub(super) const fn new() -> Self {
        Self { tasks: Vec::new() }
    }

    /// Derives `part` at stage `issue` of the planes of `supply`, into slot `to`; behind what was added before.
    pub(super) fn add(
        &mut self,
        draft: &Draft<'_>,
        (supply, to): (Supply, SlotId),
        issue: usize,
        name: &'a str,
        part: P,
    ) {
        let bytes = draft.bytes(supply.slot).saturating_add(draft.bytes(to));
        let takes = |task: &&mut Task<'_, P>| {
            (task.gather, task.issue) == (supply.gather, issue) && task.bytes < ENOUGH
        };
        match self.tasks.iter_mut().find(takes) {
            Some(task) => {
                task.bytes = task.bytes.saturating_add(bytes);
                task.parts.push(part);
                // Values of two types are two parts of one weight, one behind the other.
                if task.names.last() != Some(&name) {
                    task.names.push(name);
                }
            }
            None => self.tasks.push(Task {
                gather: supply.gather,
                issue,
                names: vec![name],
                bytes,
                parts: vec![part],
            }),
        }
    }

    /// The tasks, each with its stage.
    pub(super) fn tasks(
        self,
        op: impl Fn(Vec<P>) -> Op,
        carrier: Carrier,
    ) -> impl Iterator<Item = (usize, DraftTask)> {
        self.tasks.into_iter().map(move |task| {
            let subject = of_group(task.names[0], task.names.len());
            (task.issue, DraftTask::local(op(task.parts), subject, carrier))
        })
    }
}
