//! Joint derivations: what one gather brought, derived by one task.
//!
//! Law: parts are joined that one gather brought and that are due for one call at one stage, so nobody waits
//! for planes of another gather because of it. What it is for: beside a matrix product a kernel waits until a
//! multiprocessor is given up, and before a call it has the device to itself, mostly idle; a kernel for each
//! of six weights waits, or idles, six times. A task that touches [`ENOUGH`] bytes takes no more parts: one
//! more kernel is little beside that, and planes that are read live no longer than they must.

use std::collections::HashMap;

use super::super::draft::{Carrier, Draft, DraftTask, Supply};
use super::of_group;
use crate::op::Op;
use warpweft_base::id::SlotId;

/// At 3 TB/s some 20 µs, of which a launch of its own is a tenth to a fifth.
const ENOUGH: usize = 64 << 20;

/// What is derived for one call, `P` for every weight.
pub(super) struct Joined<'a, P> {
    tasks: Vec<Task<'a, P>>,
    /// Which of them was the last for what a gather brought, at a stage.
    last: HashMap<(SlotId, usize), usize>,
}

struct Task<'a, P> {
    issue: usize,
    /// Of the weights, each once.
    names: Vec<&'a str>,
    bytes: usize,
    parts: Vec<P>,
}

impl<'a, P> Joined<'a, P> {
    pub(super) fn new() -> Self {
        Self { tasks: Vec::new(), last: HashMap::new() }
    }

    /// Derives `part` at stage `issue` of the planes of `supply`, into slot `to`; after what was added before.
    pub(super) fn add(
        &mut self,
        draft: &Draft<'_>,
        (supply, to): (Supply, SlotId),
        issue: usize,
        name: &'a str,
        part: P,
    ) {
        let bytes = draft.bytes(supply.slot).saturating_add(draft.bytes(to));
        let last = self.last.get(&(supply.gather, issue)).and_then(|place| self.tasks.get_mut(*place));
        match last.filter(|task| task.bytes < ENOUGH) {
            Some(task) => {
                task.bytes = task.bytes.saturating_add(bytes);
                task.parts.push(part);
                // Values of two types are two parts of one weight, one after the other.
                if task.names.last() != Some(&name) {
                    task.names.push(name);
                }
            }
            None => {
                self.last.insert((supply.gather, issue), self.tasks.len());
                self.tasks.push(Task { issue, names: vec![name], bytes, parts: vec![part] });
            }
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
