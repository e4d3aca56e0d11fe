//! Gradients that ranks sum in levels: exchanged and summed in blocks, then between them.

use half::bf16;
use warpweft_base::id::{CallId, LevelId, WeightId};
use warpweft_format::{ElementType, Format};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Group, Levels, Mesh};
use warpweft_plan::op::{ExchangeGradient, Op, ReducePart, SumGradient, SumPart, SumTarget};

use super::harness::{LINK, Plan, QUANTIZE, noise, run, sharded};

/// Four ranks in pairs: those of a pair are added first, then the pairs. Every rank gets both slices of its
/// place of its neighbour, and of the other pair its own.
fn gradients_summed_in_levels_are_added_block_by_block() {
    let specs = [sharded(130, 127, Format::F32), sharded(5, 3, Format::F32)];
    let mesh = || Mesh::new(4).unwrap().with_levels(Levels::new(&[2]).unwrap()).unwrap();
    for element in [ElementType::F32, ElementType::Bf16] {
        let mut plan = Plan::over(mesh(), &specs);
        let (mut exchanges, mut sums) = (vec![Vec::new(); 2], vec![Vec::new(); 2]);
        let (mut given, mut results) = (Vec::new(), Vec::new());
        for number in 0..specs.len() {
            let (weight, call, next) = (WeightId::at(number), CallId::new(0), LevelId::new(1));
            let own = plan.transient("gradient", Content::written(weight, call, element));
            let received = plan.transient("landed", Content::ReceivedGradient(weight, call, element));
            let partial = plan.transient("pair", Content::PartialGradient(weight, call, LevelId::new(0)));
            let others = plan.transient("other pair", Content::ReceivedPartial(weight, call, next));
            let into = plan.resident("main grad", Content::MainGrad(weight));
            exchanges[0].push(ReducePart { weight, from: own, to: received });
            exchanges[1].push(ReducePart { weight, from: partial, to: others });
            let part =
                |own, received, into, target| SumPart { weight, own, received: Some(received), into, target };
            sums[0].push(part(own, received, partial, SumTarget::Rows));
            sums[1].push(part(partial, others, into, SumTarget::First));
            given.push((own, plan.weights.layout(weight).shard.padded().elements()));
            results.push(into);
        }
        for (level, (parts, sums)) in exchanges.into_iter().zip(sums).enumerate() {
            let element = if level == 0 { element } else { ElementType::F32 };
            let group = Group::Level(LevelId::at(level));
            plan.fence(QUANTIZE, LINK);
            plan.op(LINK, Op::ExchangeGradient(ExchangeGradient { element, group, parts }));
            plan.fence(LINK, QUANTIZE);
            plan.op(QUANTIZE, Op::SumGradient(SumGradient { element, group, parts: sums }));
        }
        // In rank order the first two of these add up to nothing of the others; in pairs they do not.
        let values = move |rank: usize, number: usize, elements: usize| {
            let scale = [1e8, 1.0, -1e8, 3.0][rank];
            let values = noise(elements, (10 * rank + number) as u32);
            values.iter().map(|value| bf16::from_f32(value * scale).to_f32()).collect::<Vec<f32>>()
        };
        let slots = given.clone();
        let found = run(plan, move |rank| {
            for (number, (slot, elements)) in slots.iter().enumerate() {
                let values = values(rank.number(), number, *elements);
                match element {
                    ElementType::Bf16 => {
                        let rounded: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
                        rank.put(*slot, &rounded);
                    }
                    _ => rank.put(*slot, &values),
                }
            }
            rank.step().unwrap();
            results.iter().map(|slot| rank.get::<f32>(*slot)).collect::<Vec<_>>()
        });
        for (number, (_, elements)) in given.iter().enumerate() {
            let [a, b, c, d] = [0, 1, 2, 3].map(|rank| values(rank, number, *elements));
            let sum = |at: usize| ((a[at] + b[at]) + (c[at] + d[at])) * 0.25;
            let expected: Vec<f32> = (0..*elements).map(sum).collect();
            let found: Vec<f32> = found.iter().flat_map(|rank| rank[number].clone()).collect();
            assert_eq!(found, expected, "gradient {number} in {element:?}");
        }
    }
}

bodies! {
    gradients_summed_in_levels_are_added_block_by_block,
}
