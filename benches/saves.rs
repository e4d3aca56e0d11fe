//! Benchmark of saves: what a save costs a run that goes on beside it, and one that waits for it.
//!
//! One rank trains a stack of layers. Rounds of ten steps take turns: without a save, with one in the background at
//! the begin, and with a stopped one, each round to its last step; so other work on the machine falls on all. A ratio
//! is the median over turns of *the round's time / that of the round without*. The disk is that of the temporary
//! folder. Arguments: `--quick` for three turns; `--gpu TOKENS` for a rank on the first GPU, with
//! these tokens a step.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark has no readers of its interface")]

mod save_sessions;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use warpweft::prelude::*;
use warpweft::session::block_on;

/// Steps from one save to the next.
const STEPS: usize = 10;

/// How a round saves.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Saves {
    Never,
    Beside,
    Stopped,
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
            beside = beside_calls(session, &report);
        }
    }
    let took = begun.elapsed();
    block_on(session.finish_save()).unwrap();
    let _ = std::fs::remove_dir_all(files.folder());
    (took, longest, beside)
}

/// The share of the time of copies in which a call ran; none where a device told no times.
fn beside_calls(session: &Session, report: &StepReport) -> Option<f64> {
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
    (all > 0 && !calls.is_empty()).then(|| copies.iter().map(shared).sum::<u64>() as f64 / all as f64)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let turns = if arguments.iter().any(|argument| argument == "--quick") { 3 } else { 9 };
    let gpu = arguments.iter().position(|argument| argument == "--gpu");
    let tokens = gpu.map(|at| arguments.get(at + 1).and_then(|tokens| tokens.parse().ok()));
    let started = match tokens {
        None => Ok(save_sessions::on_the_cpu()),
        Some(Some(tokens)) => save_sessions::on_a_gpu(tokens),
        Some(None) => {
            eprintln!("--gpu takes the tokens of a step, as --gpu 8192");
            std::process::exit(2);
        }
    };
    let (what, mut session) = match started {
        Ok(started) => started,
        Err(reason) => return eprintln!("skipped: saves are not measured: {reason}"),
    };
    let folder = tempfile::tempdir().unwrap();
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
    println!("{what}, {mib:.0} MiB of state, {STEPS} steps a round, {turns} turns");
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
    block_on(session.close()).unwrap();
}
