//! PL-3, PL-5 and PL-6 for rounds of matrices: fences, tasks, received bytes; and names of what is not there.

use warpweft_base::id::{BucketId, CommSeq, SlotId, WeightId};
use warpweft_plan::layout::{ALIGNMENT, Content, LaneKind, RoundStage};
use warpweft_plan::op::{self, ExchangeRows, Op};
use warpweft_plan::plan::{StepPlan, VerifyError};

use super::edit::{position, refused, spread};
use super::matrices::{PARTS, Part, apart, by_matrices, op, rows, task};

use Part::{Back, Prepare, There, Transform, Update};
use RoundStage::{Gathered, Prepared, Returned, Transformed};

#[track_caller]
fn race(plan: &StepPlan, says: &[&str]) {
    let error = refused(plan, says);
    assert!(matches!(error, VerifyError::Race { .. }), "{error}");
}

/// PL-6. A rank receives as many bytes both ways: its rows, or those of its matrix, of each of three others.
#[test]
fn an_exchange_of_rows_that_receives_other_bytes_than_it_says_is_refused() {
    let plan = by_matrices(1);
    for (first, rows) in [("wide", 32), ("q", 16), ("up", 16), ("calm", 16)] {
        for part in [There, Back] {
            let exact = 3 * rows * 64 * 4;
            let of = task(&plan, part, first);
            assert_eq!(plan.tasks[of].wire_bytes, exact);
            // Of every rank, itself included; of one; in bf16; of two matrices, as many as a short round has.
            for stated in [4 * exact / 3, exact / 3, exact / 2, 2 * exact, 0, usize::MAX] {
                let mut plan = plan.clone();
                plan.tasks[of].wire_bytes = stated;
                let says = format!(
                    "says that it receives {stated} bytes, but its op receives {exact} among 4 ranks"
                );
                let error = refused(&plan, &["PL-6", "(exchange rows of ", &says]);
                assert!(matches!(error, VerifyError::Bytes { .. }), "{error}");
            }
        }
    }
}

/// PL-6
#[test]
fn a_part_of_a_custom_optimizer_that_says_that_it_receives_bytes_is_refused() {
    for part in [Prepare, Transform, Update] {
        let mut plan = by_matrices(1);
        let of = task(&plan, part, "q");
        plan.tasks[of].wire_bytes = 3 * 16 * 64 * 4;
        let says = "says that it receives 12288 bytes, but its op receives 0 among 1 ranks";
        refused(&plan, &["PL-6", "of q and 3 more)", says]);
    }
}

/// PL-6
#[test]
fn a_slot_of_a_round_that_does_not_hold_a_whole_matrix_is_refused() {
    for stage in [Prepared, Gathered, Transformed, Returned] {
        let mut plan = by_matrices(1);
        let short = rows(&plan, "q", stage);
        plan.arena.slots[short.index()].region.bytes -= ALIGNMENT;
        let has = format!("has {} bytes, but its content takes {}", 64 * 64 * 4 - ALIGNMENT, 64 * 64 * 4);
        refused(&plan, &["PL-6", "slot `q and 3 more ", &has]);
    }
}

/// PL-3. Rounds run on the lane of calls and on a communicator, the vote is cast on the quantize lane.
#[test]
fn a_missing_fence_within_a_round_is_a_race() {
    for first in ["wide", "q", "up", "calm"] {
        for (early, late) in PARTS.into_iter().zip(PARTS.into_iter().skip(1)) {
            let mut plan = by_matrices(1);
            let (early, late) = (task(&plan, early, first), task(&plan, late, first));
            assert_ne!(plan.tasks[early].lane, plan.tasks[late].lane);
            let waits = &mut plan.tasks[late].waits;
            let count = waits.len();
            waits.retain(|wait| wait.index() != early);
            assert_eq!(waits.len(), count - 1, "task {late} has a fence of its own after task {early}");
            race(
                &plan,
                &["PL-3", &format!("nothing makes task {late} ("), &format!("wait for task {early} (")],
            );
        }
    }
}

/// PL-3
#[test]
fn a_missing_fence_before_the_first_round_or_after_the_last_is_a_race() {
    let mut plan = by_matrices(1);
    let (vote, first) = (position(&plan, 0, |op| matches!(op, Op::Vote(_))), task(&plan, Prepare, "wide"));
    plan.tasks[first].waits.retain(|wait| wait.index() != vote);
    race(&plan, &["PL-3", &format!("nothing makes task {first} (prepare of wide)"), "(vote of step)"]);
    let mut plan = by_matrices(1);
    let amax = plan.tasks.iter().rposition(|task| task.op.name() == "partial amax").unwrap();
    plan.tasks[amax].waits.clear();
    race(&plan, &["PL-3", &format!("nothing makes task {amax} (partial amax of"), "(update of "]);
}

/// PL-3, PL-8. A peer reads a rank's rows until the exchange is over for both.
#[test]
fn a_round_in_bytes_of_which_the_round_before_is_not_done_is_a_race() {
    for (stage, early, late) in [
        (Prepared, (There, "q"), (Prepare, "up")),
        (Gathered, (There, "up"), (Transform, "q")),
        (Transformed, (Back, "q"), (Transform, "up")),
        (Returned, (Back, "up"), (Update, "q")),
    ] {
        let mut plan = by_matrices(1);
        spread(&mut plan);
        let [kept, moved] = ["q", "up"].map(|first| rows(&plan, first, stage));
        plan.arena.slots[moved.index()].region = plan.arena.region(kept);
        let [early, late] = [early, late].map(|(part, first)| task(&plan, part, first));
        assert!(early < late);
        let later = format!("nothing makes task {late} (");
        race(&plan, &["PL-3", &later, &format!("wait for task {early} ("), "and 1 more", "q and 3 more"]);
    }
}

/// PL-3
#[test]
fn a_task_of_a_round_that_writes_where_it_reads_is_refused() {
    for part in [There, Transform, Back] {
        let mut plan = apart();
        let (Op::ExchangeRows(ExchangeRows { from, to, .. }) | Op::Transform(op::Transform { from, to, .. })) =
            op(&mut plan, part, "q")
        else {
            unreachable!()
        };
        *to = *from;
        let error = refused(&plan, &["PL-3", "of q and 3 more", "must lie apart unless all are read"]);
        assert!(matches!(error, VerifyError::Overlap { .. }), "{error}");
    }
    // Nor are a weight's rows prepared twice in one task.
    let mut plan = apart();
    let Op::Prepare(op::Prepare { states, .. }) = op(&mut plan, Prepare, "up") else { unreachable!() };
    states[1] = states[0].clone();
    let error = refused(&plan, &["PL-3", "(prepare of up and 1 more) writes slot `up first state`"]);
    assert!(matches!(error, VerifyError::Overlap { .. }), "{error}");
}

/// PL-5: parts of a rule enqueue like a call, on the stream that calls get.
#[test]
fn a_part_of_a_custom_optimizer_on_another_lane_than_that_of_calls_is_refused() {
    let plan = by_matrices(1);
    for (part, name) in [(Prepare, "prepare"), (Transform, "transform"), (Update, "update")] {
        for lane in plan.lanes.iter().filter(|lane| lane.id != plan.compute_lane()) {
            let mut plan = plan.clone();
            let of = task(&plan, part, "q");
            plan.tasks[of].lane = lane.id;
            let says = format!("({name} of q and 3 more) runs on the {} lane", lane.kind);
            let error = refused(&plan, &["PL-5", &says]);
            assert!(matches!(error, VerifyError::Order { .. }));
        }
    }
}

/// PL-5
#[test]
fn an_exchange_of_rows_off_the_communicators_or_out_of_its_number_is_refused() {
    let plan = by_matrices(1);
    let is_communicator = |kind: LaneKind| matches!(kind, LaneKind::Communicator(_));
    for part in [There, Back] {
        let of = task(&plan, part, "q");
        assert!(is_communicator(plan.lanes[plan.tasks[of].lane.index()].kind));
        for lane in plan.lanes.iter().filter(|lane| !is_communicator(lane.kind)) {
            let mut plan = plan.clone();
            plan.tasks[of].lane = lane.id;
            let says = format!("runs on the {} lane", lane.kind);
            refused(&plan, &["PL-5", "(exchange rows of q and 3 more, ", &says, "only collectives on"]);
        }
        let mut without = plan.clone();
        without.tasks[of].collective = None;
        refused(&without, &["PL-5", "(exchange rows of q and 3 more, ", "is numbered as no collective"]);
        let mut plan = plan.clone();
        let (communicator, number) = plan.tasks[of].collective.unwrap();
        let number = number.number();
        plan.tasks[of].collective = Some((communicator, CommSeq::new(number + 1)));
        let says = format!("is numbered as collective {} of", number + 1);
        refused(
            &plan,
            &["PL-5", "(exchange rows of q and 3 more, ", &says, &format!("collective {number} of")],
        );
    }
    // Ranks that disagree on whether rows go there or come back first would meet in different exchanges.
    let mut plan = plan;
    let (there, back) = (task(&plan, There, "up"), task(&plan, Back, "q"));
    let numbers = [there, back].map(|of| plan.tasks[of].collective);
    [plan.tasks[back].collective, plan.tasks[there].collective] = numbers;
    refused(&plan, &["PL-5", "(exchange rows of ", "is numbered as collective"]);
}

const FAR: u32 = 9999;

#[test]
fn a_name_of_something_absent_in_a_round_is_refused_without_a_panic() {
    type Damage = fn(&mut Op);
    let all: [(Part, &str, Damage); 14] = [
        (Prepare, "weight 9999", |op| {
            let Op::Prepare(op::Prepare { states, .. }) = op else { unreachable!() };
            states[1].weight = WeightId::new(FAR);
        }),
        (Prepare, "slot 9999", |op| {
            let Op::Prepare(op::Prepare { states, .. }) = op else { unreachable!() };
            states[1].kept[0] = SlotId::new(FAR);
        }),
        (Prepare, "slot 9999", |op| {
            let Op::Prepare(op::Prepare { states, .. }) = op else { unreachable!() };
            states[1].main_grad = SlotId::new(FAR);
        }),
        (Prepare, "bucket 9999", |op| {
            let Op::Prepare(op::Prepare { bucket, .. }) = op else { unreachable!() };
            *bucket = BucketId::new(FAR);
        }),
        (Prepare, "slot 9999", |op| {
            let Op::Prepare(op::Prepare { vote, .. }) = op else { unreachable!() };
            *vote = SlotId::new(FAR);
        }),
        (Prepare, "slot 9999", |op| {
            let Op::Prepare(op::Prepare { to, .. }) = op else { unreachable!() };
            *to = SlotId::new(FAR);
        }),
        (There, "weight 9999", |op| {
            let Op::ExchangeRows(ExchangeRows { weights, .. }) = op else { unreachable!() };
            weights[1] = WeightId::new(FAR);
        }),
        (There, "slot 9999", |op| {
            let Op::ExchangeRows(ExchangeRows { from, .. }) = op else { unreachable!() };
            *from = SlotId::new(FAR);
        }),
        (Back, "slot 9999", |op| {
            let Op::ExchangeRows(ExchangeRows { to, .. }) = op else { unreachable!() };
            *to = SlotId::new(FAR);
        }),
        (Transform, "weight 9999", |op| {
            let Op::Transform(op::Transform { weights, .. }) = op else { unreachable!() };
            weights[1] = WeightId::new(FAR);
        }),
        (Transform, "bucket 9999", |op| {
            let Op::Transform(op::Transform { bucket, .. }) = op else { unreachable!() };
            *bucket = BucketId::new(FAR);
        }),
        (Transform, "slot 9999", |op| {
            let Op::Transform(op::Transform { from, .. }) = op else { unreachable!() };
            *from = SlotId::new(FAR);
        }),
        (Transform, "slot 9999", |op| {
            let Op::Transform(op::Transform { vote, to, .. }) = op else { unreachable!() };
            (*vote, *to) = (SlotId::new(FAR), SlotId::new(FAR));
        }),
        (Update, "slot 9999", |op| {
            let Op::Update(op::Update { transformed, .. }) = op else { unreachable!() };
            *transformed = Some(SlotId::new(FAR));
        }),
    ];
    for (part, names, damage) in all {
        let mut plan = by_matrices(1);
        damage(op(&mut plan, part, "q"));
        let error = refused(&plan, &["malformed plan: ", "of q and 3 more", names]);
        assert!(matches!(error, VerifyError::Malformed { .. }), "{error}");
    }
    for stage in [Prepared, Gathered, Transformed, Returned] {
        let mut plan = by_matrices(1);
        let slot = rows(&plan, "q", stage);
        plan.arena.slots[slot.index()].content = Content::Round(WeightId::new(FAR), stage);
        refused(&plan, &["malformed plan: ", "(`q and 3 more ", "names weight 9999, but the plan has"]);
    }
}

#[test]
fn a_round_of_no_weight_is_refused() {
    for first in ["q", "scale"] {
        for part in [Prepare, There, Transform, Back] {
            let mut plan = by_matrices(1);
            if first == "scale" && matches!(part, There | Back) {
                continue;
            }
            match op(&mut plan, part, first) {
                Op::Prepare(op::Prepare { states, .. }) => states.clear(),
                Op::ExchangeRows(ExchangeRows { weights, .. })
                | Op::Transform(op::Transform { weights, .. }) => weights.clear(),
                _ => unreachable!(),
            }
            let error = refused(&plan, &["malformed plan: ", &format!("of {first}"), "names no weight"]);
            assert!(matches!(error, VerifyError::Malformed { .. }), "{error}");
        }
    }
}
