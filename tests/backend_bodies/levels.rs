//! Gradients that ranks sum in levels: exchanged and summed in blocks, then between them; or all-reduced so, of weights
//! that every rank has whole.

use warpweft_base::id::{CallId, LevelId, SlotId, WeightId};
use warpweft_format::{ElementType, Format};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Group, Levels, Mesh, WeightSpec};
use warpweft_plan::op::{
    AllReduce, ExchangeGradient, Op, ReducePart, Reduction, RoundGradient, SumGradient, SumPart, SumTarget,
    WireType,
};
use warpweft_testing::reference::travel;

use super::harness::{LINK, Plan, QUANTIZE, noise, run, sharded};

/// Factors of the ranks' gradients. In rank order the large ones take what stands between them away; in pairs, and in
/// pairs of pairs, something else is left.
const FACTORS: [f32; 8] = [1e8, 1.0, -1e8, 3.0, 5e7, -2.0, 7.0, -5e7];

/// The sum of `values`, a gradient of each rank, block by block: members of a block in rank order, then blocks, whose
/// sums travel in this type.
fn summed(values: &[Vec<f32>], blocks: &[u32], sums_in: WireType) -> Vec<f32> {
    let (mut sums, mut before) = (values.to_vec(), 1);
    let add =
        |sum: Vec<f32>, values: Vec<f32>| sum.iter().zip(values).map(|(sum, value)| sum + value).collect();
    for block in blocks.iter().copied().chain([values.len() as u32]) {
        let members = sums.chunks((block / before) as usize);
        sums = members.map(|members| members.iter().cloned().reduce(add).unwrap()).collect();
        before = block;
        if sums.len() > 1 {
            sums.iter_mut().for_each(|values| travel(values, sums_in));
        }
    }
    sums.remove(0)
}

/// What ranks of a mesh with levels exchange and sum of one weight's gradient: one of each for every level, the slot of
/// its gradient, and that of the main grad.
fn parts(
    plan: &mut Plan,
    weight: WeightId,
    (wire, sums_in): (WireType, WireType),
) -> (Vec<(ReducePart, SumPart)>, [SlotId; 2]) {
    let (call, levels) = (CallId::new(0), plan.weights.mesh.depth(Group::Shard));
    let own = plan.transient("gradient", Content::Gradient(weight, call));
    let mut given = own;
    if wire != WireType::F32 {
        given = plan.transient("rounded", Content::travelling(weight, call, wire));
        let element = ElementType::F32;
        let round = RoundGradient { weight, element, from: own, wire, to: given };
        plan.op(QUANTIZE, Op::RoundGradient(round));
    }
    let mut parts = Vec::new();
    for level in (0..levels).map(LevelId::at) {
        let received = match level.index() {
            0 => Content::ReceivedGradient(weight, call, wire),
            _ => Content::ReceivedPartial(weight, call, level, sums_in),
        };
        let received = plan.transient("received", received);
        let (into, target) = match level.index() + 1 < levels {
            true => {
                let content = Content::PartialGradient(weight, call, level, sums_in);
                (plan.transient("partial", content), SumTarget::travelling_in(sums_in))
            }
            false => (plan.resident("main grad", Content::MainGrad(weight)), SumTarget::First),
        };
        let exchange = ReducePart { weight, from: given, to: received };
        parts.push((
            exchange,
            SumPart { weight, own: given, received: Some(received), into, target, squares: None },
        ));
        given = into;
    }
    (parts, [own, given])
}

/// `ranks` ranks exchange and sum in these blocks. Every rank gets the slices of its place of its neighbours
/// in a block, and of other blocks its own.
fn gradients_are_summed_in(ranks: u32, blocks: &[u32]) {
    let types = [
        (WireType::F32, WireType::F32),
        (WireType::F32, WireType::Bf16),
        (WireType::Bf16, WireType::F32),
        (WireType::Bf16, WireType::Bf16),
        (WireType::Mxfp8, WireType::Mxfp8),
    ];
    for (wire, sums_in) in types {
        let specs = match wire {
            WireType::Mxfp8 => [sharded(130, 160, Format::F32), sharded(5, 32, Format::F32)],
            WireType::F32 | WireType::Bf16 => [sharded(130, 127, Format::F32), sharded(5, 3, Format::F32)],
        };
        let mesh = Mesh::new(ranks).unwrap().with_levels(Levels::new(blocks).unwrap()).unwrap();
        let mut plan = Plan::over(mesh, &specs);
        let (exchanged, slots): (Vec<_>, Vec<_>) =
            (0..specs.len()).map(|number| parts(&mut plan, WeightId::at(number), (wire, sums_in))).unzip();
        for (level, group) in mesh.tree(Group::Shard).enumerate() {
            let wire = if level == 0 { wire } else { sums_in };
            let (parts, sums) = exchanged.iter().map(|levels| levels[level]).unzip();
            plan.fence(QUANTIZE, LINK);
            plan.op(LINK, Op::ExchangeGradient(ExchangeGradient { wire, group, parts }));
            plan.fence(LINK, QUANTIZE);
            plan.op(QUANTIZE, Op::SumGradient(SumGradient { wire, group, parts: sums }));
        }
        let elements: Vec<usize> =
            plan.weights.layouts.iter().map(|layout| layout.shard.padded().elements()).collect();
        let values = |rank: usize, number: usize, elements: usize| {
            let values = noise(elements, (10 * rank + number) as u32);
            values.iter().map(|value| value * FACTORS[rank]).collect::<Vec<f32>>()
        };
        let given: Vec<_> =
            slots.iter().zip(&elements).map(|(slots, elements)| (*slots, *elements)).collect();
        let found = run(plan, move |rank| {
            for (number, ([slot, _], elements)) in given.iter().enumerate() {
                rank.put(*slot, &values(rank.number(), number, *elements));
            }
            rank.step().unwrap();
            given.iter().map(|([_, main], _)| rank.get::<f32>(*main)).collect::<Vec<_>>()
        });
        for (number, elements) in elements.into_iter().enumerate() {
            let mut all: Vec<_> = (0..ranks as usize).map(|rank| values(rank, number, elements)).collect();
            all.iter_mut().for_each(|values| travel(values, wire));
            let mean = |blocks: &[u32]| -> Vec<f32> {
                summed(&all, blocks, sums_in).iter().map(|sum| sum / ranks as f32).collect()
            };
            let (found, expected): (Vec<f32>, _) =
                (found.iter().flat_map(|rank| rank[number].clone()).collect(), mean(blocks));
            assert_eq!(found, expected, "gradient {number} in {wire}, sums in {sums_in}");
            // Without the last level, or the first, other bits come out.
            assert!(expected != mean(&blocks[1..]) && expected != mean(&blocks[..blocks.len() - 1]));
        }
    }
}

fn gradients_summed_in_levels_are_added_block_by_block() {
    gradients_are_summed_in(4, &[2]);
}

/// Pairs, pairs of pairs, and the two halves.
fn gradients_summed_in_three_levels_are_added_block_by_block() {
    gradients_are_summed_in(8, &[2, 4]);
}

/// `ranks` ranks all-reduce gradients of weights that each has whole in these blocks: one so small that all goes to
/// all, and one of which ranks of a block of four combine slices for each other.
fn all_reduced_in(ranks: u32, blocks: &[u32]) {
    let specs = [WeightSpec::replicated("bias", 1, 7), WeightSpec::replicated("gains", 3, 100_001)];
    let mesh = Mesh::new(ranks).unwrap().with_levels(Levels::new(blocks).unwrap()).unwrap();
    let mut plan = Plan::over(mesh, &specs);
    let weights = [0, 1].map(WeightId::at);
    let own = weights.map(|weight| plan.resident("own", Content::LocalGrad(weight)));
    let main = weights.map(|weight| plan.resident("main grad", Content::MainGrad(weight)));
    let mut given = own;
    for (level, group) in mesh.tree(Group::World).enumerate() {
        let left = match level < blocks.len() {
            true => weights
                .map(|weight| plan.transient("of a block", Content::BlockGrad(weight, LevelId::at(level)))),
            false => main,
        };
        let pairs = given.into_iter().zip(left).collect();
        plan.op(LINK, Op::AllReduce(AllReduce { reduction: Reduction::Sum, group, pairs }));
        given = left;
    }
    let elements = specs.map(|spec| spec.shape.elements());
    let values = move |rank: usize, number: usize| -> Vec<f32> {
        let values = noise(elements[number], (10 * rank + number) as u32);
        values.iter().map(|value| value * FACTORS[rank]).collect()
    };
    let found = run(plan, move |rank| {
        for (number, slot) in own.iter().enumerate() {
            rank.put(*slot, &values(rank.number(), number));
        }
        rank.step().unwrap();
        main.map(|slot| rank.get::<f32>(slot))
    });
    for number in 0..elements.len() {
        let all: Vec<_> = (0..ranks as usize).map(|rank| values(rank, number)).collect();
        let in_blocks = |blocks: &[u32]| summed(&all, blocks, WireType::F32);
        for (rank, found) in found.iter().enumerate() {
            assert_eq!(found[number], in_blocks(blocks), "rank {rank}, gradient {number}, {blocks:?}");
        }
        // Without the last level, or the first, other bits come out.
        let other = [in_blocks(&blocks[1..]), in_blocks(&blocks[..blocks.len() - 1])];
        assert!(!other.contains(&in_blocks(blocks)));
    }
}

fn gradients_all_reduced_in_levels_are_added_block_by_block() {
    all_reduced_in(4, &[2]);
    all_reduced_in(8, &[4]);
}

/// Pairs, pairs of pairs, and the two halves.
fn gradients_all_reduced_in_three_levels_are_added_block_by_block() {
    all_reduced_in(8, &[2, 4]);
}

bodies! {
    gradients_all_reduced_in_levels_are_added_block_by_block,
    gradients_all_reduced_in_three_levels_are_added_block_by_block,
    gradients_summed_in_levels_are_added_block_by_block,
    gradients_summed_in_three_levels_are_added_block_by_block,
}
