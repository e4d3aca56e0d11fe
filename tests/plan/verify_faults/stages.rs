//! PL-9 and PL-4 for the tasks of a round: each finds this round's data, all of its weights in their order, at the
//! stage before its own.

use warpweft_plan::layout::RoundStage;
use warpweft_plan::op::{self, ExchangeRows, Op};
use warpweft_plan::plan::{VerifyError, verify};

use super::edit::{refused, relocate, remove};
use super::matrices::{
    PARTS, Part, apart, by_matrices, join, not_covered, op, read, rows, shorten, swap, task, wrong_state,
};

use Part::{Back, Prepare, There, Transform, Update};
use RoundStage::{Gathered, Prepared, Returned, Transformed};

/// PL-9. Matrices would come to other ranks than their rows go back from, or to other weights.
#[test]
fn another_order_of_weights_in_one_task_of_a_round_is_refused() {
    let (as_prepared, swapped) = ("`q`, `k`, `v`, `o`", "`q`, `v`, `k`, `o`");
    for (part, says, needs, holds) in [
        (Prepare, "rows of q and 3 more, whole) needs the prepared rows", as_prepared, swapped),
        (There, "rows of q and 3 more, whole) needs the prepared rows", swapped, as_prepared),
        (Transform, "(transform of q and 3 more) needs this rank's whole matrix", swapped, as_prepared),
        (Back, "rows of q and 3 more, back) needs", swapped, as_prepared),
        (Update, "(update of q and 3 more) needs the transformed rows", swapped, as_prepared),
    ] {
        let mut plan = by_matrices(1);
        swap(op(&mut plan, part, "q"), 1, 2);
        let needs = format!("of {needs}, but slot `q and 3 more ");
        wrong_state(
            &plan,
            &[says, &needs, &format!("of {holds}, from task"), "prepare, exchange, transform"],
        );
    }
    // From one task on to the end.
    for from in 1..PARTS.len() {
        let mut plan = by_matrices(1);
        PARTS[from..].iter().for_each(|part| swap(op(&mut plan, *part, "q"), 1, 2));
        wrong_state(&plan, &["of q and 3 more", &format!("of {swapped}, but slot"), as_prepared]);
    }
    // It is no order of its own: all five tasks have the same.
    let mut plan = by_matrices(1);
    PARTS.iter().for_each(|part| swap(op(&mut plan, *part, "q"), 1, 2));
    verify(&plan).unwrap();
}

/// PL-9
#[test]
fn a_weight_that_one_task_of_a_round_leaves_out_or_has_besides_is_refused() {
    let (all, fewer) = ("`q`, `k`, `v`, `o`", "`q`, `k`, `v`");
    for (part, needs, holds) in [
        (Prepare, all, fewer),
        (There, fewer, all),
        (Transform, fewer, all),
        (Back, fewer, all),
        (Update, fewer, all),
    ] {
        let mut plan = by_matrices(1);
        shorten(op(&mut plan, part, "q"));
        let (needs, holds) = (format!("of {needs}, but slot"), format!("of {holds}, from task"));
        wrong_state(&plan, &["of q and 3 more", &needs, &holds]);
    }
    for part in PARTS {
        let mut plan = by_matrices(1);
        join(&mut plan, part, "up", "q");
        // Its lists, too, are prepared twice.
        let says = match part {
            Prepare => "needs the first state of `q` at version 0",
            _ => "of `up`, `down`, `q`, but slot `up and 1 more",
        };
        wrong_state(&plan, &["of up and 1 more", says]);
    }
}

/// PL-9. As many matrices of one size, all of them there.
#[test]
fn rows_of_another_round_are_refused() {
    for (part, stage, needs) in [
        (There, Prepared, "needs the prepared rows of `up`, `down`, but slot `q and 3 more prepared rows`"),
        (
            Transform,
            Gathered,
            "needs this rank's whole matrix of `up`, `down`, but slot `q and 3 more whole matrix`",
        ),
        (
            Back,
            Transformed,
            "needs this rank's transformed matrix of `up`, `down`, but slot `q and 3 more transformed matrix`",
        ),
        (
            Update,
            Returned,
            "needs the transformed rows of `up`, `down`, but slot `q and 3 more transformed rows`",
        ),
    ] {
        let mut plan = apart();
        let of_other = rows(&plan, "q", stage);
        read(op(&mut plan, part, "up"), of_other);
        wrong_state(&plan, &["of up and 1 more", needs, "of `q`, `k`, `v`, `o`, from task"]);
    }
    // Of those that every rank has whole, likewise.
    for (part, stage, needs) in [
        (Transform, Prepared, "needs the prepared rows of"),
        (Update, Returned, "needs the transformed rows of"),
    ] {
        let mut plan = apart();
        let of_other = rows(&plan, "scale", stage);
        read(op(&mut plan, part, "shift"), of_other);
        wrong_state(&plan, &["of shift", needs, "`shift`, but slot `scale ", "rows of `scale`, from task"]);
    }
}

/// PL-9. A rank would take its rows of all matrices for one matrix, or one matrix for them: they are as large.
#[test]
fn rows_of_another_stage_of_the_round_are_refused() {
    for (first, part, stage, needs, holds) in [
        ("q", Transform, Prepared, "this rank's whole matrix", "holds the prepared rows"),
        ("q", Back, Gathered, "", "holds this rank's whole matrix"),
        ("q", Update, Prepared, "the transformed rows", "holds the prepared rows"),
        ("q", Update, Gathered, "the transformed rows", "holds this rank's whole matrix"),
        ("q", Update, Transformed, "the transformed rows", "holds this rank's transformed matrix"),
        ("scale", Update, Prepared, "the transformed rows", "holds the prepared rows"),
    ] {
        let mut plan = apart();
        let wrong = rows(&plan, first, stage);
        read(op(&mut plan, part, first), wrong);
        wrong_state(&plan, &[&format!("of {first}"), &format!("needs {needs}"), holds]);
    }
    // Rows that are exchanged as they were prepared do not become those that come back.
    let mut plan = apart();
    let prepared = rows(&plan, "q", Prepared);
    read(op(&mut plan, Back, "q"), prepared);
    let error = refused(
        &plan,
        &[
            "PL-6",
            "writes this rank's whole matrix of `q`",
            "`q and 3 more transformed rows`",
            "for other content",
        ],
    );
    assert!(matches!(error, VerifyError::Bytes { .. }), "{error}");
}

/// PL-4
#[test]
fn an_update_without_the_rows_that_its_optimizer_needs_is_refused() {
    for (first, says) in [("q", "(update of q and 3 more)"), ("scale", "(update of scale)")] {
        let mut plan = by_matrices(1);
        let Op::Update(op::Update { transformed, .. }) = op(&mut plan, Update, first) else { unreachable!() };
        *transformed = None;
        not_covered(&plan, &[says, "updates weights whose optimizer needs whole matrices, without them"]);
    }
}

/// PL-9
#[test]
fn a_part_of_a_round_that_is_left_out_is_missed_by_the_next_one() {
    for (first, part, says, needs) in [
        ("q", Prepare, "(exchange rows of q and 3 more, whole)", "the prepared rows"),
        ("q", There, "(transform of q and 3 more)", "this rank's whole matrix"),
        ("q", Transform, "(exchange rows of q and 3 more, back)", ""),
        ("q", Back, "(update of q and 3 more)", "the transformed rows"),
        ("scale", Prepare, "(transform of scale)", "the prepared rows"),
        ("scale", Transform, "(update of scale)", "the transformed rows"),
    ] {
        let mut plan = apart();
        let lost = task(&plan, part, first);
        remove(&mut plan, lost);
        wrong_state(&plan, &[says, &format!("needs {needs}"), "holds nothing: no earlier task"]);
    }
}

/// PL-9
#[test]
fn a_part_of_a_round_before_the_one_that_it_goes_on_from_is_refused() {
    for first in ["q", "wide"] {
        for (early, late) in PARTS.into_iter().zip(PARTS.into_iter().skip(1)) {
            let mut plan = apart();
            let (moved, before) = (task(&plan, late, first), task(&plan, early, first));
            relocate(&mut plan, moved, before);
            wrong_state(&plan, &[&format!("of {first}"), "holds nothing: no earlier task"]);
        }
    }
}

/// PL-9, after every fence there could be: an order is no help where the bytes are gone.
#[test]
fn rows_that_another_round_overwrote_are_refused() {
    for (stage, overwriting, says) in [
        (Prepared, Prepared, "(exchange rows of q and 3 more, whole)"),
        (Gathered, Gathered, "(transform of q and 3 more)"),
        (Transformed, Gathered, "(exchange rows of q and 3 more, back)"),
        (Returned, Transformed, "(update of q and 3 more)"),
    ] {
        let mut plan = apart();
        // The task of the next round that overwrites comes right before the one that would read.
        let (part, reader) = match stage {
            Prepared => (Prepare, There),
            Gathered => (There, Transform),
            Transformed => (There, Back),
            Returned => (Transform, Update),
        };
        let (lost, kept) = (rows(&plan, "up", overwriting), rows(&plan, "q", stage));
        plan.arena.slots[lost.index()].region = plan.arena.region(kept);
        let (writes, reads) = (task(&plan, part, "up"), task(&plan, reader, "q"));
        if writes > reads {
            relocate(&mut plan, writes, reads);
        } else if stage == Transformed {
            relocate(&mut plan, writes, reads - 1);
        }
        wrong_state(&plan, &[says, "holds nothing any more", "overwrote it through slot `up and 1 more"]);
    }
}

/// PL-6: a round's bytes are those of the weight that names them.
#[test]
fn rows_in_the_slot_of_another_round_or_stage_are_refused() {
    for (part, first, stage) in [
        (Prepare, "up", Prepared),
        (There, "up", Gathered),
        (Transform, "up", Transformed),
        (Back, "up", Returned),
        (Prepare, "q", Transformed),
        (There, "q", Returned),
        (Transform, "q", Prepared),
    ] {
        let mut plan = apart();
        let wrong = rows(&plan, first, stage);
        let (Op::Prepare(op::Prepare { to, .. })
        | Op::ExchangeRows(ExchangeRows { to, .. })
        | Op::Transform(op::Transform { to, .. })) = op(&mut plan, part, "q")
        else {
            unreachable!()
        };
        *to = wrong;
        let error = refused(
            &plan,
            &["PL-6", "of q and 3 more", "of `q`, `k`, `v`, `o` into slot", "was declared for other content"],
        );
        assert!(matches!(error, VerifyError::Bytes { .. }), "{error}");
    }
    // A round is called by its first weight.
    let mut plan = apart();
    swap(op(&mut plan, Prepare, "q"), 0, 1);
    refused(
        &plan,
        &["PL-6", "writes the prepared rows of `k`, `q`, `v`, `o` into slot `q and 3 more prepared"],
    );
}
