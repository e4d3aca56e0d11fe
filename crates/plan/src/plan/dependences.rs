//! Dependences between tasks, derived from their accesses in issue order.
//!
//! Law: T read as a sequential program defines the meaning of the step; an edge is drawn wherever
//! swapping two tasks could change it. A *lease* edge carries content from its writer to a reader;
//! a *credit* edge carries the right to overwrite from the last accessors of old content to the
//! next writer, in the same slot or in slots that share its bytes; a *release* edge carries the
//! right to begin, from the call that bounds the prefetch depth to the gather. Lane order and fences are not
//! consulted here; they must cover these edges, and flow control passes messages along them.

use std::collections::BTreeMap;

use crate::layout::{ArenaLayout, Region, Residency};
use crate::model::Access;
use warpweft_base::id::{SlotId, TaskId};

/// What one task touches.
pub(super) type TaskAccesses = Vec<(SlotId, Access)>;

/// What an edge carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EdgeKind {
    /// Content, from its last writer to a reader.
    Lease,
    /// The right to overwrite, from an accessor of the old content to the next writer.
    Credit,
    /// The right to begin, from the call that bounds the prefetch depth to a gather.
    Release,
}

/// One dependence between two tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Edge {
    /// The task that must come first.
    pub from: TaskId,
    /// The task that must come after.
    pub to: TaskId,
    /// The slot `from` accessed; for a release, the slot the gather fills.
    pub slot: SlotId,
    /// What is carried.
    pub kind: EdgeKind,
}

/// Accessors of a slot's present content.
#[derive(Default, Clone)]
struct Tenancy {
    writer: Option<TaskId>,
    readers: Vec<TaskId>,
}

/// All dependences of tasks with these accesses, ordered by their later task.
pub(super) fn dependences(accesses: &[TaskAccesses], arena: &ArenaLayout) -> Vec<Edge> {
    let mut tenancies: Vec<Tenancy> = vec![Tenancy::default(); arena.slots.len()];
    let mut owners = Owners::default();
    let mut edges = Vec::new();
    for (position, touched) in accesses.iter().enumerate() {
        let to = TaskId::at(position);
        for (slot, access) in touched {
            let tenancy = &tenancies[slot.index()];
            if tenancy.writer.is_none() && tenancy.readers.is_empty() && is_transient(arena, *slot) {
                for old in owners.take(arena.region(*slot), *slot) {
                    credits(&tenancies[old.index()], to, old, Access::Write, &mut edges);
                }
            }
            let tenancy = &mut tenancies[slot.index()];
            if let (true, Some(from)) = (access.reads(), tenancy.writer) {
                edges.push(Edge { from, to, slot: *slot, kind: EdgeKind::Lease });
            }
            if access.writes() {
                credits(tenancy, to, *slot, *access, &mut edges);
                tenancy.writer = Some(to);
                tenancy.readers.clear();
            } else {
                tenancy.readers.push(to);
            }
        }
    }
    edges
}

fn is_transient(arena: &ArenaLayout, slot: SlotId) -> bool {
    arena.slot(slot).residency == Residency::Transient
}

/// Every accessor of the old content hands its credit to the next writer. A writer without
/// readers hands it over itself, unless the next task takes over its content by a lease.
fn credits(tenancy: &Tenancy, to: TaskId, slot: SlotId, access: Access, edges: &mut Vec<Edge>) {
    for from in &tenancy.readers {
        edges.push(Edge { from: *from, to, slot, kind: EdgeKind::Credit });
    }
    if let (true, Some(from), false) = (tenancy.readers.is_empty(), tenancy.writer, access.reads()) {
        edges.push(Edge { from, to, slot, kind: EdgeKind::Credit });
    }
}

/// Which slot's content lies at which bytes of the transient region.
#[derive(Default)]
struct Owners {
    /// First byte to one past the last, and the owner.
    ranges: BTreeMap<usize, (usize, SlotId)>,
}

impl Owners {
    /// Hands `region` to `slot` and returns whose content it ends, each owner once.
    fn take(&mut self, region: Region, slot: SlotId) -> Vec<SlotId> {
        if region.bytes == 0 {
            return Vec::new();
        }
        let touching: Vec<(usize, (usize, SlotId))> = self
            .ranges
            .range(..region.end())
            .rev()
            .take_while(|(_, (end, _))| *end > region.offset)
            .map(|(begin, owner)| (*begin, *owner))
            .collect();
        let mut old = Vec::new();
        for (begin, (end, owner)) in touching {
            self.ranges.remove(&begin);
            if begin < region.offset {
                self.ranges.insert(begin, (region.offset, owner));
            }
            if end > region.end() {
                self.ranges.insert(region.end(), (end, owner));
            }
            if !old.contains(&owner) {
                old.push(owner);
            }
        }
        self.ranges.insert(region.offset, (region.end(), slot));
        old
    }
}
