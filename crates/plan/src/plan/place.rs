//! The run of the passes: a request and a timetable become tasks in issue order and slots with addresses.
//!
//! Law: passes run in one order, then the arena is laid out; nothing is chosen here, so a candidate that is
//! only tried and the plan that is kept are made alike.

use super::arena::{self, Peak};
use super::dependences::TaskAccesses;
use super::draft::{Carrier, Draft, DraftTask};
use super::lanes::Lanes;
use super::prefetch::{Demand, Timetable};
use super::resident::{ResidentLayout, add_slot};
use super::step_plan::Policy;
use super::{Costs, PlanError, passes};
use crate::layout::{Lane, Residency, Slot, Weights};
use crate::model::{Accumulation, BufferSpec, Call};
use crate::op::Op;
use warpweft_base::id::{LaneId, TaskId};

/// A planning request.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) name: &'a str,
    pub(super) micro_batches: u32,
    pub(super) calls: &'a [Call],
    pub(super) buffers: &'a [BufferSpec],
    pub(super) updates_weights: bool,
    pub(super) accumulation: Accumulation,
    pub(super) weights: &'a Weights,
    pub(super) resident: &'a ResidentLayout,
    pub(super) policy: &'a Policy,
    pub(super) costs: Option<&'a Costs>,
    /// May tasks wait for memory where that keeps the budget?
    pub(super) waits: bool,
    /// A hand schedule, in place of the policy's.
    pub(super) issues: Option<&'a [usize]>,
}

/// Tasks in issue order, slots with addresses, and what both need.
pub(super) struct Placed {
    pub(super) tasks: Vec<DraftTask>,
    /// What each task touches.
    pub(super) accesses: Vec<TaskAccesses>,
    pub(super) slots: Vec<Slot>,
    pub(super) lanes: Vec<Lane>,
    pub(super) lanes_of: Vec<LaneId>,
    pub(super) releases: Vec<Option<TaskId>>,
    /// From which task to which each slot is used, and held.
    pub(super) lives: Vec<arena::Life>,
    pub(super) holds: Vec<arena::Life>,
    pub(super) peak: Peak,
    pub(super) transient_bytes: usize,
}

/// Runs the passes and lays out the arena.
pub(super) fn place(
    request: &Request<'_>,
    policy: &Policy,
    demands: &[Demand<'_>],
    timetable: &Timetable,
) -> Result<Placed, PlanError> {
    let is_prologue = request.calls.is_empty();
    let residents =
        if is_prologue { request.resident.common() } else { request.resident.slots(request.name) };
    let mut draft = Draft::new(request.calls, request.buffers, request.weights, policy, residents);
    draft.continues = request.accumulation.continues();
    draft.updates = request.updates_weights;
    if !is_prologue {
        passes::gather(&mut draft, demands, timetable);
        passes::columnwise(&mut draft);
        passes::dense(&mut draft);
        let buffers = passes::buffers(&mut draft);
        passes::compute(&mut draft, &buffers);
        passes::assemble(&mut draft);
    }
    if is_prologue {
        passes::quantize(&mut draft, None);
    } else if request.calls.iter().any(|call| !call.gradients.is_empty()) {
        passes::reduce(&mut draft, timetable.reductions);
    }
    if request.updates_weights {
        let vote = passes::optimize(&mut draft);
        passes::quantize(&mut draft, Some(vote));
    }
    let (tasks, mut slots) = draft.finish();
    check_size(request.resident.bytes(), &slots)?;
    let accesses: Vec<TaskAccesses> = tasks.iter().map(|task| task.op.accesses()).collect();
    let lives = arena::lives(&accesses, slots.len());
    let lanes = Lanes::new(policy, request.weights.mesh);
    let lanes_of: Vec<LaneId> = tasks.iter().map(|task| lanes.of(task.carrier)).collect();
    let releases = releases(&tasks, request.calls.len());
    let brings: Vec<bool> = tasks.iter().map(|task| task.op.is_collective()).collect();
    let paces: Vec<LaneId> = tasks.iter().map(|task| lanes.of(paced_by(task.carrier))).collect();
    let compute = lanes.of(Carrier::Compute);
    let holds = arena::holds(&slots, &accesses, (&paces, compute), &brings, &releases, &lives);
    let peak = arena::peak(&slots, &lives, tasks.len());
    let (base, budget) = (request.resident.bytes(), policy.budget.filter(|_| request.waits));
    let transient_bytes = arena::place(&mut slots, &lives, &holds, base, peak.bytes, budget);
    Ok(Placed {
        tasks,
        accesses,
        slots,
        lanes: lanes.all,
        lanes_of,
        releases,
        lives,
        holds,
        peak,
        transient_bytes,
    })
}

/// Could the arena hold all slots, even if none shared a byte? Then no sum of their sizes overflows.
fn check_size(resident: usize, slots: &[Slot]) -> Result<(), PlanError> {
    let mut transient = slots.iter().filter(|slot| slot.residency == Residency::Transient);
    transient.try_fold(resident, |sum, slot| add_slot(sum, &slot.name, slot.region.bytes)).map(|_| ())
}

/// The lane whose tasks before say how early a task is expected to start. What the sum lane makes could start
/// earlier than after the quantize lane's tasks; holding its bytes from then on made arenas a tenth larger
/// for nothing that a call waits for.
const fn paced_by(carrier: Carrier) -> Carrier {
    match carrier {
        Carrier::Sum => Carrier::Quantize,
        other => other,
    }
}

/// The compute task after which each gather may begin: that of its call or, where this is a collective, of the last
/// call before it.
fn releases(drafted: &[DraftTask], calls: usize) -> Vec<Option<TaskId>> {
    let mut compute_tasks = vec![None; calls];
    let mut last = None;
    for (position, task) in drafted.iter().enumerate() {
        let Some(call) = task.op.call() else { continue };
        if matches!(task.op, Op::Compute(_)) {
            last = Some(TaskId::at(position));
        }
        compute_tasks[call.index()] = last;
    }
    drafted.iter().map(|task| task.release.and_then(|call| compute_tasks[call.index()])).collect()
}
