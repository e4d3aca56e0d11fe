//! Benchmark of planning: the time from a declared program to a plan that may run, for 100 to 10,000 tasks; and for
//! 2,000 to 30,000 of a decoder each of whose experts is a group of its own, so that many slots are held at one time.
//!
//! `build` is all of it, verification included; `verify` is the proof alone, `wire` the routes of its
//! messages, `fingerprint` what ranks compare. All of it happens once per program, before the first step. A
//! time that grows faster than the number of tasks is a fault.

#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark has no readers of its interface")]

mod decoder;

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use warpweft_format::Format;
use warpweft_plan::model::{Decoder, Math, StepProgram};
use warpweft_plan::plan::verify;
use warpweft_session::actor::Wiring;

/// Layers of decoders with experts.
const EXPERT_LAYERS: [usize; 3] = [2, 8, 32];

/// One training step of a decoder of `layers` layers with 64 experts, which are gathered and reduced one by one.
fn experts(layers: usize) -> StepProgram {
    let decoder = Decoder {
        name: "experts".to_owned(),
        layers,
        hidden: 64,
        ffn: 64,
        heads: 4,
        kv_heads: None,
        vocabulary: 64,
        tokens: 64,
        micro_batches: None,
        sequence: None,
        math: Math::Bf16,
        format: Format::NVFP4_2D,
        embedding_format: None,
        experts: Some(64),
        expert_ffn: None,
        dense_layers: None,
        experts_per_token: Some(4),
        expert_groups: Some(64),
        tied: false,
        replays: None,
    };
    decoder.program(&decoder.model().unwrap()).unwrap()
}

fn planning(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("planning");
    for program in decoder::BLOCKS.map(decoder::program) {
        stages(&mut group, &program);
    }
    group.finish();
    let mut group = criterion.benchmark_group("planning experts");
    for program in EXPERT_LAYERS.map(experts) {
        stages(&mut group, &program);
    }
    group.finish();
}

fn stages(group: &mut BenchmarkGroup<'_, WallTime>, program: &StepProgram) {
    let plan = decoder::plan(program);
    let id = |what: &str| BenchmarkId::new(what, format!("{} tasks", plan.tasks.len()));
    group.throughput(Throughput::Elements(plan.tasks.len() as u64));
    group.bench_function(id("build"), |bench| bench.iter(|| decoder::plan(program)));
    group.bench_function(id("verify"), |bench| bench.iter(|| verify(&plan).unwrap()));
    group.bench_function(id("wire"), |bench| bench.iter(|| Wiring::new(&plan)));
    group.bench_function(id("fingerprint"), |bench| bench.iter(|| plan.fingerprint()));
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = planning
}
criterion_main!(benches);
