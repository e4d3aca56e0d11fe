//! PL-10 and PL-6 for the slots and buffers of collectives: which ones, their sizes, their contents.

use warpweft_base::id::{BufferId, CallId, SlotId};
use warpweft_format::ElementType;
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Collective, CollectiveKind, Group, Mesh, Model, Phase, StepProgram};
use warpweft_plan::op::{CollectiveCall, Op};
use warpweft_plan::plan::{StepPlan, VerifyError};

use super::collective_calls::{buffer, collective, exchanging_training};
use super::edit::{recount, refused, serialize, slot, spread};
use super::programs::policy;

/// PL-10
#[test]
fn a_collective_of_another_buffer_s_slot_is_refused() {
    let mut plan = exchanging_training();
    spread(&mut plan);
    let (task, other) =
        (collective(&plan, "statistics"), slot(&plan, Content::Buffer(buffer(&plan, "routed"))));
    let Op::CollectiveCall(CollectiveCall { from, .. }) = &mut plan.tasks[task].op else { unreachable!() };
    *from = other;
    serialize(&mut plan);
    recount(&mut plan);
    refused(
        &plan,
        &[
            "PL-10",
            "needs buffer `back` as call `combine` wrote it",
            "buffer `routed` as call `dispatch` wrote it",
        ],
    );
}

/// PL-10
#[test]
fn a_collective_with_its_sides_swapped_is_refused() {
    let mut plan = exchanging_training();
    spread(&mut plan);
    let task = collective(&plan, "dispatch");
    let Op::CollectiveCall(CollectiveCall { from, to, .. }) = &mut plan.tasks[task].op else {
        unreachable!()
    };
    std::mem::swap(from, to);
    serialize(&mut plan);
    refused(&plan, &["PL-10", "needs buffer `given` as call `route` wrote it", "holds nothing"]);
}

/// PL-6
#[test]
fn a_collective_into_another_buffer_s_slot_is_refused() {
    let mut plan = exchanging_training();
    spread(&mut plan);
    let (task, other) = (collective(&plan, "dispatch"), slot(&plan, Content::Buffer(buffer(&plan, "made"))));
    let Op::CollectiveCall(CollectiveCall { to, .. }) = &mut plan.tasks[task].op else { unreachable!() };
    *to = other;
    serialize(&mut plan);
    recount(&mut plan);
    let into = "into slot `made`, which was declared for other content";
    refused(&plan, &["PL-6", "(collective call of dispatch) writes buffer `routed`", into]);
}

/// PL-10. Who reads what a collective leaves needs the collective's value, not the closure's before it.
#[test]
fn what_a_collective_left_and_another_slot_overwrote_is_not_read() {
    let mut plan = exchanging_training();
    spread(&mut plan);
    let [kept, written] = ["sum", "loss"].map(|name| slot(&plan, Content::Buffer(buffer(&plan, name))));
    plan.arena.slots[written.index()].region.offset = plan.arena.region(kept).offset;
    serialize(&mut plan);
    refused(
        &plan,
        &[
            "PL-10",
            "(collective call of copies) needs buffer `sum` as call `statistics` wrote it",
            "(compute of loss) overwrote it through slot `loss`",
        ],
    );
}

/// PL-6. An all-to-all gives each rank its part, everything else gives all to each.
#[test]
fn a_collective_that_says_it_receives_other_bytes_is_refused() {
    for (name, wrong, right) in [("dispatch", 3 * 128, 96), ("statistics", 64, 128), ("copies", 256, 128)] {
        let mut plan = exchanging_training();
        let task = collective(&plan, name);
        plan.tasks[task].wire_bytes = wrong;
        recount(&mut plan);
        let says = format!("says that it receives {wrong} bytes");
        let error = refused(&plan, &["PL-6", &says, &format!("its op receives {right} among")]);
        assert!(matches!(error, VerifyError::Bytes { .. }), "{error}");
    }
}

/// PL-10. Elements that the ranks' number does not fit, types that are not added, and slots with room for more: what
/// is cut into parts, or set after each other, is all bytes of the slot.
#[test]
fn a_collective_of_buffers_that_its_ranks_do_not_fit_is_refused() {
    type Damage = fn(&mut StepPlan);
    let all: [(&str, Damage); 5] = [
        ("gives 32 elements among 2 ranks and gets 63 (all-gather)", |plan| {
            let all = buffer(plan, "all");
            plan.buffers[all.index()].elements = 63;
        }),
        ("gives 31 elements among 4 ranks and gets 31 (all-to-all)", |plan| {
            for name in ["given", "routed"] {
                let odd = buffer(plan, name);
                plan.buffers[odd.index()].elements = 31;
            }
            let task = collective(plan, "dispatch");
            plan.tasks[task].wire_bytes = 31 * 4 / 4 * 3;
        }),
        ("gives elements in u32 and gets some in f32 (all-to-all)", |plan| {
            let given = buffer(plan, "given");
            plan.buffers[given.index()].element = ElementType::U32;
        }),
        ("gives elements in u32 and gets some in u32 (maximum)", |plan| {
            for name in ["loss", "worst"] {
                let whole = buffer(plan, name);
                plan.buffers[whole.index()].element = ElementType::U32;
            }
        }),
        ("gives 384 bytes of slot `given`, but `given` has 128", |plan| {
            let given = slot(plan, Content::Buffer(buffer(plan, "given")));
            plan.arena.slots[given.index()].region.bytes += 256;
            spread(plan);
        }),
    ];
    for (says, damage) in all {
        let mut plan = exchanging_training();
        damage(&mut plan);
        serialize(&mut plan);
        recount(&mut plan);
        refused(&plan, &["PL-10", says]);
    }
}

/// PL-10
#[test]
fn a_collective_of_what_the_plan_does_not_have_is_refused_without_a_panic() {
    const FAR: u32 = 9999;
    type Damage = fn(&mut StepPlan, usize);
    let all: [(&str, Damage); 4] = [
        ("call 9999", |plan, task| {
            let Op::CollectiveCall(CollectiveCall { call, .. }) = &mut plan.tasks[task].op else {
                unreachable!()
            };
            *call = CallId::new(FAR);
        }),
        ("slot 9999", |plan, task| {
            let Op::CollectiveCall(CollectiveCall { to, .. }) = &mut plan.tasks[task].op else {
                unreachable!()
            };
            *to = SlotId::new(FAR);
        }),
        ("buffer 9999", |plan, _| plan.calls[1].collective.as_mut().unwrap().from = BufferId::new(FAR)),
        ("buffer 9999", |plan, _| plan.calls[1].collective.as_mut().unwrap().to = BufferId::new(FAR)),
    ];
    for (names, damage) in all {
        let mut plan = exchanging_training();
        let task = collective(&plan, "dispatch");
        damage(&mut plan, task);
        let error = refused(&plan, &["malformed plan: ", names]);
        assert!(matches!(error, VerifyError::Malformed { .. }), "{error}");
    }
}

/// PL-10. The planner makes no plan of it, and says what to declare.
#[test]
fn buffers_that_the_ranks_of_a_mesh_do_not_fit_are_refused_before_there_is_a_plan() {
    let refusal = |kind, [given, got]: [usize; 2], group| {
        let mut program = StepProgram::builder("collective", &Model::builder().build());
        let from = program.activation("from", given).unwrap();
        let to = program.activation("to", got).unwrap();
        program.call("writes", Phase::Forward).writes(from).add().unwrap();
        program.collective("gives", Phase::Forward, Collective::new(kind, from, to).among(group)).unwrap();
        program.call("reads", Phase::Forward).reads(to).add().unwrap();
        let program = program.build_evaluation().unwrap();
        StepPlan::build(&program, &policy(), Mesh::hybrid(6, 2).unwrap()).err().map(|error| error.to_string())
    };
    let says = |text: &str| Some(format!("program `collective`: collective `gives` {text}"));
    assert_eq!(
        refusal(CollectiveKind::AllGather, [5, 10], Group::Shard),
        says(
            "(all-gather) among 3 ranks gives `from` of 5 elements and gets `to` of 10; declare `to` with 15"
        )
    );
    assert_eq!(
        refusal(CollectiveKind::AllToAll, [9, 9], Group::World),
        says(
            "(all-to-all) among 6 ranks gives `from` of 9 elements and gets `to` of 9; \
             declare both with a multiple of 6"
        )
    );
    assert_eq!(
        refusal(CollectiveKind::Max, [9, 3], Group::World),
        says("(maximum) among 6 ranks gives `from` of 9 elements and gets `to` of 3; declare `to` with 9")
    );
    assert_eq!(
        refusal(CollectiveKind::ReduceScatter, [9, 9], Group::World),
        says(
            "(reduce-scatter) among 6 ranks gives `from` of 9 elements and gets `to` of 9; \
             declare `from` with a multiple of 6"
        )
    );
    assert_eq!(
        refusal(CollectiveKind::ReduceScatter, [9, 9], Group::Shard),
        says(
            "(reduce-scatter) among 3 ranks gives `from` of 9 elements and gets `to` of 9; declare `to` with 3"
        )
    );
    assert_eq!(refusal(CollectiveKind::AllGather, [5, 10], Group::Replicate), None);
    assert_eq!(refusal(CollectiveKind::ReduceScatter, [9, 3], Group::Shard), None);
    assert_eq!(refusal(CollectiveKind::AllToAll, [9, 9], Group::Shard), None);
}
