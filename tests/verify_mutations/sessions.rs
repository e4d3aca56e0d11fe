//! Random programs on the whole machine: session, actors, checker, CPU.

use std::collections::HashMap;

use warpweft::backend::cpu::CpuSurface;
use warpweft::compute::ComputeContext;
use warpweft::config::{Capture, Config, Masters, Moments, Reduce, Scaling};
use warpweft::id::RankId;
use warpweft::model::{Call, Role};
use warpweft::session::{Carried, Session};

use crate::random_programs::Sample;
use crate::random_programs::samples;
use crate::reference::{self, Outcome};
use crate::trainer::within_a_minute;
use crate::{closure, wanted};

/// Enough for a step that is issued, one that is recorded and one that is replayed.
const STEPS: u32 = 3;

async fn outcome(sample: &Sample, config: Config) -> Outcome {
    let model = sample.program.model().clone();
    let closures = move |_: RankId| {
        let model = model.clone();
        move |call: &Call, context: &ComputeContext<'_, CpuSurface>| closure::run(&model, call, context)
    };
    let builder =
        Session::builder(config, closures).program(sample.program.clone()).initialize(closure::initial);
    let mut session = builder.start_cpu(sample.ranks).await.unwrap();
    let ranks: Vec<RankId> = (0..sample.ranks).map(RankId::new).collect();
    let of_role = |role: Role| sample.program.buffers().iter().filter(move |spec| spec.role == role);
    let mut outcome = Outcome::default();
    for step in 0..STEPS {
        for (rank, spec) in ranks.iter().flat_map(|rank| of_role(Role::Input).map(move |spec| (*rank, spec)))
        {
            let mut values = vec![0.0; spec.elements * sample.program.micro_batches() as usize];
            for (micro_batch, values) in (0..).zip(values.chunks_mut(spec.elements)) {
                closure::input(step, rank, micro_batch, &spec.name, values);
            }
            session.write_input("step", rank, &spec.name, &values).unwrap();
        }
        let report = session.step("step").await.unwrap();
        let of_rank = |rank: &RankId| {
            let written = |name: &str| {
                let values = report.output::<f32>(*rank, name).unwrap();
                values.into_iter().map(f32::to_bits).collect()
            };
            of_role(Role::Output)
                .map(|spec| (spec.name.clone(), written(&spec.name)))
                .collect::<HashMap<_, _>>()
        };
        outcome.outputs.push(ranks.iter().map(of_rank).collect());
    }
    let state = session.export().await.unwrap();
    let bits = |values: &Vec<f32>| values.iter().map(|value| value.to_bits()).collect();
    outcome.masters = state.weights.iter().map(|weight| bits(&weight.master)).collect();
    if let Carried::Buffers(buffers) = state.carried {
        for buffer in buffers {
            if of_role(Role::Input).all(|spec| spec.name != buffer.name) {
                let of = |bytes: &Vec<u8>| bytemuck::allocation::pod_collect_to_vec(bytes);
                outcome.carried.insert(buffer.name, buffer.ranks.iter().map(of).collect());
            }
        }
    }
    outcome
}

/// EX-1, PL-2, PL-4, PL-9, PL-10. Issued, recorded and replayed under the checker, the bits are those of a
/// trainer that knows neither ranks nor plans. The reference keeps its state in f32 and its scales current,
/// so programs with other state are passed over here.
#[test]
fn plans_of_random_programs_give_the_bits_of_an_unsharded_trainer() {
    let programs = wanted() / 25;
    let is_plain = |sample: &Sample| {
        let config = &sample.config;
        // A budget that was found for plans of another kind is none for a session's.
        (config.optimizer.moments, config.optimizer.masters, config.quantize.scaling, sample.reduce)
            == (Moments::F32, Masters::F32, Scaling::Current, Reduce::Ordered)
    };
    for (seed, sample, ..) in samples(4 << 32).filter(|(_, sample, ..)| is_plain(sample)).take(programs) {
        let is_dynamic = sample.program.calls().iter().any(|call| call.dynamic);
        let capture = match (seed % 2, is_dynamic) {
            (0, _) => Capture::Off,
            (_, true) => Capture::Segments,
            (_, false) => Capture::Step,
        };
        let config = Config { capture, ..sample.config.clone() };
        let expected = reference::run(&sample, STEPS);
        let found = within_a_minute(async move { outcome(&sample, config).await });
        assert_eq!(found, expected, "seed {seed}, {capture:?}");
    }
    println!("{programs} random programs, {STEPS} steps each: the bits of an unsharded trainer");
}
