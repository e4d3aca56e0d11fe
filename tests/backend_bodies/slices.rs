//! Gradients that travel together in MXFP8, of weights of which replicas keep slices and of one that each has whole.
//!
//! Law: the sum over a replica's ranks leaves the one in MXFP8, to be summed over the replicas of an optimizer
//! instance, and the other in f32, to be accumulated once an all-reduce has summed it, as what several instances sum
//! is. On every backend the bits are those of scalar code.

use warpweft_base::id::{CallId, LevelId, RankId, SlotId, WeightId};
use warpweft_format::{ElementType, Format};
use warpweft_plan::layout::{Content, StateLayout, WeightLayout};
use warpweft_plan::model::{Group, Mesh};
use warpweft_plan::op::{
    Accumulate, AllReduce, ExchangeGradient, Op, ReducePart, Reduction, RoundGradient, SumGradient, SumPart,
    SumTarget, WireType,
};
use warpweft_plan::policy::OptimizerShard;
use warpweft_testing::reference::travel;
use warpweft_testing::squares;

use super::harness::{LINK, Plan, QUANTIZE, noise, run, sharded};
use crate::device::{meshes, most_captured_ranks};

/// In what everything travels.
const WIRE: WireType = WireType::Mxfp8;

/// Slots of one weight: its gradient, its main grad, and squares of that.
#[derive(Clone, Copy)]
struct Slots {
    own: SlotId,
    main_grad: SlotId,
    squares: SlotId,
}

/// The tasks of all weights: one of each kind, over the ranks of a replica and over the replicas, and sums over copies.
#[derive(Default)]
struct Tasks {
    exchanged: Vec<ReducePart>,
    summed: Vec<SumPart>,
    exchanged_on: Vec<ReducePart>,
    summed_on: Vec<SumPart>,
    over_copies: Vec<(Group, (SlotId, SlotId))>,
    accumulated: Vec<Accumulate>,
}

fn add(plan: &mut Plan, weight: WeightId, tasks: &mut Tasks) -> Slots {
    let (call, element) = (CallId::new(0), ElementType::F32);
    let own = plan.transient("gradient", Content::Gradient(weight, call));
    let given = plan.transient("rounded", Content::QuantizedGradient(weight, call));
    plan.op(QUANTIZE, Op::RoundGradient(RoundGradient { weight, element, from: own, wire: WIRE, to: given }));
    let main_grad = plan.resident("main grad", Content::MainGrad(weight));
    let squares = plan.transient("squares", Content::Squares(weight));
    let received = (plan.weights.mesh.shards() > 1)
        .then(|| plan.transient("received", Content::ReceivedGradient(weight, call, WIRE)));
    tasks.exchanged.extend(received.map(|to| ReducePart { weight, from: given, to }));
    let shard = plan.weights.layout(weight).shard;
    let copies = (plan.weights.mesh.size(shard.copies()) > 1).then(|| {
        let reduced = plan.transient("reduced", Content::ReducedGradient(weight, call));
        let from = plan.transient("over all copies", Content::SummedGradient(weight, call));
        tasks.over_copies.push((shard.copies(), (reduced, from)));
        let into = main_grad;
        tasks.accumulated.push(Accumulate { weight, from, into, first: true, squares: Some(squares) });
        (reduced, SumTarget::Rows, None)
    });
    let (rows, last, taken) = copies.unwrap_or((main_grad, SumTarget::First, Some(squares)));
    let (into, target) = if plan.weights.layout(weight).is_in_slices() {
        let levels = [0, 1].map(LevelId::at);
        let partial = plan.transient("partial", Content::PartialGradient(weight, call, levels[0], WIRE));
        let others = plan.transient("others", Content::ReceivedPartial(weight, call, levels[1], WIRE));
        tasks.exchanged_on.push(ReducePart { weight, from: partial, to: others });
        tasks.summed_on.push(SumPart {
            weight,
            own: partial,
            received: Some(others),
            into: rows,
            target: last,
            squares: taken,
        });
        (partial, SumTarget::Quantized)
    } else {
        (rows, last)
    };
    tasks.summed.push(SumPart { weight, own: given, received, into, target, squares: None });
    Slots { own, main_grad, squares }
}

/// The plan of a reduction of both weights, and their slots.
fn reduction(mesh: Mesh) -> (Plan, Vec<Slots>) {
    let specs = [(128, 64), (32, 96)].map(|(rows, cols)| sharded(rows, cols, Format::Mxfp8));
    let mut plan = Plan::over(mesh, &specs);
    let shard = OptimizerShard::Replicas;
    plan.weights = plan.weights.with_state(StateLayout { shard, ..StateLayout::default() });
    let in_slices: Vec<bool> = plan.weights.layouts.iter().map(WeightLayout::is_in_slices).collect();
    assert_eq!(in_slices, [true, false], "{mesh}");
    let mut tasks = Tasks::default();
    let slots: Vec<Slots> =
        (0..specs.len()).map(|weight| add(&mut plan, WeightId::at(weight), &mut tasks)).collect();
    let mut level = |group, parts: Vec<ReducePart>, sums| {
        if !parts.is_empty() {
            plan.fence(QUANTIZE, LINK);
            plan.op(LINK, Op::ExchangeGradient(ExchangeGradient { wire: WIRE, group, parts }));
            plan.fence(LINK, QUANTIZE);
        }
        plan.op(QUANTIZE, Op::SumGradient(SumGradient { wire: WIRE, group, parts: sums }));
    };
    level(Group::Shard, tasks.exchanged, tasks.summed);
    let slicers = if mesh.instances() > 1 { Group::ReplicateInInstance } else { Group::Replicate };
    level(slicers, tasks.exchanged_on, tasks.summed_on);
    plan.fence(QUANTIZE, LINK);
    for (group, pair) in tasks.over_copies {
        plan.op(LINK, Op::AllReduce(AllReduce { reduction: Reduction::Sum, group, pairs: vec![pair] }));
    }
    plan.fence(LINK, QUANTIZE);
    for accumulate in tasks.accumulated {
        plan.op(QUANTIZE, Op::Accumulate(accumulate));
    }
    (plan, slots)
}

/// A rank's gradient of a weight. Large values meet small ones, so that every rounding is seen.
fn values(turn: usize, rank: usize, number: usize, elements: usize) -> Vec<f32> {
    let scale = [1e8, 1.0, -1e8, 3.0, 1e7, -1e7][rank];
    let values = noise(elements, (100 * turn + 10 * rank + number) as u32);
    values.iter().map(|value| value * scale).collect()
}

/// The whole main grad of a weight.
fn expected(mesh: Mesh, layout: &WeightLayout, (turn, number): (usize, usize)) -> Vec<f32> {
    let sum = |all: Vec<Vec<f32>>| {
        let add = |sum: Vec<f32>, values: Vec<f32>| {
            sum.iter().zip(&values).map(|(sum, value)| sum + value).collect()
        };
        all.into_iter().reduce(add).unwrap()
    };
    let sent = |rank: usize| {
        let mut values = values(turn, rank, number, layout.shard.padded().elements());
        travel(&mut values, WIRE);
        values
    };
    let shards = mesh.shards() as usize;
    let of_replica = |replica: usize| {
        let mut sums = sum((replica * shards..(replica + 1) * shards).map(sent).collect());
        if layout.is_in_slices() {
            travel(&mut sums, WIRE);
        }
        sums
    };
    let together = if layout.is_in_slices() { mesh.replicas() / mesh.instances() } else { mesh.replicas() };
    let replicas: Vec<Vec<f32>> = (0..mesh.replicas() as usize).map(of_replica).collect();
    let sums = sum(replicas.chunks(together as usize).map(|instance| sum(instance.to_vec())).collect());
    let factor = 1.0 / mesh.ranks() as f32;
    sums.iter().map(|sum| sum * factor).collect()
}

/// Issued, and replayed where that can be.
fn mxfp8_of_a_slice_and_rows_of_a_whole_weight_are_left_by_one_sum() {
    for mesh in meshes() {
        let (plan, slots) = reduction(mesh);
        let layouts = plan.weights.layouts.clone();
        let captured = mesh.ranks() <= most_captured_ranks();
        let found = run(plan, move |rank| {
            let graph = captured.then(|| {
                rank.step().unwrap();
                rank.capture_graph().unwrap()
            });
            [0, 1].map(|turn| {
                for (number, slots) in slots.iter().enumerate() {
                    let elements = rank.plan.region(slots.own).bytes / 4;
                    rank.put(slots.own, &values(turn, rank.number(), number, elements));
                }
                match graph.as_ref().filter(|_| turn > 0) {
                    Some(graph) => rank.replay(graph).unwrap(),
                    None => rank.step().unwrap(),
                }
                let left = |slots: &Slots| (rank.get::<f32>(slots.main_grad), rank.get::<f64>(slots.squares));
                slots.iter().map(left).collect::<Vec<_>>()
            })
        });
        for ((turn, number), layout) in [0, 1]
            .into_iter()
            .flat_map(|turn| layouts.iter().enumerate().map(move |(at, of)| ((turn, at), of)))
        {
            let whole = expected(mesh, layout, (turn, number));
            for (rank, found) in found.iter().enumerate() {
                let what = format!("{mesh}, rank {rank}, gradient {number}, step {turn}");
                let (main_grad, taken) = &found[turn][number];
                let rows = layout.shard.rows_of(RankId::at(rank));
                let cols = layout.shard.shape.cols;
                let expected = &whole[rows.begin * cols..][..rows.rows * cols];
                assert_eq!(main_grad[..expected.len()], *expected, "{what}");
                let mut blocks: Vec<f64> = expected.chunks(4096).map(squares::of_block).collect();
                blocks.resize(taken.len(), 0.0);
                assert_eq!(*taken, blocks, "{what}");
            }
        }
    }
}

bodies! {
    mxfp8_of_a_slice_and_rows_of_a_whole_weight_are_left_by_one_sum,
}
