//! Progress of a rank's lanes, in words that streams write and the host reads while they run.
//!
//! Law: a word says what its writer said last. It decides nothing except whether a rank still makes progress,
//! which words an error uses, whether training can go on from what the optimizer left, and which gradient or count a
//! report names.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::collective_names::CollectiveNames;
use crate::device::address::DeviceAddress;
use crate::device::context::Context;
use crate::device::memory::PinnedWords;
use crate::failure::CudaFailure;
use warpweft_backend::bell::lock;
use warpweft_backend::local::WrittenCounts;
use warpweft_backend::{ClosureFault, Inspection};
use warpweft_base::id::{CallId, LaneId, TaskId, WeightId};

/// The most lanes of one rank: each has a word that the host reads, in memory that is pinned once. Compute,
/// quantize, sum and the most communicators that meet (8) are eleven; a plan made by hand with more is
/// refused when its lanes are opened.
pub(crate) const LANES: usize = 16;

/// Counts that calls of a plan write, each with its call.
pub(crate) type CheckedCounts = Vec<(CallId, WrittenCounts)>;

/// Words that say which of them is above its capacity, counted from 1, in which slot, and what it is.
const OVERFLOW: usize = 3;

/// One word per lane, one after them for the state of the optimizer, one for gradients, and those of counts.
#[derive(Debug)]
pub(crate) struct Progress {
    words: PinnedWords,
    /// Are the gradients of steps inspected once their plans are warm?
    inspects: AtomicBool,
    /// Were some inspected since this was last asked?
    inspected: AtomicBool,
    /// What the plan under way is to do.
    script: Mutex<Arc<CollectiveNames>>,
    /// Which of its counts are checked.
    counts: Mutex<Arc<CheckedCounts>>,
}

impl Progress {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, CudaFailure> {
        let words = PinnedWords::zeroed(context, LANES + 2 + OVERFLOW)?;
        let (inspects, inspected) = (AtomicBool::new(false), AtomicBool::new(false));
        let (script, counts) = (Mutex::default(), Mutex::default());
        Ok(Self { words, inspects, inspected, script, counts })
    }

    /// A step of a plan begins: all lanes are drained, and none has finished a collective of it.
    pub(crate) fn begin(&self, script: &Arc<CollectiveNames>, counts: &Arc<CheckedCounts>) {
        (0..LANES).for_each(|lane| self.words.clear(lane));
        *lock(&self.script) = Arc::clone(script);
        *lock(&self.counts) = Arc::clone(counts);
    }

    /// How far the lanes are, in words.
    pub(crate) fn standing(&self) -> String {
        let script = Arc::clone(&lock(&self.script));
        script.standing(|lane| self.last(lane))
    }

    /// Where a lane leaves the number of the last collective that is done, counted from 1.
    pub(crate) fn lane(&self, lane: LaneId) -> DeviceAddress {
        self.words.address(lane.index())
    }

    /// The last collective of a lane that is done.
    fn last(&self, lane: LaneId) -> Option<TaskId> {
        self.words.read(lane.index()).checked_sub(1).map(TaskId::new)
    }

    /// A number that grows with every collective that is done on any lane, until the next step begins.
    pub(crate) fn moved(&self) -> u64 {
        (0..LANES).map(|lane| u64::from(self.words.read(lane))).sum()
    }

    /// The word that kernels set where training cannot go on from a master or a moment, or where a scale could
    /// not be made.
    pub(crate) fn diverged(&self) -> DeviceAddress {
        self.words.address(LANES)
    }

    /// Whether one of them did since this was last asked. The lanes are drained.
    pub(crate) fn take_diverged(&self) -> bool {
        let has_diverged = self.words.read(LANES) != 0;
        if has_diverged {
            self.words.clear(LANES);
        }
        has_diverged
    }

    /// The words in which checking counts leaves what a fault names.
    pub(crate) fn overflow(&self) -> DeviceAddress {
        self.words.address(LANES + 2)
    }

    /// The fault of a call that counted more rows than there is room for, since this was last asked. The lanes are
    /// drained.
    pub(crate) fn take_overflow(&self) -> Option<ClosureFault> {
        let [number, slot, count] = [0, 1, 2].map(|word| self.words.read(LANES + 2 + word));
        self.words.clear(LANES + 2);
        let counts = lock(&self.counts);
        let (call, written) = counts.get((number as usize).checked_sub(1)?)?;
        Some(written.fault_of(*call, slot as usize, count))
    }

    /// The word in which inspecting a gradient that is not finite leaves its number, counted from 1.
    pub(crate) fn gradients(&self) -> DeviceAddress {
        self.words.address(LANES + 1)
    }

    /// Has the gradients of the coming steps inspected, or no longer.
    pub(crate) fn inspect(&self, on: bool) {
        self.inspects.store(on, Ordering::Relaxed);
    }

    /// Whether they are.
    pub(crate) fn inspects(&self) -> bool {
        self.inspects.load(Ordering::Relaxed)
    }

    /// Inspecting a gradient was enqueued.
    pub(crate) fn inspected(&self) {
        self.inspected.store(true, Ordering::Relaxed);
    }

    /// What inspecting the gradients of a plan found since this was last asked. The lanes are drained.
    pub(crate) fn take_inspection(&self, gradients: &[(CallId, WeightId)]) -> Inspection {
        if !self.inspected.swap(false, Ordering::Relaxed) {
            return Inspection::None;
        }
        let number = self.words.read(LANES + 1) as usize;
        self.words.clear(LANES + 1);
        let found = number.checked_sub(1).and_then(|place| gradients.get(place));
        found.map_or(Inspection::Finite, |(call, weight)| Inspection::NonFinite {
            call: *call,
            weight: *weight,
        })
    }
}
