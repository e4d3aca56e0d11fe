//! Random programs in whole sessions: actors, checker, CPU.

use std::collections::HashMap;

use warpweft_base::id::RankId;
use warpweft_plan::layout::WeightLayout;
use warpweft_plan::model::Role;
use warpweft_plan::policy::Reduce;
use warpweft_session::checkpoint::Carried;
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::Session;
use warpweft_testing::random_programs::Sample;
use warpweft_testing::random_programs::samples;
use warpweft_testing::trainer::within_a_minute;

use super::custom_optimizer::Closures;
use super::reference::{self, Outcome, is_plain};
use super::{closure, wanted};

/// For each step of the optimizer, of how many steps the gradients are: enough for a step that is issued, one that is
/// captured and one that is replayed.
fn sums(sample: &Sample) -> &'static [u32] {
    if sample.program.is_accumulating() { &[2, 3, 3, 1] } else { &[1; 3] }
}

async fn outcome(sample: &Sample, config: Config) -> Outcome {
    let of = sample.clone();
    let builder = Session::builder(config, move |_: RankId| Closures::of(&of));
    let builder = builder.program(sample.program.clone()).initialize(closure::initial);
    let mut session = builder.start_cpu(sample.ranks).await.unwrap();
    let ranks: Vec<RankId> = (0..sample.ranks).map(RankId::new).collect();
    let of_role = |role: Role| sample.program.buffers().iter().filter(move |spec| spec.role == role);
    let mut outcome = Outcome::default();
    // Of each step, whether it is its sum's last.
    let ends = sums(sample).iter().flat_map(|steps| (1..=*steps).map(move |step| step == *steps));
    for (step, is_last) in (0..).zip(ends) {
        for (rank, spec) in ranks.iter().flat_map(|rank| of_role(Role::Input).map(move |spec| (*rank, spec)))
        {
            let mut values = vec![0.0; spec.elements * sample.program.micro_batches() as usize];
            for (micro_batch, values) in (0..).zip(values.chunks_mut(spec.elements)) {
                closure::input(step, rank, micro_batch, &spec.name, values);
            }
            session.write_input("step", rank, &spec.name, &values).unwrap();
        }
        let report = if is_last { session.step("step").await } else { session.accumulate("step").await };
        let report = report.unwrap();
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
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    // In files experts of one layer stand together.
    let names = reference::names(sample);
    assert_eq!(state.weights.len(), names.len());
    for name in names {
        let weight = state.weights.iter().find(|weight| weight.name == name).unwrap();
        outcome.masters.push(bits(&weight.master));
        let list = |list| bits(weight.states.get(list).map_or(&[][..], Vec::as_slice));
        outcome.lists.push([0, 1].map(list));
    }
    if let Carried::Buffers(buffers) = state.carried {
        for buffer in buffers {
            if of_role(Role::Input).all(|spec| spec.name != buffer.name) {
                outcome.carried.insert(buffer.name, buffer.ranks);
            }
        }
    }
    outcome
}

/// EX-1, PL-2, PL-4, PL-9, PL-10. Issued, captured and replayed under the checker, the bits are those of a
/// trainer that knows neither ranks nor plans; sums of gradients over several steps too. Programs that this trainer
/// cannot run are passed over here.
#[test]
fn plans_of_random_programs_give_the_bits_of_an_unsharded_trainer() {
    let (programs, mut accumulating, mut by_rules, mut whole, mut exchanging) = (wanted() / 25, 0, 0, 0, 0);
    let mut of_experts = 0;
    // A budget that was found for plans of another kind, or for some of them alone, is none for a session's.
    let starts =
        |sample: &Sample| sample.reduce == Reduce::Ordered && sample.parts().all(|part| part.plans().is_ok());
    let plain = samples(4 << 32).filter(|(_, sample, ..)| is_plain(sample) && starts(sample));
    for (seed, sample, ..) in plain.take(programs) {
        let is_dynamic = sample.program.calls().iter().any(|call| call.dynamic);
        let capture = match (seed % 2, is_dynamic) {
            (0, _) => Capture::Off,
            (_, true) => Capture::Segments,
            (_, false) => Capture::Step,
        };
        let config = Config { capture, ..sample.config.clone() };
        let expected = reference::run(&sample, sums(&sample));
        accumulating += usize::from(sample.program.is_accumulating());
        let by_rule = sample.config.optimizer.custom_states.is_some() && sample.program.updates_weights();
        by_rules += usize::from(by_rule);
        let by_matrices =
            sample.program.model().weights().iter().any(|spec| !spec.frozen && spec.parameters.whole_matrix);
        whole += usize::from(by_rule && by_matrices);
        exchanging += usize::from(sample.program.calls().iter().any(|call| call.collective.is_some()));
        let is_of_expert = |layout: &WeightLayout| layout.shard.expert > Some(1);
        of_experts += usize::from(sample.weights().layouts.iter().any(is_of_expert));
        let found = within_a_minute(async move { outcome(&sample, config).await });
        assert_eq!(found, expected, "seed {seed}, {capture:?}");
    }
    println!(
        "{programs} random programs, {accumulating} of which add gradients of several steps, {by_rules} of which are trained by a custom optimizer, {whole} of these by whole matrices, {exchanging} of which exchange buffers, and {of_experts} of which share the experts among ranks: the bits of an unsharded trainer"
    );
    assert!(accumulating > programs / 20, "{accumulating}");
    assert!(by_rules > programs / 20, "{by_rules}");
    assert!(whole > programs / 20, "{whole}");
    assert!(exchanging > programs / 20, "{exchanging}");
    assert!(of_experts > programs / 20, "{of_experts}");
}
