//! Builds a plan: passes, issue order, addresses, dependences, fences, verification.
//!
//! Law: nothing here decides what is scheduled; it only carries the draft through the stages in
//! order, and it returns no plan that [`verify()`] refuses. What a configuration says beside its policy (replicas,
//! the state of the optimizer, rules for weights) is not requested here: a user plans with
//! `session::plan_program`, which asks, and these doors are hidden from its docs.

use super::arena;
use super::choose::timetable;
use super::collective_calls::check_collective_calls;
use super::dependences::{Edge, EdgeKind, dependences};
use super::fences::fences;
use super::other_model::check_model;
use super::place::{Placed, Request, place};
use super::prefetch::{Demand, demands};
use super::resident::ResidentLayout;
use super::step_plan::{BoundaryState, PlanBounds, Policy, StepPlan, Task};
use super::sums::check_sums;
use super::{Costs, GatherStart, PlanError, verify};
use crate::layout::{ArenaLayout, Lane, LaneKind, WeightLayout, Weights};
use crate::model::{Accumulation, Call, Mesh, StepProgram};
use crate::op::{AllGather, GatherChunk, Op};
use crate::policy::{self, AcrossMicroBatches, ByteSize, Reduce};
use warpweft_base::id::{CallId, CommSeq, Version};

impl StepPlan {
    /// Plans one program that is alone in its session.
    ///
    /// # Errors
    /// As [`StepPlan::within`].
    #[doc(hidden)]
    pub fn build(program: &StepProgram, policy: &Policy, mesh: Mesh) -> Result<Self, PlanError> {
        let weights = Weights::new(program.model().weights(), mesh);
        let resident = ResidentLayout::new(&weights, &[program])?;
        Self::within(program, &weights, &resident, policy)
    }

    /// Plans one of a session's programs, within the session's resident layout.
    ///
    /// # Errors
    /// [`PlanError::Budget`] when the transient bytes exceed the policy's, [`PlanError::TooLarge`] when they
    /// cannot be addressed, [`PlanError::GradientSum`] when gradients written in bf16 would be added on a
    /// rank, [`PlanError::Policy`] for a policy out of range, [`PlanError::OtherModel`] for foreign weights.
    #[doc(hidden)]
    pub fn within(
        program: &StepProgram,
        weights: &Weights,
        resident: &ResidentLayout,
        policy: &Policy,
    ) -> Result<Self, PlanError> {
        build(&request(program, &program.runs(), weights, resident, policy)?)
    }

    /// As [`StepPlan::within`], with costs to count with; [`GatherStart::Auto`] needs them.
    ///
    /// # Errors
    /// As [`StepPlan::within`].
    #[doc(hidden)]
    pub fn timed(
        program: &StepProgram,
        weights: &Weights,
        resident: &ResidentLayout,
        policy: &Policy,
        costs: &Costs,
    ) -> Result<Self, PlanError> {
        build(&Request {
            costs: Some(costs),
            ..request(program, &program.runs(), weights, resident, policy)?
        })
    }

    /// As [`StepPlan::within`], with a schedule made by hand in place of the policy's: for every use of a
    /// sharded weight, in program order, the call whose predecessor must end before the use's gather may
    /// begin. A call later than the use's own means its own; along the uses, calls must not go back. Uses of one call
    /// that name one call share a gather.
    ///
    /// # Errors
    /// As [`StepPlan::within`]; [`PlanError::Schedule`] for a schedule of another length or one that goes back.
    #[doc(hidden)]
    pub fn by_hand(
        program: &StepProgram,
        weights: &Weights,
        resident: &ResidentLayout,
        policy: &Policy,
        issues: &[CallId],
    ) -> Result<Self, PlanError> {
        let issues: Vec<usize> = issues.iter().map(|call| call.index()).collect();
        build(&Request {
            issues: Some(&issues),
            ..request(program, &program.runs(), weights, resident, policy)?
        })
    }

    /// The plan that quantizes the masters as they are: before the first step, and after masters
    /// were imported.
    ///
    /// # Errors
    /// As [`StepPlan::within`].
    #[doc(hidden)]
    pub fn prologue(
        weights: &Weights,
        resident: &ResidentLayout,
        policy: &Policy,
    ) -> Result<Self, PlanError> {
        build(&Request {
            name: "prologue",
            micro_batches: 1,
            calls: &[],
            buffers: &[],
            updates_weights: false,
            accumulation: Accumulation::Whole,
            weights,
            resident,
            policy,
            costs: None,
            waits: true,
            issues: Some(&[]),
        })
    }

    /// Every dependence between tasks of this plan, ordered by the later task.
    #[must_use]
    pub fn edges(&self) -> Vec<Edge> {
        let accesses: Vec<_> = self.tasks.iter().map(|task| task.op.accesses()).collect();
        let mut edges = dependences(&accesses, &self.arena);
        for (to, task) in self.entries() {
            let part = match &task.op {
                Op::AllGather(AllGather { parts, .. }) => parts.first(),
                Op::GatherChunk(GatherChunk { part, .. }) => Some(part),
                _ => None,
            };
            if let (Some(from), Some(part)) = (task.release, part) {
                edges.push(Edge { from, to, slot: part.to, kind: EdgeKind::Release });
            }
        }
        edges.sort_unstable_by_key(|edge| (edge.to, edge.from, edge.slot, edge.kind));
        edges
    }
}

fn request<'a>(
    program: &'a StepProgram,
    calls: &'a [Call],
    weights: &'a Weights,
    resident: &'a ResidentLayout,
    policy: &'a Policy,
) -> Result<Request<'a>, PlanError> {
    check_model(program, weights)?;
    Ok(Request {
        name: program.name(),
        micro_batches: program.micro_batches(),
        calls,
        buffers: program.buffers(),
        updates_weights: program.updates_weights(),
        accumulation: program.accumulation(),
        weights,
        resident,
        policy,
        costs: None,
        waits: true,
        issues: None,
    })
}

fn build(request: &Request<'_>) -> Result<StepPlan, PlanError> {
    if request.policy.across_micro_batches != AcrossMicroBatches::Fit {
        return build_as_requested(request);
    }
    // Planes are gathered again before a task waits for memory.
    let told = |across_micro_batches, waits| {
        let policy = Policy { across_micro_batches, ..*request.policy };
        build_as_requested(&Request { policy: &policy, waits, ..*request })
    };
    match told(AcrossMicroBatches::Keep, false) {
        Err(PlanError::Budget { .. } | PlanError::Prefetch { .. }) => {
            told(AcrossMicroBatches::Regather, true)
        }
        kept => kept,
    }
}

fn build_as_requested(request: &Request<'_>) -> Result<StepPlan, PlanError> {
    check_policy(request.policy)?;
    check_slices(request)?;
    check_sums(request.name, request.calls, request.weights, request.policy.reduce_every)?;
    check_collective_calls(request)?;
    let demands = demands(request.calls, request.weights, request.policy);
    let timetable = timetable(request, &demands)?;
    let placed = place(request, request.policy, &demands, &timetable)?;
    check_budget(request, &demands, &placed)?;
    let plan = assemble(request, placed);
    verify(&plan)?;
    Ok(plan)
}

fn assemble(request: &Request<'_>, placed: Placed) -> StepPlan {
    let Placed { tasks: drafted, accesses, slots, lanes, lanes_of, releases, peak, transient_bytes, .. } =
        placed;
    let arena = ArenaLayout { slots, resident_bytes: request.resident.bytes(), transient_bytes };
    let edges = dependences(&accesses, &arena);
    let mut fences = fences(&lanes_of, lanes.len(), &edges, &releases);
    let mut sequence = vec![0u32; lanes.len()];
    let mut tasks = Vec::with_capacity(drafted.len());
    for (position, task) in drafted.into_iter().enumerate() {
        let lane = lanes_of[position];
        let collective = match lanes[lane.index()].kind {
            LaneKind::Communicator(comm) if task.op.is_collective() => {
                sequence[lane.index()] += 1;
                Some((comm, CommSeq::new(sequence[lane.index()] - 1)))
            }
            _ => None,
        };
        tasks.push(Task {
            op: task.op,
            subject: task.subject,
            lane,
            waits: std::mem::take(&mut fences.waits[position]),
            signals: fences.signals[position],
            collective,
            release: releases[position],
            wire_bytes: task.wire_bytes,
        });
    }
    let notes = delayed_gathers(&tasks, &edges, &lanes);
    let is_prologue = request.calls.is_empty();
    let start = Version::default();
    let end = if request.updates_weights { start.next() } else { start };
    StepPlan {
        name: request.name.to_owned(),
        micro_batches: request.micro_batches,
        calls: request.calls.to_vec(),
        buffers: request.buffers.to_vec(),
        updates_weights: request.updates_weights,
        accumulation: request.accumulation,
        takes_snapshot: false,
        weights: request.weights.clone(),
        policy: *request.policy,
        lanes,
        bounds: PlanBounds {
            resident_bytes: arena.resident_bytes,
            transient_bytes,
            live_bytes: peak.bytes,
            live_weight_bytes: peak.weight_bytes,
            live_peak: peak.task,
            wire_bytes: tasks.iter().fold(0, |sum, task| sum.saturating_add(task.wire_bytes)),
        },
        arena,
        tasks,
        events: fences.events,
        entry: BoundaryState { masters: start, shards: (!is_prologue).then_some(start) },
        exit: BoundaryState { masters: end, shards: Some(end) },
        notes,
    }
}

/// Gathers whose slot is given free only after the call that releases them: prefetch the budget or the layout
/// took back. `edges` are ordered by their later task. Those that wait for the same kind of task are one
/// note.
fn delayed_gathers(tasks: &[Task], edges: &[Edge], lanes: &[Lane]) -> Vec<String> {
    let mut delayed: Vec<((&'static str, LaneKind), Vec<&str>)> = Vec::new();
    for (position, task) in tasks.iter().enumerate().filter(|(_, task)| task.op.is_gather()) {
        let after = edges.partition_point(|edge| edge.to.index() < position);
        let later = edges[after..]
            .iter()
            .take_while(|edge| edge.to.index() == position)
            .filter(|edge| edge.kind == EdgeKind::Credit)
            .map(|edge| edge.from)
            .filter(|from| task.release.is_none_or(|release| *from > release))
            .max();
        if let Some(from) = later {
            let holder = &tasks[from.index()];
            let kind = (holder.op.name(), lanes[holder.lane.index()].kind);
            match delayed.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, subjects)) => subjects.push(task.subject.as_str()),
                None => delayed.push((kind, vec![task.subject.as_str()])),
            }
        }
    }
    delayed.iter().map(|((op, lane), subjects)| delay_note(subjects, op, *lane)).collect()
}

fn delay_note(subjects: &[&str], op: &str, lane: LaneKind) -> String {
    let memory = format!("memory that {op} ({lane} lane) frees only after");
    match subjects {
        [] => String::new(),
        [one] => format!("the gather of {one} takes {memory} the gather's release"),
        [one, other, ..] => format!(
            "{} gathers take {memory} their release; the first are those of {one}, and of {other}",
            subjects.len()
        ),
    }
}

fn check_policy(policy: &Policy) -> Result<(), PlanError> {
    if !policy::COMMUNICATORS.contains(&policy.communicators) {
        return Err(PlanError::Policy {
            key: "communicators",
            value: policy.communicators.to_string(),
            advice: "use 1 (shared), 2 (one for gathers, one for reductions) or 3 (one for sums over replicas, too)",
        });
    }
    if !policy::REDUCE_DELAY.contains(&policy.reduce_delay) {
        return Err(PlanError::Policy {
            key: "reduce_delay",
            value: policy.reduce_delay.to_string(),
            advice: "use from 1 to 16 calls",
        });
    }
    if let GatherStart::Depth(depth) = policy.prefetch
        && depth > GatherStart::MAX_DEPTH
    {
        return Err(PlanError::Policy {
            key: "prefetch.depth",
            value: depth.to_string(),
            advice: "use at most 64 calls ahead",
        });
    }
    Ok(())
}

/// What a collective sums inside of a replica could not go on to slices of the sums.
fn check_slices(request: &Request<'_>) -> Result<(), PlanError> {
    let in_slices = request.weights.layouts.iter().any(WeightLayout::is_in_slices);
    if in_slices && request.policy.reduce == Reduce::Nccl {
        return Err(PlanError::Policy {
            key: "optimizer.shard",
            value: "replicas".to_owned(),
            advice: "take reduce = \"ordered\": NCCL leaves whole rows, and each replica is to sum a slice of them",
        });
    }
    Ok(())
}

fn check_budget(request: &Request<'_>, demands: &[Demand<'_>], placed: &Placed) -> Result<(), PlanError> {
    let Placed { tasks, slots, lives, holds, peak, transient_bytes, .. } = placed;
    let Some(budget) = request.policy.budget.filter(|budget| transient_bytes > budget) else { return Ok(()) };
    // What is requested is what is accepted, with tasks that wait for memory.
    let needed = if request.waits { arena::least(slots, lives, holds) } else { *transient_bytes };
    let alive: Vec<String> = peak
        .alive
        .iter()
        .take(4)
        .map(|slot| &slots[slot.index()])
        .map(|slot| format!("`{}` ({})", slot.name, ByteSize::of(slot.region.bytes).rounded()))
        .collect();
    let moment = tasks
        .get(peak.task.index())
        .map_or_else(|| "nothing".to_owned(), |task| format!("the {} of {}", task.op.name(), task.subject));
    Err(PlanError::Budget {
        program: request.name.to_owned(),
        prefetch: (!demands.is_empty()).then(|| request.policy.prefetch.to_string()),
        // `auto` has taken the timetable of fewest bytes already.
        can_prefetch_less: !demands.is_empty()
            && !matches!(request.policy.prefetch, GatherStart::Depth(0) | GatherStart::Auto),
        needed,
        budget,
        fullest: format!("{moment}, with {}", alive.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathers_that_wait_for_the_same_kind_of_task_are_one_note() {
        let note = |subjects: &[&str]| delay_note(subjects, "compute", LaneKind::Compute);
        assert!(note(&["a"]).starts_with("the gather of a takes memory that compute ("));
        let many = note(&["a", "b", "c", "d"]);
        assert!(
            many.starts_with("4 gathers take memory that compute (") && many.ends_with("of a, and of b"),
            "{many}"
        );
    }
}
