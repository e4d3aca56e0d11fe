//! The ledger of accesses to bytes, ordered by vector clocks.
//!
//! Laws:
//! - Every lane counts its tasks. Its clock says how many tasks of every lane are surely over when its next
//!   one begins; only recording and waiting for an event carries that from lane to lane.
//! - **PL-3** Two accesses to one byte, at least one of which is not a read, are ordered, or the second is a
//!   hazard. Bytes are compared, not slots: two slots may share them.
//! - **AC-2** A lane gets its tasks in the order of their ids.
//! - A transient slot is read only while it holds what was written to it in this step. What a captured
//!   segment reads and others write is judged when the segment is launched.
//! - A capture is entered by itself. A launch is entered as if its tasks were enqueued then: they run after
//!   what the first lane runs after, and when the launch is over, the first lane knows so and no other.
//! - Of each lane only the last read and the last write of a slot are kept: lanes run in order, so what runs
//!   after the last runs after all. Nothing is allocated after the plan is bound, except for what a capture
//!   holds.

use warpweft_base::id::{EventId, LaneId, TaskId};
use warpweft_plan::layout::{Binding, Region, Residency};
use warpweft_plan::model::Access;
use warpweft_plan::op::{Compute, Op};

/// One rank's step, as far as it is enqueued.
#[derive(Debug)]
pub(super) struct Ledger {
    tasks: Vec<Task>,
    slots: Vec<Slot>,
    lanes: Vec<LaneProgress>,
    events: Vec<Event>,
    /// The lanes that are captured, while something is captured.
    forked: Vec<LaneId>,
    /// The tasks captured since.
    captured: Vec<TaskId>,
    /// Whether a part of this step was launched.
    launched: bool,
}

/// A task of the bound plan.
#[derive(Debug)]
struct Task {
    op: &'static str,
    lane: LaneId,
    /// Tasks of the plan before it on its lane.
    place: usize,
    /// Whether it is a call that no capture may hold.
    dynamic: bool,
    accesses: Vec<(usize, Access)>,
    /// Two accesses of the task to slots that share bytes, at least one of which is not a read.
    clash: Option<[(usize, Access); 2]>,
}

/// A slot of the layout.
#[derive(Debug)]
struct Slot {
    name: String,
    transient: bool,
    /// Slots that share bytes with this one, itself included; none for an empty slot.
    shares: Vec<usize>,
    /// Last access of every lane.
    last: Vec<LastAccess>,
    content: Content,
}

/// The last accesses of one lane to one slot.
#[derive(Clone, Copy, Debug, Default)]
struct LastAccess {
    read: Option<Moment>,
    write: Option<Moment>,
}

/// A task, and its place on its lane.
#[derive(Clone, Copy, Debug)]
struct Moment {
    task: TaskId,
    tick: usize,
    access: Access,
}

/// What a slot holds.
#[derive(Clone, Copy, Debug)]
enum Content {
    /// Nothing of this step.
    Nothing,
    /// What was written to it.
    Own,
    /// What this task wrote to a slot that shares its bytes.
    Foreign(TaskId, usize),
    /// Whatever it will hold when the segment being captured runs.
    Later,
}

#[derive(Debug)]
struct LaneProgress {
    id: LaneId,
    last: Option<TaskId>,
    /// Tasks of every lane that are over when this lane's next task begins; of this lane itself,
    /// the tasks enqueued.
    clock: Vec<usize>,
}

#[derive(Debug)]
struct Event {
    recorded: bool,
    clock: Vec<usize>,
}

impl Ledger {
    /// The ledger of a plan about to be run.
    pub(super) fn new(binding: &Binding<'_>) -> Self {
        let mut lanes: Vec<LaneId> = binding.ops.iter().map(|(_, lane)| *lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        let shares = sharing(&binding.arena.slots.iter().map(|slot| slot.region).collect::<Vec<_>>());
        let slots = binding.arena.slots.iter().zip(shares).map(|(slot, shares)| Slot {
            name: slot.name.clone(),
            transient: slot.residency == Residency::Transient,
            shares,
            last: vec![LastAccess::default(); lanes.len()],
            content: Content::Nothing,
        });
        let slots: Vec<Slot> = slots.collect();
        let mut places = vec![0; lanes.len()];
        let tasks = binding.ops.iter().map(|(op, lane)| {
            let before = lanes.binary_search(lane).map_or(0, |lane| {
                places[lane] += 1;
                places[lane] - 1
            });
            let calls = binding.calls;
            let dynamic = matches!(op, Op::Compute(Compute { call, .. }) if calls.get(call.index()).is_some_and(|call| call.dynamic));
            let accesses = op.accesses().into_iter().map(|(slot, access)| (slot.index(), access));
            let accesses: Vec<_> = accesses.filter(|(slot, _)| *slot < slots.len()).collect();
            Task { op: op.name(), lane: *lane, place: before, dynamic, clash: clash(&slots, &accesses), accesses }
        });
        let tasks = tasks.collect();
        let zeros = vec![0; lanes.len()];
        Self {
            tasks,
            slots,
            events: (0..binding.events).map(|_| Event { recorded: false, clock: zeros.clone() }).collect(),
            lanes: lanes
                .into_iter()
                .map(|id| LaneProgress { id, last: None, clock: zeros.clone() })
                .collect(),
            forked: Vec::new(),
            captured: Vec::new(),
            launched: false,
        }
    }

    /// A new step: everything before it is over.
    pub(super) fn begin(&mut self) {
        self.launched = false;
        for lane in &mut self.lanes {
            lane.last = None;
            lane.clock.fill(0);
        }
        for event in &mut self.events {
            event.recorded = false;
        }
        for slot in &mut self.slots {
            slot.last.fill(LastAccess::default());
            slot.content = Content::Nothing;
        }
    }

    /// PL-7: judges a finished step of which parts were launched.
    pub(super) fn end(&self) -> Result<(), String> {
        match self.left_out().filter(|_| self.launched) {
            None => Ok(()),
            Some((id, lane)) => Err(format!(
                "the step was launched in segments and ended before {} reached {lane}: it is in no capture, so capture it (PL-7)",
                self.named(id)
            )),
        }
    }

    /// A capture begins on these lanes.
    pub(super) fn fork(&mut self, lanes: Vec<LaneId>) {
        self.begin();
        self.forked = lanes;
        self.captured.clear();
        if self.is_in_segments() {
            self.slots.iter_mut().for_each(|slot| slot.content = Content::Later);
        }
    }

    /// A capture of these tasks is launched, on lanes of which this is the first.
    pub(super) fn launch(&mut self, first: LaneId, tasks: &[TaskId]) -> Result<(), String> {
        self.launched = true;
        if let Some(open) = self.unjoined(first).first() {
            return Err(format!(
                "a capture is launched while {open} has work that {first} does not wait for; captures begin and end on {first}, so \
                 enqueue there what runs between them (PL-7)"
            ));
        }
        for id in tasks {
            let task = &self.tasks[id.index()];
            let own = self.position(task.lane)?;
            let reached = self.lanes[own].clock[own];
            if reached != task.place {
                let is_next = |other: &Task| other.lane == task.lane && other.place == reached;
                let next = self.tasks.iter().position(is_next).map(TaskId::at);
                return Err(format!(
                    "{} is launched on {}, where {} comes next; launch segments and enqueue dynamic calls in the order of the plan, \
                     each once (PL-7)",
                    self.named(*id),
                    task.lane,
                    next.map_or_else(|| "nothing".to_owned(), |next| self.named(next)),
                ));
            }
            for access in &task.accesses {
                self.judge_content(*id, *access)?;
            }
            self.enter(*id, own);
        }
        if let Ok(first) = self.position(first) {
            for lane in 0..self.lanes.len() {
                self.lanes[first].clock[lane] = self.lanes[lane].clock[lane];
            }
        }
        Ok(())
    }

    /// Whether the plan has calls that no capture may hold.
    fn is_in_segments(&self) -> bool {
        self.tasks.iter().any(|task| task.dynamic)
    }

    /// The first task of T that its lane has not reached.
    fn left_out(&self) -> Option<(TaskId, LaneId)> {
        let is_left_out = |(number, task): &(usize, &Task)| {
            let lane = self.lanes.iter().find(|lane| lane.id == task.lane);
            lane.is_some_and(|lane| lane.last.is_none_or(|last| last.index() < *number))
        };
        self.tasks.iter().enumerate().find(is_left_out).map(|(number, task)| (TaskId::at(number), task.lane))
    }

    /// PL-7: judges a capture that ends on these lanes. Returns what is in it.
    pub(super) fn join(&mut self, lanes: &[LaneId]) -> Result<Vec<TaskId>, String> {
        let forked = std::mem::take(&mut self.forked);
        if let Some(open) = forked.iter().find(|lane| !lanes.contains(lane)) {
            let progress = self.lanes.iter().find(|lane| lane.id == *open);
            let after = progress
                .and_then(|lane| lane.last)
                .map_or_else(String::new, |last| format!(", though {} was enqueued there", self.named(last)));
            return Err(format!(
                "the capture began on {open} too and ends without it{after}: a fork that does not join. What that lane does is no \
                 part of the capture, so replays leave it out or run beside it; end the capture on all lanes it began on (PL-7)"
            ));
        }
        match self.left_out().filter(|_| !self.is_in_segments()) {
            None => Ok(std::mem::take(&mut self.captured)),
            Some((id, lane)) => Err(format!(
                "the capture ends before {} is enqueued on {lane}; every replay would leave it out, so enqueue the whole plan \
                 before the capture ends (PL-7)",
                self.named(id)
            )),
        }
    }

    /// Judges a task, and enters it if nothing speaks against it.
    pub(super) fn enqueue(&mut self, lane: LaneId, id: TaskId) -> Result<(), String> {
        let task = self.tasks.get(id.index()).ok_or_else(|| format!("{id} is not in the bound plan"))?;
        if task.lane != lane {
            return Err(format!("{} belongs to {}, not to {lane}", self.named(id), task.lane));
        }
        if task.dynamic && !self.forked.is_empty() {
            return Err(format!(
                "{} is a dynamic call and is enqueued while a segment is captured; end the capture before it, enqueue it in every \
                 step, and begin another after it (PL-7)",
                self.named(id)
            ));
        }
        let own = self.position(lane)?;
        if let Some(last) = self.lanes[own].last
            && last >= id
        {
            let (late, last) = (self.named(id), self.named(last));
            return Err(format!(
                "{late} is enqueued on {lane} after {last}; a lane gets its tasks in plan order"
            ));
        }
        if let Some([(one, first), (two, second)]) = task.clash {
            let (one, two, task) = (&self.slots[one].name, &self.slots[two].name, self.named(id));
            return Err(format!("{task} {first} `{one}` and {second} `{two}`, which share bytes"));
        }
        for access in &task.accesses {
            self.judge_order(id, own, *access)?;
            self.judge_content(id, *access)?;
        }
        self.enter(id, own);
        if !self.forked.is_empty() {
            self.captured.push(id);
        }
        Ok(())
    }

    /// Enters the record of an event.
    pub(super) fn record(&mut self, lane: LaneId, id: EventId) -> Result<(), String> {
        let own = self.position(lane)?;
        let event =
            self.events.get_mut(id.index()).ok_or_else(|| format!("{id} is not in the bound plan"))?;
        if event.recorded {
            return Err(format!("{lane} records {id}, which was recorded before in this step"));
        }
        event.recorded = true;
        event.clock.copy_from_slice(&self.lanes[own].clock);
        Ok(())
    }

    /// Enters a wait for an event.
    pub(super) fn wait(&mut self, lane: LaneId, id: EventId) -> Result<(), String> {
        let own = self.position(lane)?;
        let event = self.events.get(id.index()).ok_or_else(|| format!("{id} is not in the bound plan"))?;
        if !event.recorded {
            return Err(format!(
                "{lane} waits for {id}, which nothing has recorded in this step, or in this segment of it"
            ));
        }
        for (known, learned) in self.lanes[own].clock.iter_mut().zip(&event.clock) {
            *known = (*known).max(*learned);
        }
        Ok(())
    }

    /// Lanes with tasks that `first` does not know to be over.
    pub(super) fn unjoined(&self, first: LaneId) -> Vec<LaneId> {
        let clock = self.lanes.iter().find(|lane| lane.id == first).map(|lane| &lane.clock);
        let open = |(position, lane): &(usize, &LaneProgress)| {
            clock.map_or(0, |clock| clock[*position]) < lane.clock[*position]
        };
        self.lanes.iter().enumerate().filter(open).map(|(_, lane)| lane.id).collect()
    }

    fn position(&self, lane: LaneId) -> Result<usize, String> {
        let found = self.lanes.iter().position(|other| other.id == lane);
        found.ok_or_else(|| format!("the bound plan has no task on {lane}"))
    }

    /// An access against earlier ones on other lanes.
    fn judge_order(&self, id: TaskId, own: usize, (slot, access): (usize, Access)) -> Result<(), String> {
        for other in &self.slots[slot].shares {
            for (lane, last) in self.slots[*other].last.iter().enumerate() {
                let read = last.read.filter(|_| access.writes());
                let unordered = |moment: &Moment| self.lanes[own].clock[lane] < moment.tick;
                let clash = [last.write, read].into_iter().flatten().find(unordered);
                if let Some(earlier) = clash {
                    return Err(format!(
                        "{} {access} `{}` on {}, but {} {} `{}` on {}, and nothing orders the two: {} must first \
                         wait for an event recorded on {} after {}",
                        self.named(id),
                        self.slots[slot].name,
                        self.lanes[own].id,
                        self.named(earlier.task),
                        earlier.access,
                        self.slots[*other].name,
                        self.lanes[lane].id,
                        self.lanes[own].id,
                        self.lanes[lane].id,
                        earlier.task,
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that a transient slot holds what the task wants to read.
    fn judge_content(&self, id: TaskId, (slot, access): (usize, Access)) -> Result<(), String> {
        let Slot { name, transient, shares, content, .. } = &self.slots[slot];
        if !transient || !access.reads() || shares.is_empty() {
            return Ok(());
        }
        match content {
            Content::Own | Content::Later => Ok(()),
            Content::Nothing => {
                Err(format!("{} {access} `{name}`, which nothing has written in this step", self.named(id)))
            }
            Content::Foreign(writer, other) => Err(format!(
                "{} {access} `{name}`, but {} has overwritten its bytes with `{}`",
                self.named(id),
                self.named(*writer),
                self.slots[*other].name
            )),
        }
    }

    fn enter(&mut self, id: TaskId, own: usize) {
        let lane = &mut self.lanes[own];
        lane.last = Some(id);
        lane.clock[own] += 1;
        let tick = lane.clock[own];
        for (slot, access) in &self.tasks[id.index()].accesses {
            let moment = Some(Moment { task: id, tick, access: *access });
            let last = &mut self.slots[*slot].last[own];
            if access.reads() {
                last.read = moment;
            }
            if access.writes() {
                last.write = moment;
                for position in 0..self.slots[*slot].shares.len() {
                    let other = self.slots[*slot].shares[position];
                    self.slots[other].content = Content::Foreign(id, *slot);
                }
                self.slots[*slot].content = Content::Own;
            }
        }
    }

    fn named(&self, id: TaskId) -> String {
        format!("{id} ({})", self.tasks.get(id.index()).map_or("unknown", |task| task.op))
    }
}

/// Two accesses of one task that must not share bytes, but do.
fn clash(slots: &[Slot], accesses: &[(usize, Access)]) -> Option<[(usize, Access); 2]> {
    let mut by_slot = accesses.to_vec();
    by_slot.sort_unstable_by_key(|(slot, _)| *slot);
    accesses.iter().filter(|(_, access)| access.writes()).find_map(|writer| {
        slots[writer.0].shares.iter().filter(|other| **other != writer.0).find_map(|other| {
            let position = by_slot.binary_search_by_key(other, |(slot, _)| *slot).ok()?;
            Some([by_slot[position], *writer])
        })
    })
}

/// For every region, the regions that share bytes with it, itself included.
fn sharing(regions: &[Region]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..regions.len()).filter(|position| regions[*position].bytes > 0).collect();
    order.sort_unstable_by_key(|position| regions[*position].offset);
    let mut shares = vec![Vec::new(); regions.len()];
    for (rank, first) in order.iter().enumerate() {
        shares[*first].push(*first);
        for second in &order[rank + 1..] {
            if regions[*second].offset >= regions[*first].end() {
                break;
            }
            shares[*first].push(*second);
            shares[*second].push(*first);
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_share_bytes_with_themselves_and_their_overlaps_alone() {
        let region = |offset, bytes| Region { offset, bytes };
        let shares = sharing(&[region(0, 10), region(10, 10), region(5, 10), region(12, 0), region(30, 1)]);
        assert_eq!(shares[0], [0, 2]);
        assert_eq!(shares[1], [2, 1]);
        assert_eq!(shares[2], [0, 2, 1]);
        assert!(shares[3].is_empty());
        assert_eq!(shares[4], [4]);
    }
}
