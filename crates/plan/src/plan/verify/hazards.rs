//! PL-3: accesses to common bytes, of which one is not a read, are ordered.
//!
//! Law: what counts is bytes, not slots: two slots that share a byte conflict like one slot. One
//! sweep over T keeps, for every piece of the arena, its last writer and the last reader of each
//! lane since then. That is enough: the order is transitive, and a lane's last reader speaks for
//! its earlier ones. Writes join the pieces they cover again, so the sweep stays near-linear.

use std::collections::BTreeMap;

use super::order::Order;
use super::{Accesses, Verdict, VerifyError};
use crate::layout::Region;
use crate::model::Access;
use crate::plan::StepPlan;
use warpweft_base::id::{SlotId, TaskId};

/// One access that later ones may conflict with.
#[derive(Clone, Copy)]
struct Touch {
    task: TaskId,
    slot: SlotId,
    access: Access,
}

/// Bytes with one history.
#[derive(Clone, Default)]
struct ArenaPiece {
    end: usize,
    writer: Option<Touch>,
    /// The last reader of each lane since the writer.
    readers: Vec<Touch>,
}

struct Sweep<'p> {
    plan: &'p StepPlan,
    order: &'p Order,
    /// Pieces by their first byte; together they are the arena.
    pieces: BTreeMap<usize, ArenaPiece>,
    ordered: usize,
}

/// Checks every pair and returns how many there were.
pub(super) fn check(plan: &StepPlan, accesses: &Accesses, order: &Order) -> Verdict<usize> {
    let whole = ArenaPiece { end: plan.arena.bytes(), ..ArenaPiece::default() };
    let mut sweep = Sweep { plan, order, pieces: BTreeMap::from([(0, whole)]), ordered: 0 };
    for (position, touched) in accesses.iter().enumerate() {
        for (slot, access) in touched {
            sweep.touch(Touch { task: TaskId::at(position), slot: *slot, access: *access })?;
        }
    }
    Ok(sweep.ordered)
}

impl Sweep<'_> {
    fn touch(&mut self, now: Touch) -> Verdict<()> {
        let region = self.plan.arena.region(now.slot);
        if region.bytes == 0 {
            return Ok(());
        }
        self.cut(region.offset);
        self.cut(region.end());
        for (_, piece) in self.pieces.range(region.offset..region.end()) {
            let readers = if now.access.writes() { piece.readers.as_slice() } else { &[] };
            for earlier in piece.writer.iter().chain(readers) {
                if !self.order.before(earlier.task, now.task) {
                    return Err(self.conflict(*earlier, now));
                }
                self.ordered += 1;
            }
        }
        if now.access.writes() {
            self.join(region, now);
        } else {
            for (_, piece) in self.pieces.range_mut(region.offset..region.end()) {
                let lane = self.order.lane_of(now.task);
                match piece.readers.iter_mut().find(|reader| self.order.lane_of(reader.task) == lane) {
                    Some(reader) => *reader = now,
                    None => piece.readers.push(now),
                }
            }
        }
        Ok(())
    }

    /// Makes `offset` the beginning of a piece.
    pub(crate) fn cut(&mut self, offset: usize) {
        let Some((begin, piece)) = self.pieces.range_mut(..=offset).next_back() else { return };
        if *begin < offset && offset < piece.end {
            let rest = piece.clone();
            piece.end = offset;
            self.pieces.insert(offset, rest);
        }
    }

    /// Makes the pieces of `region` one, with `writer` as its whole history.
    fn join(&mut self, region: Region, writer: Touch) {
        while let Some((begin, _)) = self.pieces.range(region.offset + 1..region.end()).next() {
            let begin = *begin;
            self.pieces.remove(&begin);
        }
        if let Some(piece) = self.pieces.get_mut(&region.offset) {
            piece.end = region.end();
            piece.writer = Some(writer);
            piece.readers.clear();
        }
    }

    fn conflict(&self, earlier: Touch, now: Touch) -> Box<VerifyError> {
        let name = |slot: SlotId| self.plan.arena.slot(slot).name.clone();
        let (mine, theirs) = (self.plan.arena.region(now.slot), self.plan.arena.region(earlier.slot));
        let (begin, end) = (mine.offset.max(theirs.offset), mine.end().min(theirs.end()));
        if earlier.task == now.task {
            let (written, other) = if now.access.writes() { (now, earlier) } else { (earlier, now) };
            return Box::new(VerifyError::Overlap {
                task: self.plan.describe(now.task),
                written: name(written.slot),
                other: name(other.slot),
                begin,
                end,
            });
        }
        let second_slot = if earlier.slot == now.slot {
            "the same slot".to_owned()
        } else {
            format!("slot `{}`, which shares bytes {begin}..{end} with it", name(now.slot))
        };
        let harm = match (earlier.access.writes(), now.access.writes()) {
            (false, _) => "the earlier one may read what the later one writes",
            (true, true) => "either one's bytes may be left, or a mixture",
            (true, false) if earlier.slot == now.slot => "the later one may read before the bytes are there",
            (true, false) => "the later one may read the earlier one's bytes for its own",
        };
        let lane = self.plan.lanes[self.order.lane_of(earlier.task)].kind;
        let known = match self.order.last_before(now.task, earlier.task) {
            Some(last) => {
                format!("on the {lane} lane it waits no further than for {}", self.plan.describe(last))
            }
            None => format!("it waits for nothing on the {lane} lane"),
        };
        Box::new(VerifyError::Race {
            first: self.plan.describe(earlier.task),
            first_access: earlier.access.to_string(),
            first_slot: name(earlier.slot),
            second: self.plan.describe(now.task),
            second_access: now.access.to_string(),
            second_slot,
            known,
            harm: harm.into(),
        })
    }
}
