//! Squares of main grads, whose order is the same on every backend.

use half::bf16;
use warpweft_base::id::{CallId, LevelId, RankId, SlotId, WeightId};
use warpweft_format::Format;
use warpweft_plan::layout::{Content, StateLayout, WeightLayout};
use warpweft_plan::model::{Group, Levels, Mesh, WeightSpec};
use warpweft_plan::op::{
    Accumulate, ExchangeGradient, GradNorm, NormRecord, Op, ReducePart, SumGradient, SumPart, SumTarget,
    WireType,
};
use warpweft_plan::policy::OptimizerShard;
use warpweft_testing::squares;

use super::harness::{LINK, Plan, QUANTIZE, noise, run, sharded};
use crate::device::{meshes, most_captured_ranks};

/// Of rows that rank 1 has fewer of, of several groups of blocks, of one block and of none on rank 1.
fn specs() -> Vec<WeightSpec> {
    let mut specs: Vec<_> =
        [(601, 401), (5, 3), (130, 127), (1, 7)].map(|(rows, cols)| sharded(rows, cols, Format::F32)).into();
    specs.push(WeightSpec::replicated("bias", 3, 2001));
    specs
}

/// Elements of a weight's own rows on a rank.
fn real_elements(layout: &WeightLayout, rank: usize) -> usize {
    layout.shard.rows_of(RankId::at(rank)).rows * layout.shard.shape.cols
}

/// Squares of real rows are added as the docs on reproducibility say, and those of a replicated weight by one rank.
fn a_norm_is_of_squares_that_are_added_in_one_order() {
    for ranks in 1..=3 {
        let mut plan = Plan::new(ranks, &specs());
        let main_grads: Vec<_> = (0..plan.weights.layouts.len())
            .map(WeightId::at)
            .map(|weight| (weight, plan.resident("main grad", Content::MainGrad(weight))))
            .collect();
        let fault = plan.resident("fault", Content::FaultWord);
        let record = plan.transient("record", Content::NormRecord);
        plan.op(
            QUANTIZE,
            Op::GradNorm(GradNorm { main_grads: main_grads.clone(), squares: Vec::new(), fault, record }),
        );
        let layouts = plan.weights.layouts.clone();
        let found = run(plan, move |rank| {
            let mut counted = Vec::new();
            for (layout, (_, slot)) in layouts.iter().zip(&main_grads) {
                let elements = layout.stored_elements();
                // Not even the rows after the real ones are zero.
                let mut values = noise(elements, (17 * rank.number() + elements) as u32);
                rank.put(*slot, &values);
                let is_replicated = layout.name == "bias";
                let real = real_elements(layout, rank.number());
                values.truncate(if is_replicated && rank.number() > 0 { 0 } else { real });
                counted.push(values);
            }
            rank.put(fault, &[rank.number() as u32]);
            rank.step().unwrap();
            (rank.get::<NormRecord>(record)[0], squares::of_rank(&counted))
        });
        for (rank, (found, expected)) in found.into_iter().enumerate() {
            assert_eq!((found.squares.to_bits(), found.fault), (expected.to_bits(), rank as u32), "{ranks}");
        }
    }
}

/// Who takes squares: the sum that leaves a main grad, or the norm.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Taken {
    Sums,
    Norm,
    /// Of every other weight.
    Both,
}

/// What ranks exchange, sum and count of one weight's gradient: slots of the gradient, the main grad and the squares.
struct Counted {
    parts: Vec<(ReducePart, SumPart)>,
    own: SlotId,
    main_grad: SlotId,
    squares: Option<SlotId>,
}

fn counted(plan: &mut Plan, weight: WeightId, wire: WireType, target: SumTarget, taken: bool) -> Counted {
    let call = CallId::new(0);
    let tree: Vec<Group> = plan.weights.layout(weight).shard.tree(plan.weights.mesh).collect();
    let own = plan.transient("gradient", Content::travelling(weight, call, wire));
    let main_grad = plan.resident("main grad", Content::MainGrad(weight));
    let squares = taken.then(|| plan.transient("squares", Content::Squares(weight)));
    let (mut given, mut parts) = (own, Vec::new());
    for (number, group) in tree.iter().enumerate() {
        let level = LevelId::at(number);
        let received = (plan.weights.mesh.size(*group) > 1).then(|| match number {
            0 => plan.transient("received", Content::ReceivedGradient(weight, call, wire)),
            _ => plan.transient("received", Content::ReceivedPartial(weight, call, level, WireType::F32)),
        });
        let (into, target, squares) = match number + 1 < tree.len() {
            true => {
                let partial = Content::PartialGradient(weight, call, level, WireType::F32);
                (plan.transient("partial", partial), SumTarget::Rows, None)
            }
            false => (main_grad, target, squares),
        };
        let exchange = ReducePart { weight, from: given, to: received.unwrap_or(given) };
        parts.push((exchange, SumPart { weight, own: given, received, into, target, squares }));
        given = into;
    }
    Counted { parts, own, main_grad, squares }
}

/// What a step leaves on a rank: its record, and of each weight the main grad and what sums took of it.
type Left = (NormRecord, Vec<Vec<f32>>, Vec<Option<Vec<f64>>>);

/// Two steps, the second one replayed where that can be, and one with a gradient that is no number.
fn steps(plan: &Plan, (wire, target): (WireType, SumTarget), taken: Taken) -> Vec<Vec<Left>> {
    let mut plan = plan.clone();
    let weights: Vec<_> = (0..plan.weights.layouts.len()).map(WeightId::at).collect();
    let by_sums = |weight: WeightId| match taken {
        Taken::Sums => true,
        Taken::Norm => false,
        Taken::Both => weight.index().is_multiple_of(2),
    };
    let all: Vec<Counted> =
        weights.iter().map(|weight| counted(&mut plan, *weight, wire, target, by_sums(*weight))).collect();
    let tree: Vec<Group> = plan.weights.layouts[0].shard.tree(plan.weights.mesh).collect();
    for (level, group) in tree.into_iter().enumerate() {
        let wire = if level == 0 { wire } else { WireType::F32 };
        let (parts, sums): (Vec<_>, _) = all.iter().map(|counted| counted.parts[level]).unzip();
        if plan.weights.mesh.size(group) > 1 {
            plan.fence(QUANTIZE, LINK);
            plan.op(LINK, Op::ExchangeGradient(ExchangeGradient { wire, group, parts }));
            plan.fence(LINK, QUANTIZE);
        }
        plan.op(QUANTIZE, Op::SumGradient(SumGradient { wire, group, parts: sums }));
    }
    let fault = plan.resident("fault", Content::FaultWord);
    let record = plan.resident("record", Content::NormRecord);
    let (mut main_grads, mut squares) = (Vec::new(), Vec::new());
    for (weight, counted) in weights.iter().zip(&all) {
        match counted.squares {
            Some(slot) => squares.push((*weight, slot)),
            None => main_grads.push((*weight, counted.main_grad)),
        }
    }
    plan.op(QUANTIZE, Op::GradNorm(GradNorm { main_grads, squares, fault, record }));
    let ranks = plan.weights.mesh.ranks();
    let slots: Vec<_> = all.iter().map(|counted| (counted.own, counted.main_grad, counted.squares)).collect();
    run(plan, move |rank| {
        let graph = (ranks <= most_captured_ranks()).then(|| {
            rank.step().unwrap();
            rank.capture_graph().unwrap()
        });
        let mut left = Vec::new();
        for turn in 0..3_usize {
            for (number, (own, main_grad, squares)) in slots.iter().enumerate() {
                let elements = rank.plan.region(*own).bytes / wire.bytes(1);
                let mut values = noise(elements, (100 * turn + 10 * rank.number() + number) as u32);
                if (turn, number, rank.number()) == (2, 0, 0) {
                    values[1] = f32::NAN;
                }
                let rounded: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
                match wire {
                    WireType::Bf16 => rank.put(*own, &rounded),
                    _ => rank.put(*own, &values),
                }
                // What lay after the real rows is not zero, and does not count.
                let before = noise(rank.plan.region(*main_grad).bytes / 4, number as u32);
                rank.put(*main_grad, &before);
                if let Some(slot) = squares {
                    rank.put(*slot, &vec![f64::NAN; rank.plan.region(*slot).bytes / 8]);
                }
            }
            rank.put(fault, &[turn as u32]);
            match graph.as_ref().filter(|_| turn > 0) {
                Some(graph) => rank.replay(graph).unwrap(),
                None => rank.step().unwrap(),
            }
            let main_grads = slots.iter().map(|(_, slot, _)| rank.get::<f32>(*slot)).collect();
            let taken = slots.iter().map(|(_, _, slot)| slot.map(|slot| rank.get::<f64>(slot))).collect();
            left.push((rank.get::<NormRecord>(record)[0], main_grads, taken));
        }
        left
    })
}

/// Replicas keep slices, so that their ranks sum up to the main grads.
fn squares_are_the_norm_s(mesh: Mesh) {
    let shapes = [(401, 301), (5, 3), (130, 127), (64, 64)];
    let specs: Vec<_> = shapes.iter().map(|(rows, cols)| sharded(*rows, *cols, Format::F32)).collect();
    let mut plan = Plan::over(mesh, &specs);
    let shard = OptimizerShard::Replicas;
    plan.weights = plan.weights.with_state(StateLayout { shard, ..StateLayout::default() });
    let layouts = plan.weights.layouts.clone();
    let bits = |squares: f64| if squares.is_nan() { f64::NAN } else { squares }.to_bits();
    for how in [
        (WireType::F32, SumTarget::First),
        (WireType::Bf16, SumTarget::More),
        (WireType::F32, SumTarget::More),
        (WireType::Bf16, SumTarget::First),
    ] {
        let by_the_norm = steps(&plan, how, Taken::Norm);
        for taken in [Taken::Sums, Taken::Both] {
            let by_sums = steps(&plan, how, taken);
            for (rank, (found, expected)) in by_sums.iter().zip(&by_the_norm).enumerate() {
                for (turn, (found, expected)) in found.iter().zip(expected).enumerate() {
                    let what = format!("{mesh}, rank {rank}, {how:?}, {taken:?}, step {turn}");
                    let (record, main_grads, squares) = found;
                    assert_eq!((record.fault, record.reserved), (turn as u32, 0), "{what}");
                    assert_eq!(bits(record.squares), bits(expected.0.squares), "{what}");
                    let real: Vec<Vec<f32>> = layouts
                        .iter()
                        .zip(main_grads)
                        .map(|(layout, values)| values[..real_elements(layout, rank)].to_vec())
                        .collect();
                    // Other optimizer instances have copies, which do not count.
                    let counts = mesh.position(RankId::at(rank), Group::Instances) == 0;
                    let counted = if counts { squares::of_rank(&real) } else { 0.0 };
                    assert_eq!(bits(record.squares), bits(counted), "{what}");
                    for (real, squares) in real.iter().zip(squares) {
                        let Some(squares) = squares else { continue };
                        let mut blocks: Vec<f64> = real.chunks(4096).map(squares::of_block).collect();
                        blocks.resize(squares.len(), 0.0);
                        let all = |list: &[f64]| list.iter().map(|one| bits(*one)).collect::<Vec<_>>();
                        assert_eq!(all(squares), all(&blocks), "{what}");
                    }
                }
            }
            let is_number = |turn: usize| by_sums.iter().all(|left| !left[turn].0.squares.is_nan());
            assert_eq!([0, 1, 2].map(is_number), [true, true, false], "{mesh}");
        }
    }
}

/// Contributions of f32 and bf16 that begin a main grad or are added to it, issued and replayed, also where they are no
/// numbers.
fn squares_that_sums_take_are_those_of_the_norm() {
    (1..=3).for_each(|ranks| squares_are_the_norm_s(Mesh::new(ranks).unwrap()));
}

fn squares_of_sums_in_levels_are_those_of_the_norm() {
    let levels = Levels::new(&[2]).unwrap();
    squares_are_the_norm_s(Mesh::new(4).unwrap().with_levels(levels).unwrap());
}

fn squares_of_slices_that_replicas_keep_are_those_of_the_norm() {
    meshes().into_iter().for_each(squares_are_the_norm_s);
}

/// What a collective summed, or replicas, is accumulated by a task of its own.
fn squares_that_an_accumulation_takes_are_those_of_the_norm() {
    let shapes = [(401, 301), (5, 3), (130, 127)];
    let specs: Vec<_> = shapes.iter().map(|(rows, cols)| sharded(*rows, *cols, Format::F32)).collect();
    for (ranks, first) in (1..=3_u32).flat_map(|ranks| [(ranks, true), (ranks, false)]) {
        let mut plan = Plan::new(ranks, &specs);
        let (mut all, mut taken) = (Vec::new(), Vec::new());
        for weight in (0..specs.len()).map(WeightId::at) {
            let from = plan.transient("reduced", Content::ReducedGradient(weight, CallId::new(0)));
            let into = plan.resident("main grad", Content::MainGrad(weight));
            let squares = plan.transient("squares", Content::Squares(weight));
            plan.op(
                QUANTIZE,
                Op::Accumulate(Accumulate { weight, from, into, first, squares: Some(squares) }),
            );
            all.push((from, into));
            taken.push((weight, squares));
        }
        let fault = plan.resident("fault", Content::FaultWord);
        let record = plan.resident("record", Content::NormRecord);
        let norm = GradNorm { main_grads: Vec::new(), squares: taken, fault, record };
        plan.op(QUANTIZE, Op::GradNorm(norm));
        let layouts = plan.weights.layouts.clone();
        let found = run(plan, move |rank| {
            for (number, (from, into)) in all.iter().enumerate() {
                let elements = rank.plan.region(*from).bytes / 4;
                rank.put(*from, &noise(elements, (10 * rank.number() + number) as u32));
                rank.put(*into, &noise(elements, (10 * rank.number() + number + 5) as u32));
            }
            rank.step().unwrap();
            let main_grads = all.iter().zip(&layouts).map(|((_, into), layout)| {
                rank.get::<f32>(*into)[..real_elements(layout, rank.number())].to_vec()
            });
            let expected = squares::of_rank(&main_grads.collect::<Vec<_>>());
            (rank.get::<NormRecord>(record)[0].squares, expected)
        });
        for (rank, (found, expected)) in found.into_iter().enumerate() {
            assert_eq!(found.to_bits(), expected.to_bits(), "rank {rank} of {ranks}, first {first}");
        }
    }
}

bodies! {
    squares_that_an_accumulation_takes_are_those_of_the_norm,
    a_norm_is_of_squares_that_are_added_in_one_order,
    squares_that_sums_take_are_those_of_the_norm,
    squares_of_sums_in_levels_are_those_of_the_norm,
    squares_of_slices_that_replicas_keep_are_those_of_the_norm,
}
