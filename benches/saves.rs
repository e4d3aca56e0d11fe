//! Benchmark of saves: what a save costs a run that goes on beside it, and one that waits for it.
//!
//! One rank trains a stack of layers. Rounds of ten steps take turns: without a save, with one in the background at
//! the begin, and with a stopped one, each round to its last step; so other work on the machine falls on all. A ratio
//! is the median over turns of *the round's time / that of the round without*. The disk is that of the temporary
//! folder. Arguments: `--quick` for three turns.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark has no readers of its interface")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use warpweft::prelude::*;
use warpweft::session::block_on;

const LAYERS: usize = 4;
const SIZE: usize = 1024;
/// Rows of a batch.
const ROWS: usize = 64;
/// Steps from one save to the next.
const STEPS: usize = 10;

/// How a round saves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Saves {
    Never,
    Beside,
    Stopped,
}

fn start() -> Session {
    let mut model = Model::builder();
    let weights: Vec<_> = (0..LAYERS)
        .map(|layer| model.sharded(&format!("layer{layer}"), SIZE, SIZE, Format::Bf16).unwrap())
        .collect();
    let mut program = StepProgram::builder("train", &model.build());
    for (layer, weight) in weights.iter().enumerate() {
        program.call(&format!("forward {layer}"), Phase::Forward).uses_dense(*weight).add().unwrap();
    }
    for (layer, weight) in weights.iter().enumerate().rev() {
        let call = program.call(&format!("backward {layer}"), Phase::Backward).uses_dense(*weight);
        call.gradient(*weight).add().unwrap();
    }
    let program = program.build_training().unwrap();
    let closure = on_cpu(move |call: &Call, context: &ComputeContext<'_, CpuSurface>| {
        for usage in &call.uses {
            let values = context.dense(usage.weight, Orientation::Rowwise)?;
            let row = products(&values);
            if let Some(gradient) = call.gradients.first() {
                let mut gradient = context.gradient(gradient.weight)?;
                for (to, from) in gradient.chunks_mut(SIZE).zip(values.chunks(SIZE)) {
                    to.iter_mut().zip(from).zip(&row).for_each(|((to, from), row)| *to = from + 1e-6 * row);
                }
            }
        }
        Ok(())
    });
    let builder = Session::builder(Config::default(), move |_| closure).program(program);
    block_on(builder.initialize(initial::normal(17, 0.02)).start_cpu(1)).unwrap()
}

/// As much work as a batch of rows is by a matrix.
fn products(matrix: &[f32]) -> Vec<f32> {
    let mut sums = vec![0.0f32; SIZE];
    for row in 0..ROWS {
        let factor = 1.0 / (1 + row) as f32;
        for line in matrix.chunks(SIZE) {
            sums.iter_mut().zip(line).for_each(|(sum, value)| *sum = 0.5 * *sum + factor * value);
        }
    }
    sums
}

/// The time of a round, of its longest step, and the share of copies that ran beside calls.
fn round(session: &mut Session, saves: Saves, folder: &Path) -> (Duration, Duration, Option<f64>) {
    let files = PartFiles::new(folder.join("step-0"));
    let begun = Instant::now();
    match saves {
        Saves::Never => {}
        Saves::Beside => block_on(session.save_parts_in_background(&files, &BTreeMap::new())).unwrap(),
        Saves::Stopped => block_on(session.save_parts(&files, &BTreeMap::new())).unwrap(),
    }
    let (mut longest, mut beside) = (Duration::ZERO, None);
    for _ in 0..STEPS {
        let report = block_on(session.step("train")).unwrap();
        longest = longest.max(report.duration);
        if report.plan().takes_snapshot {
            beside = Some(beside_calls(session, &report));
        }
    }
    let took = begun.elapsed();
    block_on(session.finish_save()).unwrap();
    let _ = std::fs::remove_dir_all(files.folder());
    (took, longest, beside)
}

/// The share of the time of copies in which a call ran.
fn beside_calls(session: &Session, report: &StepReport) -> f64 {
    let intervals = session.intervals(RankId::new(0)).unwrap();
    let of = |name: &str| {
        let tasks = report.plan().tasks.iter().zip(&intervals);
        let own = tasks.filter(|(task, _)| task.op.name() == name);
        own.map(|(_, interval)| (interval.begin, interval.end)).collect::<Vec<_>>()
    };
    let (copies, calls) = (of("snapshot"), of("compute"));
    let shared = |(begin, end): &(u64, u64)| {
        let meets = |call: &(u64, u64)| call.1.min(*end).saturating_sub(call.0.max(*begin));
        calls.iter().map(meets).sum::<u64>()
    };
    let all: u64 = copies.iter().map(|(begin, end)| end - begin).sum();
    copies.iter().map(shared).sum::<u64>() as f64 / all.max(1) as f64
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let turns = if std::env::args().any(|argument| argument == "--quick") { 3 } else { 9 };
    let folder = tempfile::tempdir().unwrap();
    let mut session = start();
    round(&mut session, Saves::Never, folder.path());
    round(&mut session, Saves::Beside, folder.path());
    let all = [Saves::Never, Saves::Beside, Saves::Stopped];
    let mut found = vec![Vec::new(); all.len()];
    for _ in 0..turns {
        for (saves, found) in all.iter().zip(&mut found) {
            found.push(round(&mut session, *saves, folder.path()));
        }
    }
    let mib = session.snapshot_bytes() as f64 / f64::from(1 << 20);
    println!(
        "{LAYERS} layers of {SIZE} x {SIZE}, {mib:.0} MiB of state, {STEPS} steps a round, {turns} turns"
    );
    for (saves, times) in all.iter().zip(&found) {
        let seconds = median(times.iter().map(|(took, ..)| took.as_secs_f64()).collect());
        let ratios =
            times.iter().zip(&found[0]).map(|(own, without)| own.0.as_secs_f64() / without.0.as_secs_f64());
        let longest = median(times.iter().map(|(_, longest, _)| longest.as_secs_f64()).collect());
        let beside: Vec<f64> = times.iter().filter_map(|(.., beside)| *beside).collect();
        let beside = match beside.is_empty() {
            true => String::new(),
            false => format!(", {:.0}% of copying beside calls", 100.0 * median(beside)),
        };
        println!(
            "{saves:?}: {seconds:.3} s a round, {:.3} of a round without, longest step {longest:.3} s{beside}",
            median(ratios.collect())
        );
    }
}
