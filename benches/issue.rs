//! Benchmark of the host's time in a step: per task issued, and per message between actors.
//!
//! The pump drives the actors of a real plan over a backend that does nothing, so what is left is flow
//! control itself: mailboxes, rights, worklists, the checks at issue. A message is a right or a turn;
//! both numbers divide the same step. Tracing is off, as in a run that is not observed.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark has no readers of its interface")]

mod decoder;
mod null;

use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use null::Null;
use warpweft_base::id::RankId;
use warpweft_plan::plan::StepPlan;
use warpweft_session::actor::{Poison, Wiring};
use warpweft_session::exec::Pump;

/// Rights granted in one step, and one turn for every task.
fn messages(plan: &StepPlan) -> usize {
    Wiring::new(plan).grants.len() + plan.tasks.len()
}

fn issue(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("issue");
    for blocks in &decoder::BLOCKS[..2] {
        let plan = Arc::new(decoder::plan(&decoder::program(*blocks)));
        let mut streams: Vec<_> = plan.lanes.iter().map(|lane| lane.id).collect();
        let mut pump: Pump<Null> = Pump::new(RankId::new(0), &plan, Poison::default());
        let null = Null { mesh: plan.weights.mesh };
        let mut steps = |number: u64| {
            let begin = Instant::now();
            for _ in 0..number {
                pump.run(&null, &mut streams, &()).unwrap();
            }
            begin.elapsed()
        };
        for (unit, count) in [("per task", plan.tasks.len()), ("per message", messages(&plan))] {
            let id = BenchmarkId::new(unit, format!("{count} of them"));
            // One iteration of a unit is its share of a step.
            group.bench_function(id, |bench| {
                bench.iter_custom(|number| steps(number).div_f64(count as f64));
            });
        }
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50).warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = issue
}
criterion_main!(benches);
