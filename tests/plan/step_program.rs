//! Costs of a step program: gathers of repeated uses, memory of micro-batches, and their inputs and outputs.

use warpweft_base::id::{MicroBatchId, RankId, TaskId, WeightId};
use warpweft_format::{Format, Orientation};
use warpweft_plan::model::{DeclareError, Form, Mesh, Model, Phase, ProgramBuilder, Reuse, StepProgram};
use warpweft_plan::op::Op;
use warpweft_plan::plan::{Policy, StepPlan};
use warpweft_plan::policy::{AcrossMicroBatches, Backward, ByteSize, ReduceDtype, ReduceEvery};
use warpweft_session::config::Config;
use warpweft_session::session::SessionError;
use warpweft_testing::trainer::{self, SIZE, Shaped, Trainer, within_a_minute};

const RANKS: u32 = 4;

fn plan(program: &StepProgram, config: &Config) -> StepPlan {
    StepPlan::build(program, &Policy::from(config), Mesh::new(RANKS).unwrap()).unwrap()
}

fn depth(depth: u32) -> Config {
    let mut config = Config::default();
    config.prefetch.depth = Some(depth);
    config
}

fn gathers(plan: &StepPlan) -> Vec<TaskId> {
    plan.entries().filter(|(_, task)| matches!(task.op, Op::AllGather(_))).map(|(id, _)| id).collect()
}

/// Calls that run between the end of a gather's release and what needs it first: what it may hide behind.
fn hiding_places(plan: &StepPlan, gather: TaskId) -> usize {
    let (slot, _) = plan.task(gather).op.accesses().into_iter().find(|(_, access)| access.writes()).unwrap();
    let reads = |task: &TaskId| plan.task(*task).op.accesses().iter().any(|(read, _)| *read == slot);
    let reader = plan.entries().map(|(id, _)| id).filter(|id| *id > gather).find(reads).unwrap();
    let begin = plan.task(gather).release.map_or(0, |release| release.index() + 1);
    let calls = plan.tasks[begin..reader.index()].iter();
    calls.filter(|task| matches!(task.op, Op::Compute(_))).count()
}

/// Tied and replayed weights, recompute, micro-batches: with a depth of at least 1 no use but the first of
/// the step waits for a gather that could not have begun a call earlier.
#[test]
fn extra_uses_of_a_weight_cost_no_synchronous_gather() {
    let shapes = [
        Shaped { layers: 6, weights: 1, ..Shaped::default() },
        Shaped { layers: 6, weights: 2, ..Shaped::default() },
        Shaped { layers: 6, weights: 2, recomputes: true, micro_batches: 2, ..Shaped::default() },
    ];
    for shaped in shapes {
        for ahead in [1, 2, 4] {
            let trainer = Trainer::shaped(shaped, Format::Mxfp8, &Config::default());
            let plan = plan(&trainer.train, &depth(ahead));
            for gather in gathers(&plan) {
                assert!(hiding_places(&plan, gather) >= 1, "{}", plan.describe(gather));
            }
        }
    }
}

/// Of a weight that call after call uses, the planes are there already.
#[test]
fn a_weight_replayed_call_after_call_is_gathered_once_for_each_pass() {
    let trainer = Trainer::shaped(
        Shaped { layers: 6, weights: 1, ..Shaped::default() },
        Format::Mxfp8,
        &Config::default(),
    );
    assert_eq!(gathers(&plan(&trainer.train, &depth(1))).len(), 2, "rowwise forward, columnwise backward");
}

/// Forward and backward of three weights in a format that stores one orientation. The last weight's use in
/// backward, or all uses of the first weight, may have a choice of their own.
fn chain(of_use: Option<Reuse>, of_weight: Option<Reuse>) -> StepProgram {
    let mut model = Model::builder();
    let weights: Vec<WeightId> =
        (0..3).map(|n| model.sharded(&format!("w{n}"), 64, 64, Format::NVFP4_2D).unwrap()).collect();
    if let Some(reuse) = of_weight {
        model.reuse(weights[0], reuse).unwrap();
    }
    let mut program = StepProgram::builder("chain", &model.build());
    for (number, weight) in weights.iter().enumerate() {
        let call = program.call(&format!("f{number}"), Phase::Forward);
        call.uses(*weight, Orientation::Rowwise, Form::Dense).add().unwrap();
    }
    // A call between the uses of the last weight: its planes are not there by themselves.
    program.call("loss", Phase::Forward).add().unwrap();
    for (number, weight) in weights.iter().enumerate().rev() {
        let call = program.call(&format!("b{number}"), Phase::Backward).gradient(*weight);
        let call = call.uses(*weight, Orientation::Columnwise, Form::Dense);
        let call = match of_use {
            Some(reuse) if number == 2 => call.reuse(reuse),
            _ => call,
        };
        call.add().unwrap();
    }
    program.build_training().unwrap()
}

#[test]
fn a_use_decides_before_its_weight_and_a_weight_before_the_configuration() {
    let gathered = |program: &StepProgram, backward| {
        let mut config = depth(0);
        config.backward = backward;
        gathers(&plan(program, &config)).len()
    };
    let undecided = chain(None, None);
    assert_eq!(gathered(&undecided, Backward::Regather), 6);
    assert_eq!(gathered(&undecided, Backward::Keep), 3);
    assert_eq!(gathered(&chain(Some(Reuse::Keep), None), Backward::Regather), 5);
    assert_eq!(gathered(&chain(Some(Reuse::Regather), None), Backward::Keep), 4);
    assert_eq!(gathered(&chain(None, Some(Reuse::Keep)), Backward::Regather), 5);
    assert_eq!(gathered(&chain(None, Some(Reuse::Regather)), Backward::Keep), 4);
}

#[test]
fn a_rule_of_the_configuration_decides_for_the_weights_it_names() {
    let config = Config::from_toml_str("[[weights]]\nmatch = 'layer0'\nreuse = 'keep'\n", "rules").unwrap();
    let shaped = Shaped { layers: 4, weights: 4, ..Shaped::default() };
    let gathered = |config: &Config| {
        let trainer = Trainer::shaped(shaped, Format::NVFP4_2D, config);
        gathers(&plan(&trainer.train, config)).len()
    };
    assert_eq!(gathered(&Config::default()) - gathered(&config), 1);
}

/// Reductions and wire bytes of each way to reduce.
#[test]
fn gradients_are_reduced_as_often_as_the_configuration_says() {
    let shaped = Shaped { layers: 16, weights: 8, recomputes: false, micro_batches: 3, ..Shaped::default() };
    let trainer = Trainer::shaped(shaped, Format::Mxfp8, &Config::default());
    let reductions = |reduce_every| {
        let plan = plan(&trainer.train, &Config { reduce_every, ..depth(1) });
        let reduced = plan.tasks.iter().filter(|task| matches!(task.op, Op::ExchangeGradient(_))).count();
        (reduced, plan.bounds.transient_bytes)
    };
    let (each, least) = reductions(ReduceEvery::Call);
    let (batch, _) = reductions(ReduceEvery::MicroBatch);
    let (once, most) = reductions(ReduceEvery::Step);
    assert_eq!([each, batch, once], [16 * 3, 8 * 3, 8]);
    assert!(most > least, "a sum on the rank takes memory: {most} and {least} bytes");
}

/// The calls that write what an exchange sends, and the last call it waits for by a fence.
fn written_and_waited_for(plan: &StepPlan, exchange: TaskId) -> (Option<TaskId>, Option<TaskId>) {
    let calls = |task: &TaskId| matches!(plan.task(*task).op, Op::Compute(_));
    let accesses = plan.task(exchange).op.accesses().into_iter();
    let sent: Vec<_> = accesses.filter(|(_, access)| !access.writes()).map(|(slot, _)| slot).collect();
    let writes = |task: &TaskId| {
        plan.task(*task).op.accesses().iter().any(|(slot, access)| access.writes() && sent.contains(slot))
    };
    let written =
        plan.entries().map(|(id, _)| id).filter(|id| *id < exchange && calls(id) && writes(id)).max();
    let waits = plan.task(exchange).waits.iter().copied().filter(calls).max();
    (written, waits)
}

#[test]
fn with_three_calls_of_delay_a_collective_waits_for_no_call_but_the_one_that_wrote_what_it_sends() {
    let shaped = Shaped { layers: 12, weights: 2, ..Shaped::default() };
    let trainer = Trainer::shaped(shaped, Format::Bf16, &Config::default());
    let late = |reduce_delay: u32| -> usize {
        let config = Config { reduce_delay, reduce_dtype: ReduceDtype::F32, ..depth(1) };
        let plan = plan(&trainer.train, &config);
        let exchanges = plan.entries().filter(|(_, task)| matches!(task.op, Op::ExchangeGradient(_)));
        let exchanges: Vec<TaskId> = exchanges.map(|(id, _)| id).collect();
        assert!(exchanges.len() >= 12);
        let is_late = |exchange: &TaskId| {
            let (written, waits) = written_and_waited_for(&plan, *exchange);
            assert!(written.is_some());
            waits > written
        };
        exchanges.into_iter().filter(is_late).count()
    };
    assert_eq!((late(3), late(7)), (0, 0));
    // With two, what lands takes the place of what the next call leaves, and waits for it: less memory.
    assert!(late(2) > 0);
}

/// What one micro-batch is done with, the next one uses.
#[test]
fn buffers_of_micro_batches_share_their_memory() {
    let bytes = |micro_batches| {
        let shaped = Shaped { layers: 4, weights: 4, recomputes: false, micro_batches, ..Shaped::default() };
        plan(&Trainer::shaped(shaped, Format::Mxfp8, &Config::default()).train, &depth(1))
            .bounds
            .transient_bytes
    };
    assert!(bytes(8) <= bytes(2) + bytes(2) / 10, "{} and {}", bytes(8), bytes(2));
}

/// What fits the budget is kept, and the plan says which it was.
#[test]
fn weights_are_kept_across_micro_batches_if_the_budget_allows_it() {
    let shaped = Shaped { layers: 8, weights: 8, recomputes: false, micro_batches: 2, ..Shaped::default() };
    let trainer = Trainer::shaped(shaped, Format::F32, &Config::default());
    let told = |across_micro_batches, budget: Option<usize>| {
        let mut config = Config { across_micro_batches, ..depth(1) };
        config.memory.budget = budget.map(|bytes| ByteSize::new(bytes as u64));
        plan(&trainer.train, &config)
    };
    let (kept, again) = (told(AcrossMicroBatches::Keep, None), told(AcrossMicroBatches::Regather, None));
    let (most, least) = (kept.bounds.transient_bytes, again.bounds.transient_bytes);
    assert!(least < most, "{least} and {most} bytes");
    assert_eq!(told(AcrossMicroBatches::Fit, None), kept);
    let fitting = told(AcrossMicroBatches::Fit, Some(most));
    assert_eq!(fitting.policy.across_micro_batches, AcrossMicroBatches::Keep);
    let tight = told(AcrossMicroBatches::Fit, Some(most - 1));
    assert_eq!(tight.policy.across_micro_batches, AcrossMicroBatches::Regather);
    assert_eq!(tight.tasks, again.tasks);
}

#[test]
fn inputs_and_outputs_are_those_of_all_micro_batches_one_after_the_other() {
    within_a_minute(async {
        let shaped = Shaped { micro_batches: 3, ..Shaped::default() };
        let trainer = Trainer::shaped(shaped, Format::F32, &Config::default());
        let mut config = Config { check: true, ..Config::default() };
        config.optimizer.lr = 0.0;
        let mut session = trainer.start(config, 1).await.unwrap();
        let short = session.write_input("train", RankId::new(0), "input", &[0f32; SIZE]);
        assert!(
            matches!(short, Err(SessionError::InputSize { given, expected, .. }) if expected == 3 * given)
        );
        let batches: Vec<Vec<f32>> = (0..3).map(|batch| trainer::input(5, 0, batch)).collect();
        session.write_input("train", RankId::new(0), "input", &batches.concat()).unwrap();
        let report = session.step("train").await.unwrap();
        let losses: Vec<f32> = report.output(RankId::new(0), "loss").unwrap();
        assert_eq!(losses.len(), 3);
        let mean = losses.iter().map(|loss| f64::from(*loss)).sum::<f64>() / 3.0;
        assert_eq!(report.mean_output("loss").unwrap(), mean as f32);
        for (batch, loss) in batches.iter().zip(losses) {
            session.write_input("evaluate", RankId::new(0), "input", batch).unwrap();
            let alone = session.step("evaluate").await.unwrap().mean_output("loss").unwrap();
            assert_eq!(alone.to_bits(), loss.to_bits());
        }
        session.close().await.unwrap();
    });
}

/// A closure that fails is named with the micro-batch it failed in.
#[test]
fn a_fault_names_its_micro_batch() {
    within_a_minute(async {
        let mut model = Model::builder();
        let weight = model.sharded("w", 32, 32, Format::F32).unwrap();
        let model = model.build();
        let mut program = StepProgram::builder("train", &model);
        program.micro_batches(4).unwrap();
        let call = program.call("fit", Phase::Backward).uses(weight, Orientation::Rowwise, Form::Dense);
        let declared = call.gradient(weight).add().unwrap();
        let program = program.build_training().unwrap();
        assert_eq!((program.calls().len(), program.runs().len()), (1, 4));
        let closures = move |_: RankId| {
            move |_: &warpweft_plan::model::Call,
                  context: &warpweft_plan::compute::ComputeContext<'_, warpweft_backend::cpu::CpuSurface>| {
                assert_eq!(context.call(), declared);
                context.gradient(weight)?.fill(1.0);
                if context.micro_batch() == MicroBatchId::new(2) {
                    return Err(warpweft_plan::compute::ComputeError::closure("no"));
                }
                Ok(())
            }
        };
        let builder =
            warpweft_session::session::Session::builder(Config::default(), closures).program(program);
        let mut session = builder.initialize(trainer::initial).start_cpu(2).await.unwrap();
        let error = session.step("train").await.unwrap_err();
        assert!(
            matches!(&error, SessionError::Closure { call, .. } if call == "fit in micro-batch 2"),
            "{error}"
        );
    });
}

#[test]
fn a_step_of_no_micro_batches_is_refused_and_changes_nothing() {
    let mut model = Model::builder();
    let weight = model.sharded("w", 32, 32, Format::F32).unwrap();
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    for count in [0, ProgramBuilder::MAX_MICRO_BATCHES + 1] {
        assert!(matches!(program.micro_batches(count), Err(DeclareError::MicroBatches { .. })));
    }
    program.call("fit", Phase::Backward).gradient(weight).add().unwrap();
    assert_eq!(program.build_training().unwrap().micro_batches(), 1);
}
