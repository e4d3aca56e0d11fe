//! Collectives of planes and gradients: values, padding and times on every rank.

use half::bf16;
use warpweft_base::id::{CallId, WeightId};
use warpweft_format::{ElementType, Format, Orientation, expand_scale};
use warpweft_plan::layout::{Content, PlaneRegions, Residency};
use warpweft_plan::model::Group;
use warpweft_plan::op::{
    self, AllReduce, ExchangeGradient, GatherPart, GatherRecords, NormRecord, Op, ReducePart, Reduction,
    RoundGradient, SumGradient, SumPart, SumTarget, WireType,
};
use warpweft_testing::reference::travel;

use super::harness::{COMPUTE, LINK, Plan, QUANTIZE, ROWWISE, Rank, W, noise, run, sharded};

/// The shards of one rank: bytes that say whose they are.
fn shard_bytes(rank: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|position| (rank * 61 + position * 7 + 1) as u8).collect()
}

fn gather(ranks: u32, rows: usize, cols: usize, format: Format, orientation: Orientation) {
    gather_by(ranks, (rows, cols), format, orientation, |plan, part| plan.gather(&[part]));
}

/// What `gathers` requests leaves the shards of all ranks one after the other, and zeroes after them.
fn gather_by(
    ranks: u32,
    (rows, cols): (usize, usize),
    format: Format,
    orientation: Orientation,
    gathers: impl Fn(&mut Plan, GatherPart),
) {
    let mut plan = Plan::new(ranks, &[sharded(rows, cols, format)]);
    let from = plan.resident("shard", Content::Shard(W, orientation));
    let to = plan.transient("gathered", Content::Gathered(W, orientation));
    gathers(&mut plan, GatherPart { weight: W, orientation, from, to });
    let layout = plan.weights.layout(W).clone();
    let gathered = run(plan, move |rank| {
        let shard = rank.plan.region(from).bytes;
        rank.put(from, &shard_bytes(rank.number(), shard));
        rank.put(to, &vec![0xEE_u8; rank.plan.region(to).bytes]);
        rank.step().unwrap();
        rank.get::<u8>(to)
    });
    let (shard, whole) = (layout.shard_planes(orientation), layout.gathered_planes(orientation));
    let place = |planes| {
        let region = warpweft_plan::layout::Region { offset: 0, bytes: PlaneRegions::bytes(planes) };
        let PlaneRegions { data, scale } = PlaneRegions::within(region, planes);
        [data, scale]
    };
    let stored = PlaneRegions::bytes(&shard);
    for bytes in gathered {
        for (kind, (part, all)) in place(&shard).into_iter().zip(place(&whole)).enumerate() {
            let mut expected: Vec<u8> = (0..ranks as usize)
                .flat_map(|rank| shard_bytes(rank, stored)[part.offset..part.end()].to_vec())
                .collect();
            assert!(expected.len() <= all.bytes);
            expected.resize(all.bytes, 0);
            if kind == 1 && all.bytes > 0 {
                expand_scale(format, orientation, layout.shard.padded(), &mut expected).unwrap();
            }
            assert_eq!(bytes[all.offset..all.end()], expected, "{format} {orientation}, {ranks} ranks");
        }
    }
}

fn a_gather_lays_the_shards_end_to_end_and_zeroes_the_rest() {
    for ranks in 1..=4 {
        gather(ranks, 7, 5, Format::F32, ROWWISE);
        gather(ranks, 48, 64, Format::NVFP4_2D, ROWWISE);
        gather(ranks, 64, 64, Format::Mxfp8, Orientation::Columnwise);
    }
    gather(3, 300, 130, Format::FP8_BLOCK128_POW2, ROWWISE);
}

/// Chunks begin and end inside of planes and between them, at bytes of any alignment.
fn a_gather_in_chunks_leaves_what_a_whole_one_does() {
    for (ranks, bytes) in (1..=4).flat_map(|ranks| [(ranks, 37), (ranks, 512), (ranks, 1 << 20)]) {
        let chunks = |plan: &mut Plan, part: GatherPart| plan.gather_in_chunks(part, bytes);
        gather_by(ranks, (7, 5), Format::F32, ROWWISE, chunks);
        gather_by(ranks, (48, 64), Format::NVFP4_2D, ROWWISE, chunks);
        gather_by(ranks, (64, 64), Format::Mxfp8, Orientation::Columnwise, chunks);
    }
    gather_by(4, (2, 3), Format::Bf16, ROWWISE, |plan, part| plan.gather_in_chunks(part, 4));
}

/// What an assemble relies on: the peers' rows are there before it. What else lies in the slot is nobody's.
fn a_gather_alone_brings_the_rows_of_all_other_ranks() {
    for (ranks, format) in (1..=4).flat_map(|ranks| [(ranks, Format::Bf16), (ranks, Format::NVFP4_2D)]) {
        let mut plan = Plan::new(ranks, &[sharded(100, 64, format)]);
        let from = plan.resident("shard", Content::Shard(W, ROWWISE));
        let to = plan.transient("gathered", Content::Gathered(W, ROWWISE));
        plan.op(LINK, Op::gather(W, ROWWISE, from, to));
        let bytes =
            PlaneRegions::within(plan.region(from), &plan.weights.layout(W).shard_planes(ROWWISE)).data.bytes;
        let gathered = run(plan, move |rank| {
            rank.put(from, &shard_bytes(rank.number(), rank.plan.region(from).bytes));
            rank.step().unwrap();
            rank.get::<u8>(to)
        });
        for (own, found) in gathered.iter().enumerate() {
            for peer in (0..ranks as usize).filter(|peer| *peer != own) {
                assert_eq!(found[peer * bytes..][..bytes], shard_bytes(peer, bytes), "{peer} to {own}");
            }
        }
    }
}

fn a_shard_of_zero_rows_still_joins_the_collective() {
    gather(4, 32, 64, Format::NVFP4_2D, ROWWISE);
    gather(4, 2, 3, Format::Bf16, ROWWISE);
}

/// Slices of every rank, as they travel: nothing is summed, and the own one is not among what lands.
fn an_exchange_brings_the_others_slices_in_rank_order() {
    for (ranks, wire) in (1..=4_u32).flat_map(|ranks| [(ranks, WireType::F32), (ranks, WireType::Bf16)]) {
        let (rows, cols) = (5, 3);
        let mut plan = Plan::new(ranks, &[sharded(rows, cols, Format::F32)]);
        let call = CallId::new(0);
        let from = plan.transient("gradient", Content::Gradient(W, call));
        let received = plan.transient("landed", Content::ReceivedGradient(W, call, wire));
        let part = ReducePart { weight: W, from, to: received };
        plan.op(
            LINK,
            Op::ExchangeGradient(ExchangeGradient { wire, group: Group::Shard, parts: vec![part] }),
        );
        let slice = plan.weights.layout(W).stored_elements() * wire.bytes(1);
        let gradient = move |rank: usize| shard_bytes(rank, slice * ranks as usize);
        let found = run(plan, move |rank| {
            rank.put(from, &gradient(rank.number()));
            rank.step().unwrap();
            rank.get::<u8>(received)
        });
        for (rank, found) in found.iter().enumerate() {
            let others = (0..ranks as usize).filter(|other| *other != rank);
            let expected = others.flat_map(|other| gradient(other)[slice * rank..][..slice].to_vec());
            assert_eq!(*found, expected.collect::<Vec<_>>(), "rank {rank} of {ranks}");
        }
    }
}

/// Weights of one format and of several, gathered by one task and by one each.
fn weights_gathered_together_are_what_they_are_apart() {
    let formats = [Format::NVFP4_2D, Format::F32, Format::NVFP4_2D, Format::FP8_BLOCK128_POW2];
    let specs: Vec<_> =
        formats.iter().enumerate().map(|(number, format)| sharded(32 * (number + 1), 64, *format)).collect();
    for ranks in 1..=4 {
        let gathered = |together: bool| {
            let mut plan = Plan::new(ranks, &specs);
            let parts: Vec<GatherPart> = (0..formats.len())
                .map(|number| {
                    let (weight, orientation) = (WeightId::at(number), ROWWISE);
                    let from = plan.resident("shard", Content::Shard(weight, orientation));
                    let to = plan.transient("gathered", Content::Gathered(weight, orientation));
                    GatherPart { weight, orientation, from, to }
                })
                .collect();
            match together {
                true => plan.gather(&parts),
                false => parts.chunks(1).for_each(|part| plan.gather(part)),
            }
            run(plan, move |rank| {
                for (number, part) in parts.iter().enumerate() {
                    let bytes = rank.plan.region(part.from).bytes;
                    rank.put(part.from, &shard_bytes(10 * rank.number() + number, bytes));
                }
                rank.step().unwrap();
                parts.iter().map(|part| rank.get::<u8>(part.to)).collect::<Vec<_>>()
            })
        };
        assert_eq!(gathered(true), gathered(false), "{ranks} ranks");
    }
}

fn halves(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|value| bf16::from_f32(*value)).collect()
}

/// What is made of the sum of gradient `number`: as many ways as there are gradients.
const TARGETS: [SumTarget; 3] = [SumTarget::Rows, SumTarget::First, SumTarget::More];

/// In what gradients are written and travel.
const TRAVELS: [(ElementType, WireType); 4] = [
    (ElementType::F32, WireType::F32),
    (ElementType::F32, WireType::Bf16),
    (ElementType::F32, WireType::Mxfp8),
    (ElementType::Bf16, WireType::Mxfp8),
];

/// Gradients that travel in each type, several at once: rounded on the rank, exchanged, summed in f32
/// in rank order, and in the same task accumulated as a task of its own would.
fn gradients_reduced_together_are_summed_in_f32_in_rank_order() {
    for (ranks, (written, wire)) in (1..=4_u32).flat_map(|ranks| TRAVELS.map(|travels| (ranks, travels))) {
        // The last is longer than what a backend sums at a time.
        let shapes = match wire {
            WireType::Mxfp8 => [(5, 32), (96, 64), (130, 160)],
            WireType::F32 | WireType::Bf16 => [(5, 3), (96, 64), (130, 127)],
        };
        let specs: Vec<_> = shapes.iter().map(|(rows, cols)| sharded(*rows, *cols, Format::F32)).collect();
        for turn in 0..TARGETS.len() {
            let target = |number: usize| TARGETS[(number + turn) % TARGETS.len()];
            let mut plan = Plan::new(ranks, &specs);
            let (mut parts, mut sums, mut gradients) = (Vec::new(), Vec::new(), Vec::new());
            for number in 0..shapes.len() {
                let (weight, call) = (WeightId::at(number), CallId::new(0));
                let mut own = plan.transient("gradient", Content::written(weight, call, written));
                gradients.push((own, plan.weights.layout(weight).shard.padded().elements()));
                if wire != WireType::F32 {
                    let to = plan.transient("rounded", Content::travelling(weight, call, wire));
                    let round = RoundGradient { weight, element: written, from: own, wire, to };
                    plan.op(QUANTIZE, Op::RoundGradient(round));
                    own = to;
                }
                let received = plan.transient("landed", Content::ReceivedGradient(weight, call, wire));
                parts.push(ReducePart { weight, from: own, to: received });
                let into = plan.transient("sum", Content::ReducedGradient(weight, call));
                let target = target(number);
                sums.push(SumPart { weight, own, received: Some(received), into, target, squares: None });
            }
            plan.fence(QUANTIZE, LINK);
            plan.op(LINK, Op::ExchangeGradient(ExchangeGradient { wire, group: Group::Shard, parts }));
            plan.fence(LINK, QUANTIZE);
            plan.op(
                QUANTIZE,
                Op::SumGradient(SumGradient { wire, group: Group::Shard, parts: sums.clone() }),
            );
            // Huge and tiny values: another order of addition gives other bits.
            let values = move |rank: usize, number: usize, elements: usize| {
                let scale = [1e8, 1.0, -1e8, 3.0][rank];
                let values = noise(elements, (10 * rank + number) as u32);
                let rounded = |value: f32| match written {
                    ElementType::Bf16 => bf16::from_f32(value).to_f32(),
                    _ => value,
                };
                values.iter().map(|value| rounded(value * scale)).collect::<Vec<f32>>()
            };
            let given = gradients.clone();
            let reduced = run(plan, move |rank| {
                for (number, (slot, elements)) in given.iter().enumerate() {
                    let values = values(rank.number(), number, *elements);
                    match written {
                        ElementType::Bf16 => rank.put(*slot, &halves(&values)),
                        _ => rank.put(*slot, &values),
                    }
                    let rows = *elements / ranks as usize;
                    rank.put(sums[number].into, &noise(rows, (7 * rank.number()) as u32));
                }
                rank.step().unwrap();
                sums.iter().map(|part| rank.get::<f32>(part.into)).collect::<Vec<_>>()
            });
            let factor = 1.0 / ranks as f32;
            for (number, (_, elements)) in gradients.iter().enumerate() {
                let sent = |rank: usize| {
                    let mut sent = values(rank, number, *elements);
                    travel(&mut sent, wire);
                    sent
                };
                let mut expected = sent(0);
                for rank in 1..ranks as usize {
                    expected.iter_mut().zip(sent(rank)).for_each(|(sum, value)| *sum += value);
                }
                let rows = elements / ranks as usize;
                let before = (0..ranks as usize).flat_map(|rank| noise(rows, (7 * rank) as u32));
                for (sum, before) in expected.iter_mut().zip(before) {
                    match target(number) {
                        SumTarget::Rows | SumTarget::Rounded | SumTarget::Quantized => {}
                        SumTarget::First => *sum *= factor,
                        SumTarget::More => *sum = before + *sum * factor,
                    }
                }
                let found: Vec<f32> = reduced.iter().flat_map(|rank| rank[number].clone()).collect();
                assert_eq!(found, expected, "gradient {number} on {ranks} ranks from {written} in {wire}");
            }
        }
    }
}

fn a_packed_all_reduce_gives_every_rank_the_same_sum() {
    let mut plan = Plan::new(3, &[]);
    let pairs: Vec<_> = [5, 1, 70]
        .iter()
        .enumerate()
        .map(|(number, elements)| {
            let (_, from) = plan.buffer(&format!("from {number}"), *elements, Residency::Resident);
            let (_, to) = plan.buffer(&format!("to {number}"), *elements, Residency::Resident);
            (from, to)
        })
        .collect();
    plan.op(
        LINK,
        Op::AllReduce(AllReduce { reduction: Reduction::Sum, group: Group::World, pairs: pairs.clone() }),
    );
    let targets = pairs.clone();
    let sums = run(plan, move |rank: &mut Rank<_>| {
        for (from, _) in &pairs {
            let elements = rank.plan.region(*from).bytes / 4;
            rank.put(*from, &noise(elements, rank.number() as u32));
        }
        rank.step().unwrap();
        targets.iter().map(|(_, to)| rank.get::<f32>(*to)).collect::<Vec<_>>()
    });
    for (position, elements) in [5, 1, 70].into_iter().enumerate() {
        let parts: Vec<_> = (0..3).map(|rank| noise(elements, rank)).collect();
        let expected: Vec<f32> = (0..elements).map(|at| parts[0][at] + parts[1][at] + parts[2][at]).collect();
        assert!(sums.iter().all(|rank| rank[position] == expected));
    }
}

fn a_maximum_over_ranks_ignores_nan() {
    let mut plan = Plan::new(3, &[]);
    let (_, from) = plan.buffer("from", 4, Residency::Resident);
    let (_, to) = plan.buffer("to", 4, Residency::Resident);
    plan.op(
        LINK,
        Op::AllReduce(AllReduce { reduction: Reduction::Max, group: Group::World, pairs: vec![(from, to)] }),
    );
    let maxima = run(plan, move |rank| {
        let nan = f32::NAN;
        rank.put(from, &[[1.0, nan, nan, 2.0], [3.0, nan, 5.0, nan], [2.0, 4.0, nan, nan]][rank.number()]);
        rank.step().unwrap();
        rank.get::<f32>(to)
    });
    assert!(maxima.iter().all(|rank| *rank == [3.0, 4.0, 5.0, 2.0]));
}

fn records_are_gathered_in_rank_order() {
    let mut plan = Plan::new(4, &[]);
    let from = plan.transient("record", Content::NormRecord);
    let to = plan.transient("records", Content::NormRecords);
    plan.op(LINK, Op::GatherRecords(GatherRecords { from, to }));
    let record = |rank: usize| NormRecord { squares: rank as f64, fault: rank as u32, reserved: 0 };
    let gathered = run(plan, move |rank| {
        rank.put(from, &[record(rank.number())]);
        rank.step().unwrap();
        rank.get::<NormRecord>(to)
    });
    let expected: Vec<_> = (0..4).map(record).collect();
    assert!(gathered.iter().all(|records| *records == expected));
}

fn intervals_of_a_step_are_ordered_and_follow_the_fences() {
    let mut plan = Plan::new(1, &[]);
    let (_, one) = plan.buffer("one", 1000, Residency::Resident);
    let (_, two) = plan.buffer("two", 1000, Residency::Resident);
    let (_, three) = plan.buffer("three", 1000, Residency::Resident);
    plan.op(COMPUTE, Op::Copy(op::Copy { from: one, to: two }));
    plan.fence(COMPUTE, QUANTIZE);
    plan.op(QUANTIZE, Op::Copy(op::Copy { from: two, to: three }));
    let mut intervals = run(plan, |rank| {
        let before = rank.intervals();
        assert!(before.iter().all(|interval| interval.end == 0), "nothing has run yet");
        rank.step().unwrap();
        let first = rank.intervals();
        rank.step().unwrap();
        (first, rank.intervals())
    });
    let (first, second) = intervals.remove(0);
    for step in [&first, &second] {
        assert!(step[0].begin <= step[0].end && step[0].end <= step[1].begin && step[1].begin <= step[1].end);
        assert_eq!(step[0].joined, step[0].begin);
    }
    assert!(first[1].end <= second[0].begin);
}

bodies! {
    a_gather_lays_the_shards_end_to_end_and_zeroes_the_rest,
    a_gather_in_chunks_leaves_what_a_whole_one_does,
    a_gather_alone_brings_the_rows_of_all_other_ranks,
    a_shard_of_zero_rows_still_joins_the_collective,
    an_exchange_brings_the_others_slices_in_rank_order,
    weights_gathered_together_are_what_they_are_apart,
    gradients_reduced_together_are_summed_in_f32_in_rank_order,
    a_packed_all_reduce_gives_every_rank_the_same_sum,
    a_maximum_over_ranks_ignores_nan,
    records_are_gathered_in_rank_order,
    intervals_of_a_step_are_ordered_and_follow_the_fences,
}
