//! What a call reads of gathered planes, made right before it or a call ahead (`derive_ahead`).

use super::*;

/// Formats whose values the calls of [`chain`] read from a dequantized copy, and as they were gathered.
const READ: [Format; 2] = [Format::NVFP4_2D, Format::F32];

/// Depth and chunk of a plan.
const WAYS: [(u32, Option<usize>); 4] = [(1, None), (2, None), (3, None), (2, Some(1024))];

fn built(format: Format, ahead: bool, (depth, chunk): (u32, Option<usize>)) -> StepPlan {
    let policy = Policy { derive_ahead: ahead, chunk, ..policy(depth) };
    StepPlan::build(&chain(6, format), &policy, Mesh::new(2).unwrap()).unwrap()
}

/// The tasks that make what a call reads, dense values or gathered planes made whole, each with its position, and with how many calls begin behind it up to
/// the one that reads it.
fn makers(plan: &StepPlan) -> Vec<(usize, &Task, usize)> {
    let is_call = |task: &&Task| matches!(task.op, Op::Compute { .. });
    let maker = |(position, task): (usize, &'_ Task)| {
        let made = match &task.op {
            Op::Dequantize { to, .. } => *to,
            Op::Assemble { parts } => parts[0].to,
            _ => return None,
        };
        let reads = |(slot, access): &(SlotId, Access)| *slot == made && access.reads();
        let behind = &plan.tasks[position + 1..];
        let reader = behind.iter().position(|task| task.op.accesses().iter().any(reads))?;
        is_call(&&behind[reader]).then(|| (position, behind[..=reader].iter().filter(is_call).count()))
    };
    let tasks = plan.tasks.iter().enumerate();
    tasks
        .filter_map(|(at, task)| maker((at, task)).map(|(position, calls)| (position, task, calls)))
        .collect()
}

/// The lane of the first task of a kind.
fn lane(plan: &StepPlan, kind: impl Fn(&Op) -> bool) -> warpweft::id::LaneId {
    plan.tasks[position(plan, |op, _| kind(op))].lane
}

/// As a call computes, the one before it on the compute lane is over: what stands between the two there holds it up, and what is made beside the one
/// before does not.
#[test]
fn what_a_call_reads_is_made_on_its_lane_right_before_it_or_beside_the_call_before_on_the_quantize_lane() {
    for format in READ {
        for way in WAYS {
            for ahead in [false, true] {
                let plan = built(format, ahead, way);
                let compute = lane(&plan, |op| matches!(op, Op::Compute { .. }));
                let quantize = lane(&plan, |op| matches!(op, Op::Transpose { .. }));
                let (expected, calls) = if ahead { (quantize, 2) } else { (compute, 1) };
                let makers = makers(&plan);
                // Six uses in forward, six in backward; where planes are read as they lie, those that were transposed have another maker.
                assert_eq!(makers.len(), if format == Format::F32 { 6 } else { 12 }, "{format}, {way:?}");
                for (position, task, between) in makers {
                    let at =
                        format!("{format}, {way:?}, ahead: {ahead}, task {position} of {}", task.subject);
                    assert_eq!((task.lane, between), (expected, calls), "{at}");
                }
            }
        }
    }
}

/// PL-2: ahead too, a gather or the last of its chunks has one assemble behind it, which stands before all that reads it.
#[test]
fn planes_are_made_whole_once_and_behind_their_last_chunk_ahead_too() {
    for format in READ {
        for way in WAYS {
            let (plan, usual) = (built(format, true, way), built(format, false, way));
            let mut whole = 0;
            for (position, task) in plan.tasks.iter().enumerate() {
                let Op::Assemble { parts } = &task.op else { continue };
                let to = parts[0].to;
                let touches = |task: &Task| task.op.accesses().iter().any(|(slot, _)| *slot == to);
                let comes = |task: &Task| matches!(task.op, Op::AllGather { .. } | Op::GatherChunk { .. });
                let before = plan.tasks[..position].iter().filter(|task| touches(task));
                let behind = plan.tasks[position + 1..].iter().filter(|task| touches(task));
                assert!(before.clone().count() > 0 && before.clone().all(comes), "{format}, {way:?}");
                assert!(behind.clone().count() > 0 && !behind.clone().any(comes), "{format}, {way:?}");
                whole += 1;
            }
            let assembles = |task: &&Task| matches!(task.op, Op::Assemble { .. });
            assert_eq!(whole, usual.tasks.iter().filter(assembles).count(), "{format}, {way:?}");
        }
    }
}

/// AC-2. Where pieces of a step move a lane's tasks, they move an owner's whole list with it or none of it.
#[test]
fn every_owner_s_tasks_are_on_one_lane_ahead_too() {
    use warpweft::actor::{ActorKind, Roster};
    for format in READ {
        for ahead in [false, true] {
            let plan = built(format, ahead, (2, None));
            let roster = Roster::new(&plan);
            for (actor, kind) in roster.actors.iter().enumerate() {
                let of = plan.tasks.iter().zip(&roster.owners).filter(|(_, owner)| owner.index() == actor);
                let mut lanes: Vec<_> = of.map(|(task, _)| task.lane).collect();
                lanes.dedup();
                assert!(lanes.len() == 1 || matches!(kind, ActorKind::Bucket(_)), "{kind:?} on {lanes:?}");
            }
        }
    }
}

#[test]
fn gathers_on_demand_leave_no_time_to_derive_ahead_so_their_plan_stays_as_it_was() {
    for format in READ {
        for chunk in [None, Some(1024)] {
            let (ahead, usual) = (built(format, true, (0, chunk)), built(format, false, (0, chunk)));
            assert_eq!(ahead.tasks, usual.tasks, "{format}");
            assert_eq!(ahead.arena, usual.arena, "{format}");
        }
    }
}

#[test]
fn deriving_ahead_costs_the_dense_values_of_one_more_call() {
    let live = |ahead| built(Format::NVFP4_2D, ahead, (2, None)).bounds.live_bytes;
    let more = live(true) - live(false);
    assert!(more > 0 && more <= 64 * 64 * 4, "{more}");
}
