//! Optimizer state and hyperparameters in plans.

use std::collections::BTreeSet;

use warpweft_base::id::WeightId;
use warpweft_format::{AmaxChoice, Format, Orientation};
use warpweft_plan::layout::{ALIGNMENT, Delayed, OptimizerSettings, StateLayout, Weights};
use warpweft_plan::model::{Form, Mesh, Model, NonNegative, ParameterGroup, Phase, StepProgram};
use warpweft_plan::op::{Adam, AllReduce, Op, Reduction};
use warpweft_plan::plan::{PlanError, ResidentLayout, StepPlan};
use warpweft_plan::policy::{AdamMode, Masters, Moments};

use super::{chain, policy, position};

/// PL-1: ranks that would update differently do not start.
#[test]
fn every_constant_of_the_optimizer_is_part_of_the_fingerprint() {
    let fingerprint = |change: fn(&mut OptimizerSettings)| {
        let mut policy = policy(1);
        change(&mut policy.settings.optimizer);
        StepPlan::build(&chain(1, Format::F32), &policy, Mesh::new(2).unwrap()).unwrap().fingerprint()
    };
    let changes: [fn(&mut OptimizerSettings); 5] = [
        |_| (),
        |constants| constants.mode = AdamMode::Adam,
        |constants| constants.bias_correction = false,
        |constants| constants.epsilon = 0.5,
        |constants| constants.max_norm = 0.5,
    ];
    let distinct: BTreeSet<u64> = changes.into_iter().map(fingerprint).collect();
    assert_eq!(distinct.len(), changes.len());
}

#[test]
fn bf16_moments_take_half_the_bytes_of_f32_moments() {
    let plan =
        |moments| with_state(Format::NVFP4_2D, StateLayout { moments, ..StateLayout::default() }).unwrap();
    let (full, half) = (plan(Moments::F32), plan(Moments::Bf16));
    // Three weights of 32 rows per rank; the bias' slots are one alignment unit either way.
    assert_eq!(full.bounds.resident_bytes - half.bounds.resident_bytes, 3 * 2 * 32 * 64 * 2);
    assert_eq!(full.bounds.transient_bytes, half.bounds.transient_bytes);
    assert_ne!(full.fingerprint(), half.fingerprint());
}

/// A plan over a chain of three 64×64 weights on two ranks, with this state layout.
fn with_state(format: Format, state: StateLayout) -> Result<StepPlan, PlanError> {
    let program = chain(3, format);
    let weights = Weights::new(program.model().weights(), Mesh::new(2).unwrap()).with_state(state);
    let resident = ResidentLayout::new(&weights, &[&program])?;
    StepPlan::prologue(&weights, &resident, &policy(1))?;
    StepPlan::within(&program, &weights, &resident, &policy(1))
}

#[test]
fn a_bf16_shard_that_is_half_of_its_master_saves_the_other_half() {
    let split = StateLayout { masters: Masters::Bf16Remainder, ..StateLayout::default() };
    let whole = with_state(Format::Bf16, StateLayout::default()).unwrap();
    let split = with_state(Format::Bf16, split).unwrap();
    // Three weights of 32 rows per rank, 2 bytes of master instead of 4.
    assert_eq!(whole.bounds.resident_bytes - split.bounds.resident_bytes, 3 * 32 * 64 * 2);
    let casts = |plan: &StepPlan| plan.tasks.iter().any(|task| matches!(task.op, Op::PartialCast(_)));
    assert!(!casts(&whole) && !casts(&split), "the update writes the shard either way");
    assert_eq!(whole.bounds.wire_bytes, split.bounds.wire_bytes);
    assert_ne!(whole.fingerprint(), split.fingerprint());
}

#[test]
fn a_weight_of_another_format_cannot_be_half_of_its_master() {
    let split = StateLayout { masters: Masters::Bf16Remainder, ..StateLayout::default() };
    for format in Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok()) {
        if format == Format::Bf16 {
            continue;
        }
        let error = with_state(format, split).unwrap_err();
        assert!(matches!(&error, PlanError::Masters { weight, .. } if weight == "w0"), "{error}");
        let text = error.to_string();
        assert!(text.contains("optimizer.masters") && text.contains(&format.to_string()), "{text}");
    }
}

fn delayed(history: u32, choice: AmaxChoice) -> StateLayout {
    StateLayout { delayed: Some(Delayed { history, choice }), ..StateLayout::default() }
}

/// What delaying the scales is for: the maximum over the ranks is under way while the masters are cast.
#[test]
fn with_delayed_scaling_no_cast_waits_for_the_maximum_over_the_ranks() {
    let waits_for_maxima = |plan: &StepPlan, name: &str| {
        let maxima =
            position(plan, |op, _| matches!(op, Op::AllReduce(AllReduce { reduction: Reduction::Max, .. })));
        let task = position(plan, |op, _| op.name() == name);
        let waits = plan.tasks[..=task].iter().flat_map(|task| &task.waits);
        waits.into_iter().any(|wait| wait.index() == maxima)
    };
    let current = with_state(Format::FP8_TENSOR_E4M3, StateLayout::default()).unwrap();
    let delayed = with_state(Format::FP8_TENSOR_E4M3, delayed(16, AmaxChoice::Largest)).unwrap();
    assert!(waits_for_maxima(&current, "partial cast"));
    assert!(!waits_for_maxima(&delayed, "partial cast") && waits_for_maxima(&delayed, "record amax"));
    assert_eq!(current.bounds.wire_bytes, delayed.bounds.wire_bytes);
    // One factor and 16 amaxes for each of three weights, one alignment unit each.
    assert_eq!(delayed.bounds.resident_bytes - current.bounds.resident_bytes, 2 * ALIGNMENT);
}

/// PL-1: ranks that would scale differently do not start.
#[test]
fn history_and_choice_of_delayed_scaling_are_part_of_the_fingerprint() {
    let states = [
        StateLayout::default(),
        delayed(16, AmaxChoice::Largest),
        delayed(17, AmaxChoice::Largest),
        delayed(16, AmaxChoice::Latest),
    ];
    let fingerprint = |state| with_state(Format::FP8_TENSOR_E4M3, state).unwrap().fingerprint();
    assert_eq!(states.into_iter().map(fingerprint).collect::<BTreeSet<u64>>().len(), states.len());
    let error = with_state(Format::FP8_TENSOR_E4M3, delayed(0, AmaxChoice::Latest)).unwrap_err();
    assert!(error.to_string().contains("quantize.amax_history"), "{error}");
    let error = with_state(Format::Mxfp8, delayed(16, AmaxChoice::Latest)).unwrap_err().to_string();
    assert!(error.contains("quantize.scaling") && error.contains("mxfp8"), "{error}");
    // Where none of those trains there is nothing to remember either.
    let mut model = Model::builder();
    let base = model.sharded("base", 64, 64, Format::FP8_TENSOR_E4M3).unwrap();
    model.sharded("w", 64, 64, Format::Bf16).unwrap();
    model.freeze(base).unwrap();
    let weights = Weights::new(model.build().weights(), Mesh::new(2).unwrap());
    let weights = weights.with_state(delayed(16, AmaxChoice::Latest));
    let error = ResidentLayout::new(&weights, &[]).unwrap_err().to_string();
    assert!(
        error.contains("no weight that trains") && error.contains("(of weights that train: bf16)"),
        "{error}"
    );
}

/// Weights of one bucket are updated by as many tasks as they are parameter groups; what was not said of a
/// weight is as before.
#[test]
fn a_bucket_has_an_optimizer_task_for_each_parameter_group() {
    let mut model = Model::builder();
    let weights: Vec<_> =
        (0..4).map(|n| model.sharded(&format!("w{n}"), 64, 64, Format::NVFP4_2D).unwrap()).collect();
    let none = NonNegative::new(0.0);
    let undecayed = ParameterGroup { weight_decay: none, ..ParameterGroup::default() };
    let slow = ParameterGroup { learning_rate_scale: NonNegative::new(0.1), ..ParameterGroup::default() };
    model.parameters(weights[1], undecayed).unwrap();
    model.parameters(weights[3], undecayed).unwrap();
    model.parameters(weights[2], slow).unwrap();
    assert!(model.parameters(WeightId::new(9), slow).unwrap_err().to_string().contains("w3"));
    let mut program = StepProgram::builder("train", &model.build());
    let mut call = program.call("all", Phase::Backward);
    for weight in &weights {
        call = call.uses(*weight, Orientation::Rowwise, Form::Dense).gradient(*weight);
    }
    call.add().unwrap();
    let plan =
        StepPlan::build(&program.build_training().unwrap(), &policy(1), Mesh::new(2).unwrap()).unwrap();
    let updated = plan.tasks.iter().filter_map(|task| match &task.op {
        Op::Adam(Adam { states, .. }) => Some(states.iter().map(|state| state.weight).collect::<Vec<_>>()),
        _ => None,
    });
    let mut updated: Vec<_> = updated.collect();
    updated.sort_unstable();
    assert_eq!(updated, [vec![weights[0]], vec![weights[1], weights[3]], vec![weights[2]]]);
    let subjects: BTreeSet<&str> = plan
        .tasks
        .iter()
        .filter(|task| matches!(task.op, Op::Adam(_)))
        .map(|task| task.subject.as_str())
        .collect();
    assert_eq!(subjects, BTreeSet::from(["w0", "w1 and 1 more", "w2"]), "what is measured goes by these");
    let amaxes = plan.tasks.iter().filter(|task| matches!(task.op, Op::PartialAmax(_))).count();
    assert_eq!(amaxes, 1, "they are quantized together all the same");
}
