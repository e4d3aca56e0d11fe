//! PL-4, squares of main grads that sums take for the norm: of the last value, of the weight, and each once.

use warpweft_base::id::SlotId;
use warpweft_plan::layout::Content;
use warpweft_plan::op::{Accumulate, GradNorm, Op, SumGradient};
use warpweft_plan::plan::{StepPlan, VerifyError};

use super::edit::{position, recount, refused, relocate, serialize, slot, spread, summed, twin, weight};
use super::programs::{by_collectives, f32_training, nvfp4_training, part, replicated_training};

use warpweft_plan::model::Accumulation::Last;

/// The sums that accumulate the gradient of the weight called `name`, in T.
fn sums_of(plan: &StepPlan, name: &str) -> Vec<usize> {
    let wanted = weight(plan, name);
    let adds = |op: &Op| match op {
        Op::SumGradient(SumGradient { parts, .. }) => {
            parts.iter().any(|part| part.weight == wanted && part.target.accumulates())
        }
        _ => false,
    };
    (0..plan.tasks.len()).filter(|task| adds(&plan.tasks[*task].op)).collect()
}

fn norm_of(plan: &mut StepPlan) -> &mut GradNorm {
    let norm = position(plan, 0, |op| matches!(op, Op::GradNorm(_)));
    match &mut plan.tasks[norm].op {
        Op::GradNorm(op) => op,
        other => panic!("a {} is no norm", other.name()),
    }
}

/// What the norm counts of the weight called `name`.
fn counted(plan: &mut StepPlan, name: &str) -> usize {
    let wanted = weight(plan, name);
    let norm = norm_of(plan);
    norm.squares.iter().position(|(of, _)| *of == wanted).expect("a sum took the squares")
}

fn squares(plan: &StepPlan, name: &str) -> SlotId {
    slot(plan, Content::Squares(weight(plan, name)))
}

/// PL-4. Where several contributions come, the last of them takes the squares.
#[test]
fn the_norm_reads_squares_of_sharded_weights_and_main_grads_of_replicated_ones() {
    for mut plan in [nvfp4_training(), part(Last)] {
        let taken = |plan: &StepPlan, task: usize| match &plan.tasks[task].op {
            Op::SumGradient(SumGradient { parts, .. }) => parts[0].squares,
            _ => None,
        };
        let sums = sums_of(&plan, "embedding");
        assert_eq!(sums.len(), 2);
        let found: Vec<_> = sums.iter().map(|task| taken(&plan, *task)).collect();
        assert_eq!(found, [None, Some(squares(&plan, "embedding"))]);
        let replicated = weight(&plan, "norm");
        let norm = norm_of(&mut plan);
        assert_eq!(norm.main_grads.iter().map(|(of, _)| *of).collect::<Vec<_>>(), [replicated]);
        assert_eq!(norm.squares.len(), 3);
    }
    // What is summed over the replicas, or by a collective, is accumulated by a task that takes them.
    for mut plan in [replicated_training(), by_collectives::nvfp4_training(), by_collectives::part(Last)] {
        let embedding = weight(&plan, "embedding");
        let adds = plan.tasks.iter().filter_map(|task| match &task.op {
            Op::Accumulate(Accumulate { weight, squares, .. }) if *weight == embedding => Some(*squares),
            _ => None,
        });
        let adds: Vec<_> = adds.collect();
        let (last, others) = adds.split_last().unwrap();
        assert!(!others.is_empty() && others.iter().all(Option::is_none));
        assert_eq!(*last, Some(squares(&plan, "embedding")));
        assert_eq!((norm_of(&mut plan).main_grads.len(), norm_of(&mut plan).squares.len()), (1, 3));
    }
}

/// PL-4. A rank's own sum of a replicated weight is no main grad.
#[test]
fn squares_of_a_rank_s_own_sum_are_refused() {
    let mut plan = nvfp4_training();
    let of = weight(&plan, "norm");
    let adds = |op: &Op| matches!(op, Op::Accumulate(Accumulate { weight, .. }) if *weight == of);
    let task = position(&plan, 0, adds);
    let record = slot(&plan, Content::NormRecord);
    let taken = twin(&mut plan, record);
    plan.arena.slots[taken.index()].content = Content::Squares(of);
    let Op::Accumulate(Accumulate { squares, .. }) = &mut plan.tasks[task].op else { unreachable!() };
    *squares = Some(taken);
    serialize(&mut plan);
    recount(&mut plan);
    let says = ["PL-4", "takes squares of this rank's gradient sum of `norm`, which is no main grad"];
    let error = refused(&plan, &says);
    assert!(matches!(error, VerifyError::Accumulation { .. }));
}

/// PL-4. *A norm of squares that were taken before the last contribution*, however these are ordered.
#[test]
fn squares_that_were_taken_before_the_last_contribution_are_refused() {
    for mut plan in [nvfp4_training(), part(Last)] {
        spread(&mut plan);
        let sums = sums_of(&plan, "embedding");
        let (early, late) = (sums[0], sums[1]);
        let taken = summed(&mut plan, late)[0].squares.take();
        summed(&mut plan, early)[0].squares = taken;
        serialize(&mut plan);
        recount(&mut plan);
        let says = [
            "PL-4",
            "(grad norm of main grads) needs squares of the main grad of `embedding` with all contributions",
            "holds the squares of the main grad of `embedding` over call",
            "take squares with the last contribution",
        ];
        let error = refused(&plan, &says);
        assert!(matches!(error, VerifyError::Gradient { .. }));
    }
}

/// PL-4
#[test]
fn a_last_sum_after_the_norm_leaves_it_without_squares() {
    let mut plan = f32_training();
    let (late, norm) = (sums_of(&plan, "up")[0], position(&plan, 0, |op| matches!(op, Op::GradNorm(_))));
    relocate(&mut plan, late, norm);
    recount(&mut plan);
    refused(&plan, &["PL-4", "(grad norm of main grads) needs the main grad of `up` from this step"]);
}

/// PL-4
#[test]
fn squares_that_no_sum_takes_are_missed() {
    let mut plan = nvfp4_training();
    let sum = *sums_of(&plan, "block.0").last().unwrap();
    summed(&mut plan, sum)[0].squares = None;
    serialize(&mut plan);
    recount(&mut plan);
    refused(&plan, &["PL-4", "needs squares of the main grad of `block.0`", "holds nothing"]);
}

/// Changes what a norm counts of a weight, of which this is the place among the squares and this the main grad.
type Seed = fn(&mut GradNorm, usize, SlotId);

/// PL-4. By themselves or beside the main grad that they are of.
#[test]
fn squares_that_the_norm_counts_twice_or_not_at_all_are_refused() {
    let seeded: [(usize, Seed); 3] = [
        (0, |norm, own, _| {
            norm.squares.remove(own);
        }),
        (2, |norm, own, _| norm.squares.push(norm.squares[own])),
        (2, |norm, own, main_grad| norm.main_grads.push((norm.squares[own].0, main_grad))),
    ];
    for (times, seed) in seeded {
        let mut plan = nvfp4_training();
        let main_grad = slot(&plan, Content::MainGrad(weight(&plan, "block.1")));
        let own = counted(&mut plan, "block.1");
        seed(norm_of(&mut plan), own, main_grad);
        serialize(&mut plan);
        recount(&mut plan);
        let says = format!("counts the main grad of `block.1` {times} times in the norm, and it has 1");
        let error = refused(&plan, &["PL-4", &says]);
        assert!(matches!(error, VerifyError::Coverage { .. }));
    }
}

/// PL-4
#[test]
fn squares_of_another_weight_are_refused() {
    let mut plan = nvfp4_training();
    let (other, own) = (squares(&plan, "block.0"), counted(&mut plan, "block.1"));
    norm_of(&mut plan).squares[own].1 = other;
    recount(&mut plan);
    let holds = "holds the squares of the main grad of `block.0`";
    refused(&plan, &["PL-4", "needs squares of the main grad of `block.1`", holds]);
    // Two weights of one shape, each of whose sums takes squares for the other.
    let mut plan = nvfp4_training();
    spread(&mut plan);
    let [one, other] = ["block.0", "block.1"].map(|name| *sums_of(&plan, name).last().unwrap());
    let (first, second) = (summed(&mut plan, one)[0].squares, summed(&mut plan, other)[0].squares);
    summed(&mut plan, one)[0].squares = second;
    summed(&mut plan, other)[0].squares = first;
    serialize(&mut plan);
    recount(&mut plan);
    refused(
        &plan,
        &[
            "squares of the main grad of `block.1`",
            "into slot `block.0 squares`, which was declared for other",
        ],
    );
}

/// PL-4. The norm takes no values for squares, and no squares for values.
#[test]
fn a_main_grad_in_the_place_of_its_squares_is_refused() {
    let mut plan = nvfp4_training();
    let (own, of) = (counted(&mut plan, "block.1"), weight(&plan, "block.1"));
    let main_grad = slot(&plan, Content::MainGrad(of));
    norm_of(&mut plan).squares[own].1 = main_grad;
    serialize(&mut plan);
    recount(&mut plan);
    refused(
        &plan,
        &["PL-4", "needs squares of the main grad of `block.1`", "holds the main grad of `block.1`"],
    );
    let mut plan = nvfp4_training();
    let norm = norm_of(&mut plan);
    let taken = norm.squares.remove(own);
    norm.main_grads.push(taken);
    recount(&mut plan);
    refused(&plan, &["PL-4", "needs the main grad of `block.1` from this step", "holds the squares"]);
}

/// PL-4. Rows that are summed further are no main grad.
#[test]
fn squares_of_rows_that_go_on_are_refused() {
    let mut plan = replicated_training();
    let sum = position(&plan, 0, |op| matches!(op, Op::SumGradient(_)));
    let of = summed(&mut plan, sum)[0].weight;
    // Any slot will do: that there are squares at all is refused.
    let record = slot(&plan, Content::NormRecord);
    let squares = twin(&mut plan, record);
    plan.arena.slots[squares.index()].content = Content::Squares(of);
    summed(&mut plan, sum)[0].squares = Some(squares);
    serialize(&mut plan);
    recount(&mut plan);
    let error =
        refused(&plan, &["PL-4", "takes squares of rows of the gradient of", "which are no main grad"]);
    assert!(matches!(error, VerifyError::Accumulation { .. }));
}
