//! Exchanges by one kernel: the bytes that are copied, the time, and the state that is left. The laws are those of
//! `kernels/exchange.cu`.
//!
//! Every launch runs several times: whatever it left in its gate would let blocks go too early the next time,
//! or keep the last one from being known.

use std::time::Duration;

use warpweft_cuda::kernels::{CopyOperand, KernelLaunch, Mark, Partner};

use super::stream::{Stream, in_time};
use super::values::Random;
use crate::gpu::{Buffer, Gpu};

/// Around every access and tile, and more tiles than a launch has blocks.
const LENGTHS: [usize; 10] = [0, 1, 15, 16, 17, 32_767, 32_768, 32_784, 65_539, 1_000_003];
const RUNS: u32 = 3;
const EMPTY: u8 = 0xEE;

/// What a rank sends, and where it lands.
struct Ranges {
    sources: Vec<Vec<u8>>,
    from: Vec<Buffer<u8>>,
    to: Vec<Buffer<u8>>,
}

impl Ranges {
    fn new(gpu: &Gpu, shift: usize, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let sources: Vec<Vec<u8>> =
            LENGTHS.iter().map(|n| (0..*n).map(|_| random.bits() as u8).collect()).collect();
        let from = sources.iter().map(|source| gpu.buffer_at(source, shift)).collect();
        // Every other pair is shifted alike, so that both ends are aligned, or neither.
        let to = LENGTHS.iter().enumerate().map(|(at, n)| gpu.buffer_at(&vec![EMPTY; *n], at % 2 * shift));
        Self { sources, from, to: to.collect() }
    }

    fn copies(&self) -> Vec<CopyOperand> {
        let copy = |at: usize| CopyOperand {
            from: self.from[at].address(),
            to: self.to[at].address(),
            bytes: LENGTHS[at],
        };
        (0..LENGTHS.len()).map(copy).collect()
    }

    fn empty(&self) {
        self.to.iter().zip(LENGTHS).for_each(|(to, n)| to.write(&vec![EMPTY; n]));
    }

    /// Has everything been written, and nothing around it?
    fn are_written(&self) -> bool {
        self.to.iter().zip(&self.sources).all(|(to, source)| to.read() == *source)
    }

    /// Is everything as it was before?
    fn are_empty(&self) -> bool {
        self.to.iter().all(|to| to.read().iter().all(|byte| *byte == EMPTY))
    }
}

#[test]
fn an_exchange_without_partners_copies_every_range_and_nothing_else_each_time_it_runs() {
    let Some(gpu) = Gpu::open("a collective without partners") else { return };
    for shift in [0, 1, 4] {
        let ranges = Ranges::new(&gpu, shift, shift as u64);
        let progress = gpu.buffer(&[0_u32]);
        let mark = Mark { word: progress.address(), number: 7 };
        let copies = ranges.copies();
        // Many blocks, one block, and nothing to say.
        for (copies, are_all) in [(&copies[..], true), (&copies[3..4], false), (&[][..], false)] {
            let launch = gpu.kernels.exchange(copies, &[], Some(mark)).unwrap();
            for _ in 0..RUNS {
                ranges.empty();
                progress.write(&[0]);
                gpu.run(Ok(launch.clone()));
                assert_eq!(progress.read(), [7], "{} ranges", copies.len());
                if are_all {
                    assert!(ranges.are_written(), "shifted by {shift}");
                } else {
                    let written = ranges.to.iter().map(|to| to.read().first().is_some_and(|b| *b != EMPTY));
                    assert!(written.enumerate().all(|(at, is)| !is || (at == 3 && copies.len() == 1)));
                }
            }
        }
    }
}

/// Numbers of one word, of which the first is its first half.
const WORD: usize = 2;
/// A word that nobody has set.
const CLEAR: [u32; WORD] = [0, 0];
/// A word that the partner has set.
const SIGNALLED: [u32; WORD] = [1, 0];
/// A word that is open for good.
const OPEN: [u32; WORD] = [0, 1];

/// The words of one rank, in the order ready, done.
fn partner(there: &Buffer<u32>, here: &Buffer<u32>) -> Partner {
    Partner {
        ready_there: there.address(),
        ready_here: here.address(),
        done_there: there.address().plus(size_of_val(&CLEAR)),
        done_here: here.address().plus(size_of_val(&CLEAR)),
    }
}

/// A kernel that waits for the test would never end where launches are waited for one by one.
fn one_by_one() -> bool {
    let is = std::env::var_os("CUDA_LAUNCH_BLOCKING").is_some_and(|value| value != "0");
    if is {
        crate::say_skipped(&"exchanges with partners: CUDA_LAUNCH_BLOCKING is set");
    }
    is
}

/// PL-8. The test is the partner: it says ready and done when it likes.
#[test]
fn pl8_nothing_is_written_before_the_partner_is_ready_and_the_launch_ends_when_the_partner_is_done() {
    let Some(gpu) = Gpu::open("a collective with the test") else { return };
    if one_by_one() {
        return;
    }
    let ranges = Ranges::new(&gpu, 0, 1);
    // Words of its own each, so that one can be written while others are waited for.
    let (ready_there, done_there) = (gpu.buffer(&CLEAR), gpu.buffer(&CLEAR));
    let (ready_here, done_here) = (gpu.buffer(&CLEAR), gpu.buffer(&CLEAR));
    let partner = Partner {
        ready_there: ready_there.address(),
        ready_here: ready_here.address(),
        done_there: done_there.address(),
        done_here: done_here.address(),
    };
    let launch = gpu.kernels.exchange(&ranges.copies(), &[partner], None).unwrap();
    let stream = Stream::new(&gpu);
    for run in 0..RUNS {
        ranges.empty();
        stream.enqueue(&launch);
        // Read while the kernel runs, judged when it has ended.
        let was_ready = in_time(|| ready_there.read() == SIGNALLED);
        // Time enough for any block that would not wait.
        std::thread::sleep(Duration::from_millis(20));
        let was_empty = ranges.are_empty();
        let had_said_done = done_there.read() == SIGNALLED;
        ready_here.write(&SIGNALLED);
        let was_done = in_time(|| done_there.read() == SIGNALLED);
        let was_written = ranges.are_written();
        let had_ended = stream.is_idle();
        done_here.write(&SIGNALLED);
        stream.wait();
        assert!(was_ready && was_empty && !had_said_done, "run {run}: written before the partner was ready");
        assert!(was_done && was_written, "run {run}: done was said before all was written");
        assert!(!had_ended, "run {run}: ended before the partner was done");
        assert_eq!(
            (ready_here.read(), done_here.read()),
            (CLEAR.to_vec(), CLEAR.to_vec()),
            "run {run}: words are cleared"
        );
        // The partner has seen them.
        ready_there.write(&CLEAR);
        done_there.write(&CLEAR);
    }
}

/// PL-8. Two launches on one GPU, each the other's partner, in either order.
#[test]
fn pl8_two_launches_that_are_partners_meet_whichever_comes_first() {
    let Some(gpu) = Gpu::open("a collective of two launches") else { return };
    if one_by_one() {
        return;
    }
    let ranges = [Ranges::new(&gpu, 0, 2), Ranges::new(&gpu, 1, 3)];
    let words = [gpu.buffer(&[0_u32; 2 * WORD]), gpu.buffer(&[0_u32; 2 * WORD])];
    let progress = [gpu.buffer(&[0_u32]), gpu.buffer(&[0_u32])];
    let launches: Vec<KernelLaunch> = (0..2)
        .map(|rank| {
            let mark = Mark { word: progress[rank].address(), number: rank as u32 + 1 };
            let partner = partner(&words[1 - rank], &words[rank]);
            gpu.kernels.exchange(&ranges[rank].copies(), &[partner], Some(mark)).unwrap()
        })
        .collect();
    let streams = [Stream::new(&gpu), Stream::new(&gpu)];
    for run in 0..RUNS as usize {
        for rank in 0..2 {
            ranges[rank].empty();
            progress[rank].write(&[0]);
        }
        for rank in [run % 2, 1 - run % 2] {
            streams[rank].enqueue(&launches[rank]);
        }
        streams.iter().for_each(Stream::wait);
        for rank in 0..2 {
            assert!(ranges[rank].are_written(), "run {run}, rank {rank}");
            assert_eq!(progress[rank].read(), [rank as u32 + 1], "run {run}, rank {rank}");
            assert_eq!(words[rank].read(), [0; 2 * WORD], "run {run}, rank {rank}: words are cleared");
        }
    }
}

/// RL-1. The partner is gone: nobody signals.
#[test]
fn rl1_words_that_are_open_for_good_hold_up_no_launch_however_often_it_comes_to_them() {
    let Some(gpu) = Gpu::open("a collective with open words") else { return };
    if one_by_one() {
        return;
    }
    let ranges = Ranges::new(&gpu, 0, 4);
    let (there, here) = (gpu.buffer(&[0_u32; 2 * WORD]), gpu.buffer(&[0_u32; 2 * WORD]));
    let launch = gpu.kernels.exchange(&ranges.copies(), &[partner(&there, &here)], None).unwrap();
    let stream = Stream::new(&gpu);
    stream.enqueue(&launch);
    let waits = in_time(|| there.read()[..WORD] == SIGNALLED);
    std::thread::sleep(Duration::from_millis(20));
    let had_ended = stream.is_idle();
    here.write(&[OPEN, OPEN].concat());
    // One that waits already, and others.
    for _ in 0..RUNS {
        stream.enqueue(&launch);
    }
    stream.wait();
    assert!(waits && !had_ended, "it waited for no partner");
    assert!(ranges.are_written());
    assert_eq!(here.read(), [OPEN, OPEN].concat(), "clearing a word does not close it");
}
