//! How long it takes from a declared program to a plan that may run, for 100 to 10,000 tasks.
//!
//! `build` is all of it, verification included; `verify` is the proof alone, `wire` the routes of its
//! messages, `fingerprint` what ranks compare. All of it happens once per program, before the first step. A
//! time that grows faster than the number of tasks is a fault.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark has no readers of its interface")]

mod decoder;

use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use warpweft::flow::Wiring;
use warpweft::plan::verify;

fn planning(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("planning");
    for blocks in decoder::BLOCKS {
        let program = decoder::program(blocks);
        let plan = decoder::plan(&program);
        let id = |what: &str| BenchmarkId::new(what, format!("{} tasks", plan.tasks.len()));
        group.throughput(Throughput::Elements(plan.tasks.len() as u64));
        group.bench_function(id("build"), |bench| bench.iter(|| decoder::plan(&program)));
        group.bench_function(id("verify"), |bench| bench.iter(|| verify(&plan).unwrap()));
        group.bench_function(id("wire"), |bench| bench.iter(|| Wiring::new(&plan)));
        group.bench_function(id("fingerprint"), |bench| bench.iter(|| plan.fingerprint()));
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = planning
}
criterion_main!(benches);
