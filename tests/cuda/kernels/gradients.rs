//! Sums, maxima, norms and votes, against the CPU backend's order of operations.

use half::bf16;
use warpweft_backend::local::Combination;
use warpweft_cuda::DeviceAddress;
use warpweft_cuda::kernels::{AccumulateOperand, CombineOperand, NormFrom, NormOperand, VoteOperand};
use warpweft_format::ElementType;
use warpweft_plan::op::{NormRecord, Reduction, Vote};
use warpweft_testing::golden_file::assert_bytes;
use warpweft_testing::squares;

use super::values::{Kind, Random, values};
use crate::gpu::Gpu;

/// Lengths around every tile and vector, and none.
pub(super) const LENGTHS: [usize; 9] = [0, 1, 3, 4, 255, 4096, 4097, 20_000, 100_003];

pub(super) fn same(what: &str, found: &[f32], expected: &[f32]) {
    // A NaN that an operation makes has no sign of its own.
    let bits = |values: &[f32]| -> Vec<u8> {
        values
            .iter()
            .flat_map(|v| if v.is_nan() { f32::NAN.to_le_bytes() } else { v.to_le_bytes() })
            .collect()
    };
    assert_bytes(what, &bits(found), &bits(expected));
}

/// What squares of so many elements are before anybody takes them.
pub(super) fn unwritten(elements: usize) -> Vec<f64> {
    vec![-1.0; elements.div_ceil(4096)]
}

/// Squares of the first elements of a sum, or of none.
pub(super) fn same_squares(what: &str, found: Vec<f64>, taken: Option<(&[f32], usize)>, elements: usize) {
    let taken = taken.map(|(sum, counted)| {
        let end = |first: usize| counted.clamp(first, sum.len().min(first + 4096));
        (0..sum.len()).step_by(4096).map(|first| squares::of_block(&sum[first..end(first)])).collect()
    });
    let bits = |all: Vec<f64>| -> Vec<u64> {
        all.into_iter().map(|one| if one.is_nan() { f64::NAN } else { one }.to_bits()).collect()
    };
    assert_eq!(bits(found), bits(taken.unwrap_or_else(|| unwritten(elements))), "{what}");
}

#[test]
fn contributions_are_rounded_once_and_added_and_the_first_overwrites() {
    let Some(gpu) = Gpu::open("accumulation") else { return };
    for (first, factor) in [(true, 0.25_f32), (false, 0.25), (false, 1.0 / 3.0)] {
        let from: Vec<_> = LENGTHS.iter().map(|n| values(*n, Kind::Special, *n as u64)).collect();
        let into: Vec<_> = LENGTHS.iter().map(|n| values(*n, Kind::Wide, *n as u64 + 7)).collect();
        let on_from: Vec<_> = from.iter().enumerate().map(|(at, v)| gpu.buffer_at(v, at % 2 * 4)).collect();
        let on_into: Vec<_> = into.iter().enumerate().map(|(at, v)| gpu.buffer_at(v, at % 3 * 4)).collect();
        // Squares of all elements, without the last ones, or of none.
        let counted = |at: usize| [Some(LENGTHS[at]), Some(LENGTHS[at] * 4 / 5), None][at / 2 % 3];
        let on_squares: Vec<_> = (0..LENGTHS.len()).map(|at| gpu.buffer(&unwritten(LENGTHS[at]))).collect();
        let operands: Vec<_> = (0..LENGTHS.len())
            .map(|at| AccumulateOperand {
                from: on_from[at].address(),
                into: on_into[at].address(),
                elements: LENGTHS[at],
                squares: counted(at).map(|counted| (on_squares[at].address(), counted)),
            })
            .collect();
        // Many in a launch, and one alone.
        let (last, others) = operands.split_last().unwrap();
        gpu.run(gpu.kernels.accumulate(others, factor, first));
        gpu.run(gpu.kernels.accumulate(&[*last], factor, first));
        for at in 0..LENGTHS.len() {
            let sum = |(sum, value): (&f32, &f32)| if first { value * factor } else { sum + value * factor };
            let expected: Vec<f32> = into[at].iter().zip(&from[at]).map(sum).collect();
            let what = format!("{} elements, first {first}", LENGTHS[at]);
            same(&what, &on_into[at].read(), &expected);
            same_squares(
                &what,
                on_squares[at].read(),
                counted(at).map(|counted| (&*expected, counted)),
                LENGTHS[at],
            );
        }
    }
}

#[test]
fn ranks_are_combined_in_rank_order_also_in_place() {
    let Some(gpu) = Gpu::open("sums over ranks") else { return };
    for ranks in [1, 2, 3, 4, 8, 11] {
        for reduction in [Reduction::Sum, Reduction::Max] {
            for element in [ElementType::F32, ElementType::Bf16] {
                combine(&gpu, ranks, Combination { reduction, element });
            }
        }
    }
}

/// Values as bytes of an element type, and back.
pub(super) fn bytes_of(element: ElementType, values: &[f32]) -> Vec<u8> {
    match element {
        ElementType::Bf16 => values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

pub(super) fn values_of(element: ElementType, bytes: &[u8]) -> Vec<f32> {
    match element {
        ElementType::Bf16 => {
            let values = bytemuck::pod_collect_to_vec::<u8, bf16>(bytes);
            values.into_iter().map(bf16::to_f32).collect()
        }
        _ => bytemuck::pod_collect_to_vec(bytes),
    }
}

fn combine(gpu: &Gpu, ranks: usize, combination: Combination) {
    let Combination { reduction, element } = combination;
    let rounded = |values: Vec<f32>| values_of(element, &bytes_of(element, &values));
    let source =
        |rank: usize, length: usize| rounded(values(length, Kind::Special, (rank * 1000 + length) as u64));
    let sources: Vec<Vec<_>> =
        LENGTHS.iter().map(|n| (0..ranks).map(|rank| source(rank, *n)).collect()).collect();
    let on_sources: Vec<Vec<_>> = sources
        .iter()
        .enumerate()
        .map(|(at, sources)| {
            let after = at % 2 * element.bytes();
            sources.iter().map(|source| gpu.buffer_at(&bytes_of(element, source), after)).collect()
        })
        .collect();
    let on_to: Vec<_> = LENGTHS.iter().map(|n| gpu.buffer(&bytes_of(element, &vec![-7.0_f32; *n]))).collect();
    // The last rank's vector is the target now and then.
    let in_place = |at: usize| at % 3 == 2;
    let operands: Vec<_> = (0..LENGTHS.len())
        .map(|at| CombineOperand {
            sources: on_sources[at].iter().map(|source| source.address()).collect(),
            to: if in_place(at) { on_sources[at][ranks - 1].address() } else { on_to[at].address() },
            elements: LENGTHS[at],
        })
        .collect();
    gpu.run(gpu.kernels.combine(combination, &operands));
    for at in 0..LENGTHS.len() {
        let mut expected = sources[at][0].clone();
        for source in &sources[at][1..] {
            for (sum, value) in expected.iter_mut().zip(source) {
                match reduction {
                    Reduction::Sum => *sum += value,
                    Reduction::Max if *value > *sum || sum.is_nan() => *sum = *value,
                    Reduction::Max => {}
                }
            }
        }
        let found = if in_place(at) { on_sources[at][ranks - 1].read() } else { on_to[at].read() };
        let what = format!("{reduction:?} of {ranks} ranks, {} in {element}", LENGTHS[at]);
        same(&what, &values_of(element, &found), &rounded(expected));
    }
}

fn record(gpu: &Gpu, gradients: &[Vec<f32>], fault: u32, runs: usize) -> Vec<NormRecord> {
    record_at(gpu, gradients, |at| at % 2 * 4, fault, runs)
}

/// The same, each gradient so many bytes after a multiple of 16.
fn record_at(
    gpu: &Gpu,
    gradients: &[Vec<f32>],
    after: impl Fn(usize) -> usize,
    fault: u32,
    runs: usize,
) -> Vec<NormRecord> {
    let buffers: Vec<_> = gradients.iter().enumerate().map(|(at, g)| gpu.buffer_at(g, after(at))).collect();
    let operands: Vec<_> = buffers
        .iter()
        .zip(gradients)
        .map(|(buffer, gradient)| NormOperand {
            from: NormFrom::Values(buffer.address()),
            elements: gradient.len(),
        })
        .collect();
    let (fault, record) =
        (gpu.buffer(&[fault]), gpu.buffer(&[NormRecord { reserved: 9, ..NormRecord::default() }]));
    let launch = gpu.kernels.grad_norm(&operands, fault.address(), record.address()).unwrap();
    (0..runs)
        .map(|_| {
            gpu.run(Ok(launch.clone()));
            record.read()[0]
        })
        .collect()
}

#[test]
fn a_norm_record_is_the_cpus_and_the_same_in_every_run() {
    let Some(gpu) = Gpu::open("norm records") else { return };
    for seed in 0..4 {
        let gradients: Vec<_> = LENGTHS.iter().map(|n| values(*n, Kind::Wide, *n as u64 + seed)).collect();
        let records = record(&gpu, &gradients, 3, 4);
        assert!(records.iter().all(|record| *record == records[0]), "{records:?}");
        let expected = squares::of_rank(&gradients);
        assert_eq!(records[0].squares.to_bits(), expected.to_bits(), "{} and {expected}", records[0].squares);
        assert_eq!((records[0].fault, records[0].reserved), (3, 0));
    }
}

/// Of some gradients the squares of blocks are there, of others the elements.
#[test]
fn a_norm_record_of_squares_that_were_taken_is_that_of_the_gradients() {
    let Some(gpu) = Gpu::open("norm records of squares") else { return };
    let lengths = LENGTHS.into_iter().chain([4096 * 8 * 32 + 1, 1_500_000]);
    let gradients: Vec<_> = lengths.map(|n| values(n, Kind::Wide, n as u64)).collect();
    let taken = gradients.iter().map(|g| g.chunks(4096).map(squares::of_block).collect::<Vec<f64>>());
    let taken: Vec<_> = taken.map(|squares| gpu.buffer(&squares)).collect();
    let values: Vec<_> = gradients.iter().map(|gradient| gpu.buffer(gradient)).collect();
    let expected = squares::of_rank(&gradients);
    for turn in 0..4 {
        let operand = |at: usize| {
            let from = match (at + turn) % 4 {
                0 => NormFrom::Values(values[at].address()),
                _ => NormFrom::Squares(taken[at].address()),
            };
            NormOperand { from, elements: gradients[at].len() }
        };
        let operands: Vec<_> = (0..gradients.len()).map(operand).collect();
        let (fault, record) = (gpu.buffer(&[7_u32]), gpu.buffer(&[NormRecord::default()]));
        gpu.run(gpu.kernels.grad_norm(&operands, fault.address(), record.address()));
        let found = record.read()[0];
        assert_eq!((found.squares.to_bits(), found.fault), (expected.to_bits(), 7), "turn {turn}");
    }
}

/// Sums have one order, whether values are read four at a time or one by one.
#[test]
fn a_norm_record_is_the_same_wherever_gradients_begin() {
    let Some(gpu) = Gpu::open("norm records of gradients that begin elsewhere") else { return };
    let gradients: Vec<_> = LENGTHS.iter().map(|n| values(*n, Kind::Wide, *n as u64)).collect();
    let at = |bytes: usize| record_at(&gpu, &gradients, |_| bytes, 0, 1)[0];
    let found = [0, 4, 8, 12].map(|bytes| at(bytes).squares.to_bits());
    assert_eq!(found, [found[0]; 4]);
}

#[test]
fn a_record_without_main_grads_is_zero_and_one_with_a_nan_is_found() {
    let Some(gpu) = Gpu::open("records of nothing and of NaN") else { return };
    assert_eq!(record(&gpu, &[], 0, 2)[1], NormRecord::default());
    assert_eq!(record(&gpu, &[vec![]], 5, 1)[0], NormRecord { fault: 5, ..NormRecord::default() });
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut gradient = values(50_000, Kind::Weights, 1);
        gradient[43_210] = poison;
        assert!(!record(&gpu, &[gradient], 0, 1)[0].squares.is_finite());
    }
}

/// What the CPU backend votes.
fn count(records: &[NormRecord], taken: u32, gradient_scale: f32, max_norm: f32) -> Vote {
    let unscale = 1.0 / gradient_scale;
    let squares = records.iter().fold(0.0, |sum, record| sum + record.squares);
    let norm = (squares.sqrt() * f64::from(unscale)) as f32;
    let clip = if max_norm > 0.0 { (max_norm / (norm + 1e-6)).min(1.0) } else { 1.0 };
    let clipped = norm * clip;
    let vote = Vote { clip: 1.0, norm, unscale, step: taken, ..Vote::default() };
    match records.iter().position(|record| record.fault != 0) {
        Some(rank) => Vote {
            verdict: Vote::CLOSURE,
            fault_rank: rank as u32,
            fault_call: records[rank].fault - 1,
            ..vote
        },
        None if !(clipped * clipped).is_finite() => Vote { verdict: Vote::NON_FINITE, ..vote },
        None => Vote { clip, step: taken.saturating_add(1), ..vote },
    }
}

#[test]
fn votes_are_the_cpus() {
    let Some(gpu) = Gpu::open("votes") else { return };
    let mut random = Random::new(5);
    for case in 0..200 {
        let ranks = 1 + random.below(9);
        // Of squares that f32 does not hold, a few need clipping, and of some it holds no norm.
        let size = if case % 6 == 5 { [1e-50, 1e37, 1e39, 1e60, 1e80][random.below(5)] } else { 9.0 };
        let mut records: Vec<NormRecord> = (0..ranks)
            .map(|_| NormRecord { squares: f64::from(random.unit().abs()) * size, ..NormRecord::default() })
            .collect();
        match case % 6 {
            1 => records[random.below(ranks)].squares = f64::NAN,
            2 => records[random.below(ranks)].squares = f64::INFINITY,
            3 => records[random.below(ranks)] = NormRecord { squares: f64::NAN, fault: 4, reserved: 0 },
            _ => {}
        }
        let taken = if case % 7 == 0 { u32::MAX } else { case };
        let gradient_scale = [1.0, 1024.0, 3.0][random.below(3)];
        let max_norm = [0.0, 0.5, 100.0][random.below(3)];
        let (on_records, on_step) = (gpu.buffer(&records), gpu.buffer(&[taken]));
        let (on_scale, on_vote) =
            (gpu.buffer(&[gradient_scale]), gpu.buffer(&[Vote { reserved: 9, ..Vote::default() }]));
        gpu.run(gpu.kernels.vote(&VoteOperand {
            records: on_records.address(),
            ranks,
            optimizer_step: on_step.address(),
            gradient_scale: on_scale.address(),
            vote: on_vote.address(),
            max_norm,
        }));
        let expected = count(&records, taken, gradient_scale, max_norm);
        let found = on_vote.read()[0];
        if expected.norm.is_nan() {
            assert!(found.norm.is_nan());
            assert_eq!(Vote { norm: 0.0, ..found }, Vote { norm: 0.0, ..expected });
        } else {
            assert_eq!(found, expected);
        }
        assert_eq!(on_step.read(), [expected.step]);
    }
}

/// A record begins with an f64, which a kernel reads and writes as one.
#[test]
fn records_that_do_not_begin_at_a_multiple_of_8_bytes_are_refused() {
    let Some(gpu) = Gpu::open("misaligned records") else { return };
    let at = DeviceAddress::new;
    let norm = |record| gpu.kernels.grad_norm(&[], at(256), at(record));
    let vote = |records| {
        let operand = VoteOperand {
            records: at(records),
            ranks: 2,
            optimizer_step: at(1028),
            gradient_scale: at(1028),
            vote: at(1028),
            max_norm: 0.0,
        };
        gpu.kernels.vote(&operand)
    };
    assert!(norm(512).is_ok() && vote(512).is_ok());
    for failure in [norm(516).unwrap_err(), vote(516).unwrap_err()] {
        assert!(failure.to_string().contains("multiple of 8"), "{failure}");
    }
}

#[test]
fn a_sum_of_no_ranks_is_refused() {
    let Some(gpu) = Gpu::open("a sum of no ranks") else { return };
    let operand = CombineOperand { sources: vec![], to: DeviceAddress::new(256), elements: 1 };
    let failure = gpu.kernels.combine(Combination::of_f32(Reduction::Sum), &[operand]).unwrap_err();
    assert!(failure.to_string().contains("no rank"), "{failure}");
}
