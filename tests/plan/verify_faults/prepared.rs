//! PL-4, PL-9 and PL-10 for rows of whole matrices that are prepared and updated: under the vote, from complete main
//! grads, with every state, each weight once.

use warpweft_base::id::TaskId;
use warpweft_plan::layout::Content;
use warpweft_plan::model::Access;
use warpweft_plan::op::{self, Op, SumGradient};
use warpweft_plan::plan::VerifyError;

use super::edit::{
    position, recount, refused, relocate, remove, repeat, serialize, slot, spread, twin, weight,
};
use super::matrices::{
    PARTS, Part, apart, by_matrices, join, not_covered, op, prepared, task, updated, wrong_state,
};

use Part::{Back, Prepare, There, Transform, Update};

/// PL-10: a fault on any rank must stop it.
#[test]
fn a_round_under_no_vote_or_another_slot_is_refused() {
    for (part, says) in [
        (Prepare, "(prepare of q and 3 more)"),
        (Transform, "(transform of q and 3 more)"),
        (Update, "(update of q and 3 more)"),
    ] {
        let mut plan = apart();
        let records = slot(&plan, Content::NormRecords);
        let (Op::Prepare(op::Prepare { vote, .. })
        | Op::Transform(op::Transform { vote, .. })
        | Op::Update(op::Update { vote, .. })) = op(&mut plan, part, "q")
        else {
            unreachable!()
        };
        *vote = records;
        let error = refused(&plan, &["PL-10", says, "needs the vote of this step"]);
        assert!(matches!(error, VerifyError::Program { .. }), "{error}");
    }
    // All else that it needs is there before the vote is.
    let mut plan = apart();
    let (early, vote) = (task(&plan, Prepare, "q"), position(&plan, 0, |op| matches!(op, Op::Vote(_))));
    relocate(&mut plan, early, vote);
    refused(&plan, &["PL-10", "(prepare of q and 3 more)", "needs the vote of this step"]);
}

/// PL-4
#[test]
fn rows_that_are_prepared_from_another_main_grad_are_refused() {
    let mut plan = by_matrices(1);
    let other = slot(&plan, Content::MainGrad(weight(&plan, "plain")));
    prepared(op(&mut plan, Prepare, "q"))[2].main_grad = other;
    serialize(&mut plan);
    let says = ["PL-4", "(prepare of q and 3 more)", "main grad of `v`", "main grad of `plain`"];
    assert!(matches!(refused(&plan, &says), VerifyError::Gradient { .. }));
    // What this rank alone has added up of a replicated weight.
    let mut plan = by_matrices(1);
    let own = slot(&plan, Content::LocalGrad(weight(&plan, "scale")));
    prepared(op(&mut plan, Prepare, "scale"))[0].main_grad = own;
    serialize(&mut plan);
    refused(&plan, &["PL-4", "(prepare of scale)", "main grad of `scale`", "rank's gradient sum of `scale`"]);
    // The update of the round sees a main grad as well.
    let mut plan = by_matrices(1);
    updated(op(&mut plan, Update, "q"))[2].main_grad = other;
    serialize(&mut plan);
    refused(&plan, &["PL-4", "(update of q and 3 more)", "main grad of `v`", "main grad of `plain`"]);
}

/// PL-4. A second sum is begun beside the one that the norm counts, and it never gets the other gradient of `up`.
#[test]
fn rows_that_are_prepared_from_a_main_grad_without_some_contribution_are_refused() {
    let mut plan = apart();
    let main_grad = slot(&plan, Content::MainGrad(weight(&plan, "up")));
    let begun = position(&plan, 0, |op| op.accesses().contains(&(main_grad, Access::Write)));
    let elsewhere = twin(&mut plan, main_grad);
    repeat(&mut plan, begun);
    let Op::SumGradient(SumGradient { parts, .. }) = &mut plan.tasks[begun + 1].op else { unreachable!() };
    parts.retain(|part| part.into == main_grad);
    parts[0].into = elsewhere;
    prepared(op(&mut plan, Prepare, "up"))[0].main_grad = elsewhere;
    let lacks =
        "takes the main grad of `up` as complete, but the gradient of call `backward again` is not in it";
    let error = refused(&plan, &["PL-4", "(prepare of up and 1 more)", lacks]);
    assert!(matches!(error, VerifyError::LostGradient { .. }));
}

/// PL-4
#[test]
fn a_list_too_few_or_too_many_is_refused_where_rows_are_prepared() {
    for lists in 0..=2u8 {
        for edited in [lists.checked_sub(1), Some(lists + 1)].into_iter().flatten() {
            for part in [Prepare, Update] {
                let mut plan = by_matrices(lists);
                let spare = slot(&plan, Content::MainGrad(weight(&plan, "plain")));
                let spare = twin(&mut plan, spare);
                let kept = match op(&mut plan, part, "q") {
                    Op::Prepare(op::Prepare { states, .. }) => &mut states[1].kept,
                    op => &mut updated(op)[1].kept,
                };
                kept.push(spare);
                kept.truncate(usize::from(edited));
                serialize(&mut plan);
                let says = format!("updates {edited} lists of state of `k`, which has {lists}");
                not_covered(&plan, &["of q and 3 more)", &says]);
            }
        }
    }
}

/// PL-9
#[test]
fn a_list_of_another_weight_or_in_another_s_place_is_refused_where_rows_are_prepared() {
    for (part, version) in [(Prepare, "version 0"), (Update, "version 1")] {
        for lists in 1..=2 {
            let mut plan = by_matrices(lists);
            let other = slot(&plan, Content::first_moment(weight(&plan, "plain")));
            match op(&mut plan, part, "q") {
                Op::Prepare(op::Prepare { states, .. }) => states[1].kept[0] = other,
                op => updated(op)[1].kept[0] = other,
            }
            serialize(&mut plan);
            let needs = format!("needs the first state of `k` at {version}");
            wrong_state(&plan, &["of q and 3 more)", &needs, "the first state of `plain`"]);
        }
        let mut plan = by_matrices(2);
        match op(&mut plan, part, "q") {
            Op::Prepare(op::Prepare { states, .. }) => states[1].kept.swap(0, 1),
            op => updated(op)[1].kept.swap(0, 1),
        }
        serialize(&mut plan);
        let needs = format!("needs the first state of `k` at {version}");
        wrong_state(&plan, &["of q and 3 more)", &needs, "the second state of `k`"]);
    }
}

/// PL-9. Momentum would be counted twice.
#[test]
fn rows_that_are_prepared_twice_are_refused() {
    for lists in 1..=2 {
        let mut plan = by_matrices(lists);
        let again = task(&plan, Prepare, "q");
        repeat(&mut plan, again);
        let needs = "(prepare of q and 3 more) needs the first state of `q` at version 0";
        wrong_state(&plan, &[needs, "the first state of `q` at version 1", "once a step"]);
    }
}

/// PL-4. Where no list is kept, nothing but its closure would notice.
#[test]
fn a_part_of_a_round_that_runs_twice_is_refused() {
    for (first, part, says) in [
        ("q", Prepare, "makes the prepared rows of `q` again"),
        ("q", There, "makes this rank's whole matrix of `q` again"),
        ("q", Transform, "makes this rank's transformed matrix of `q` again"),
        ("q", Back, "makes the transformed rows of `q` again"),
        ("scale", Prepare, "makes the prepared rows of `scale` again"),
        ("scale", Transform, "makes the transformed rows of `scale` again"),
    ] {
        for lists in 0..=2 {
            if part == Prepare && lists > 0 {
                continue;
            }
            // Right after itself, and at the end of the round, where what it goes on from is still there.
            for after in [part, Update] {
                let mut plan = by_matrices(lists);
                spread(&mut plan);
                let (again, last) = (task(&plan, part, first), task(&plan, after, first));
                repeat(&mut plan, again);
                relocate(&mut plan, again + 1, last + 1);
                recount(&mut plan);
                let which = plan.describe(TaskId::at(again));
                not_covered(&plan, &[says, &format!("again, which {which} made"), "once a step"]);
            }
        }
    }
}

/// PL-4
#[test]
fn a_weight_that_is_prepared_in_two_rounds_is_refused() {
    let mut plan = by_matrices(0);
    join(&mut plan, Prepare, "up", "q");
    let which = plan.describe(TaskId::at(task(&plan, Prepare, "q")));
    not_covered(
        &plan,
        &["(prepare of up and 1 more)", &format!("makes the prepared rows of `q` again, which {which} made")],
    );
}

/// A rule would run on nothing.
#[test]
fn an_update_of_no_weight_is_refused() {
    for first in ["q", "plain"] {
        let mut plan = by_matrices(0);
        let again = task(&plan, Update, first);
        repeat(&mut plan, again);
        updated(&mut plan.tasks[again + 1].op).clear();
        let says = ["malformed plan: ", "(update of ", "names no weight", "every part of a custom optimizer"];
        let error = refused(&plan, &says);
        assert!(matches!(error, VerifyError::Malformed { .. }), "{error}");
    }
}

/// PL-9
#[test]
fn a_round_that_updates_twice_is_refused() {
    for lists in 0..=2 {
        let mut plan = by_matrices(lists);
        let again = task(&plan, Update, "q");
        repeat(&mut plan, again);
        let needs = "(update of q and 3 more) needs the master of `q` at version 0";
        wrong_state(&plan, &[needs, "at version 1", "once a step"]);
    }
}

/// PL-9
#[test]
fn a_round_that_is_left_out_or_stays_without_its_update_leaves_weights_behind() {
    for lists in 0..=2 {
        for parts in [&PARTS[..], &PARTS[4..]] {
            let mut plan = by_matrices(lists);
            for part in parts {
                let lost = match part {
                    // The other exchange of the round is gone by then.
                    Back => task(&plan, There, "q"),
                    part => task(&plan, *part, "q"),
                };
                remove(&mut plan, lost);
            }
            let needs = "needs the master of `q` at version 1, like its bucket's others";
            wrong_state(&plan, &["(partial amax of", needs, "at version 0"]);
        }
        // The edge finds out where nothing is cast after it: lists may be on, masters are not.
        let mut plan = by_matrices(lists);
        let lost = task(&plan, Update, "shift");
        remove(&mut plan, lost);
        wrong_state(
            &plan,
            &["the end of plan `train`", "of `shift` at version 1", "of `shift` at version 0"],
        );
    }
}

/// PL-9. Each step of the chain reads what the optimizer leaves.
#[test]
fn quantizing_before_the_last_round_leaves_old_shards() {
    let mut plan = by_matrices(1);
    let from = plan.tasks.iter().rposition(|task| task.op.name() == "partial amax").unwrap();
    let to = task(&plan, Update, "calm");
    relocate(&mut plan, from, to);
    wrong_state(&plan, &["(partial amax of", "like its bucket's others"]);
}
