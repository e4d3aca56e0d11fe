//! A lower bound on the time of a plan's tasks in any order.
//!
//! Law: every constraint here holds in any schedule that computes the same: content before its reader; calls
//! one after the other, in program order; one thing at a time on a link, on the quantize lane and on the
//! host; a call after all gathers that it and the calls before it need; a task after the launches of itself
//! and of what it cannot do without. Memory, prefetch and contention are left out, but for collectives that the
//! cluster gives one link at a time, so a plan may be above the bound and the best still be found. The order of
//! the plan enters nowhere but along the compute lane. Where lanes contend, tasks take longer and never less, so
//! the bound of the step holds there too; that of exposed communication does not, for calls that are slowed
//! beside collectives hide more of them.
//!
//! With G(c) the time of all gathers that calls up to c need, and C(c) that of the calls before c, call c
//! cannot begin before G(c), and `G(c) − C(c)` is exposed; so is what remains of the collectives that come up
//! after a call once the compute after it is taken off. All reductions are over no earlier than the
//! schedule that serves them in the order in which they come up, which is the shortest for one link
//! (Jackson's rule, with release times and no due dates).

use super::Costs;
use crate::cluster::Reach;
use crate::op::Op;
use crate::plan::{StepPlan, Task};
use warpweft_base::id::LaneId;

pub(super) struct Bounds {
    pub(super) exposed: u64,
    pub(super) step: u64,
}

pub(super) fn bounds(plan: &StepPlan, nanoseconds: &[f64], costs: &Costs) -> Bounds {
    let (launch, replay) = costs.host();
    let compute = plan.compute_lane();
    let mut producers: Vec<Option<usize>> = vec![None; plan.arena.slots.len()];
    let mut ends = vec![0.0f64; plan.tasks.len()];
    // Which gathers a task's content comes from, until a call has needed them.
    let mut pending: Vec<Vec<usize>> = vec![Vec::new(); plan.tasks.len()];
    let mut counted = vec![false; plan.tasks.len()];
    let mut host = Launches::new(plan.tasks.len());
    let mut links = Links::new(plan, costs);
    // Compute that is over when a task's operands are there at the earliest.
    let mut after = vec![0.0f64; plan.tasks.len()];
    let (mut calls_end, mut computed, mut exposed) = (0.0f64, 0.0f64, 0.0f64);
    for (position, task) in plan.tasks.iter().enumerate() {
        let accesses = task.op.accesses();
        let mut ready = 0.0f64;
        // Each once: a collective and what is made of it have one slot for every weight of a group.
        let reads = accesses.iter().filter(|(_, access)| access.reads());
        let sources = distinct(reads.filter_map(|(slot, _)| producers[slot.index()]).collect());
        let mut gathers = Vec::new();
        for producer in sources.iter().copied() {
            ready = ready.max(ends[producer]);
            after[position] = after[position].max(after[producer]);
            gathers.extend(pending[producer].iter().copied().filter(|gather| !counted[*gather]));
        }
        pending[position] = distinct(gathers);
        host.producers.push(sources);
        let launches = host.needed(position, task.lane == compute);
        ready = ready.max(replay as f64 + launch as f64 * launches as f64);
        let time = nanoseconds[position];
        if task.op.is_gather() {
            pending[position].push(position);
        }
        if task.lane == compute {
            for gather in std::mem::take(&mut pending[position]) {
                if !std::mem::replace(&mut counted[gather], true) {
                    let Task { lane, op, .. } = &plan.tasks[gather];
                    links.need(*lane, costs.reach(op), nanoseconds[gather]);
                }
            }
            let needed = links.needed();
            exposed = exposed.max(needed - computed);
            computed += time;
            after[position] = computed;
            ready = ready.max(calls_end).max(needed);
            calls_end = ready + time;
        }
        if matches!(task.op, Op::GradNorm(_)) {
            exposed = exposed.max(links.left_over(computed));
            ready = ready.max(links.all_over());
        }
        if task.lane != compute {
            let reach = costs.reach(&task.op);
            links.add(task.lane, reach, (ready, time));
            if task.collective.is_some() {
                links.owe(task.lane, reach, (after[position], time));
            }
        }
        ends[position] = ready + time;
        for (slot, _) in accesses.iter().filter(|(_, access)| access.writes()) {
            producers[slot.index()] = Some(position);
        }
    }
    let step = ends.iter().copied().fold(links.all_over(), f64::max);
    Bounds { exposed: exposed.max(0.0).round() as u64, step: step.floor() as u64 }
}

fn distinct(mut numbers: Vec<usize>) -> Vec<usize> {
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

/// How many tasks the host has launched at least when a task begins.
struct Launches {
    /// Per task, those whose content it reads.
    producers: Vec<Vec<usize>>,
    /// Per task, a number of launches that no order avoids.
    least: Vec<usize>,
    /// Is a task among those that the compute lane could not do without so far?
    counted: Vec<bool>,
    /// How many are.
    computed: usize,
}

impl Launches {
    fn new(tasks: usize) -> Self {
        Self {
            producers: Vec::with_capacity(tasks),
            least: Vec::with_capacity(tasks),
            counted: vec![false; tasks],
            computed: 0,
        }
    }

    /// On the compute lane: everything that it and the calls before it read, each counted once. Elsewhere:
    /// one more than its latest producer.
    fn needed(&mut self, task: usize, computes: bool) -> usize {
        let latest = self.producers[task].iter().map(|producer| self.least[*producer]).max();
        let mut least = latest.unwrap_or(0) + 1;
        if computes {
            let mut open = vec![task];
            while let Some(next) = open.pop() {
                if !std::mem::replace(&mut self.counted[next], true) {
                    self.computed += 1;
                    open.extend(&self.producers[next]);
                }
            }
            least = least.max(self.computed);
        }
        self.least.push(least);
        least
    }
}

/// What serial resources other than the compute lane have to do: lanes and, where collectives have one link at a
/// time, the collectives of one reach. Those that take both kinds of links fill one of them, and nothing says which:
/// so beside others they count as if they took neither.
struct Links {
    lanes: usize,
    /// Are links resources?
    share: bool,
    /// Per resource, the time of the gathers that were needed so far.
    needed: Vec<f64>,
    /// Per resource, everything it has to do: from when on, for how long.
    jobs: Vec<Vec<(f64, f64)>>,
    /// Per resource, every collective: compute that is over before it may begin, and its time.
    owed: Vec<Vec<(f64, f64)>>,
}

impl Links {
    fn new(plan: &StepPlan, costs: &Costs) -> Self {
        let lanes = plan.lanes.len();
        let all = lanes + 3;
        Self {
            lanes,
            share: costs.one_link(),
            needed: vec![0.0; all],
            jobs: vec![Vec::new(); all],
            owed: vec![Vec::new(); all],
        }
    }

    /// What a task of a lane has to itself while it runs.
    fn taken(&self, lane: LaneId, reach: Option<Reach>) -> impl Iterator<Item = usize> + use<> {
        let place = |reach| match reach {
            Reach::Inside => 0,
            Reach::Between => 1,
            Reach::Both => 2,
        };
        let links = reach.filter(|_| self.share).map(|reach| self.lanes + place(reach));
        std::iter::once(lane.index()).chain(links)
    }

    fn need(&mut self, lane: LaneId, reach: Option<Reach>, time: f64) {
        self.taken(lane, reach).for_each(|one| self.needed[one] += time);
    }

    fn needed(&self) -> f64 {
        self.needed.iter().copied().fold(0.0, f64::max)
    }

    fn add(&mut self, lane: LaneId, reach: Option<Reach>, (ready, time): (f64, f64)) {
        self.taken(lane, reach).for_each(|one| self.jobs[one].push((ready, time)));
    }

    fn owe(&mut self, lane: LaneId, reach: Option<Reach>, (after, time): (f64, f64)) {
        self.taken(lane, reach).for_each(|one| self.owed[one].push((after, time)));
    }

    /// Communication that the compute after which it may begin cannot hide: the maximum over suffixes of the
    /// calls.
    fn left_over(&mut self, computed: f64) -> f64 {
        let mut most = 0.0f64;
        for owed in &mut self.owed {
            owed.sort_by(|one, other| other.0.total_cmp(&one.0));
            let mut sum = 0.0;
            for (after, time) in owed {
                sum += *time;
                most = most.max(sum - (computed - *after));
            }
        }
        most
    }

    /// When the last resource is done at the earliest.
    fn all_over(&mut self) -> f64 {
        let mut latest = 0.0f64;
        for jobs in &mut self.jobs {
            jobs.sort_by(|one, other| one.0.total_cmp(&other.0));
            let over = jobs.iter().fold(0.0f64, |free, (ready, time)| free.max(*ready) + time);
            latest = latest.max(over);
        }
        latest
    }
}
