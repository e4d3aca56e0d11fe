//! Gradients that calls write in bf16: the bits, the bytes and the words.

use std::sync::Arc;

use half::bf16;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::{RankId, WeightId};
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::layout::Content;
use warpweft_plan::model::{Call, Form, Model, Phase, StepProgram};
use warpweft_plan::op::{ExchangeGradient, Op, WireType};
use warpweft_plan::plan::{PlanError, StepPlan};
use warpweft_plan::policy::{ReduceDtype, ReduceEvery};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Outcome, Session, SessionError, plan_program};
use warpweft_testing::trainer::{initial, within_a_minute};

const ROWS: usize = 80;
const COLS: usize = 32;
const STEPS: u32 = 5;

/// Bits of every master.
type Masters = Vec<Vec<u32>>;

/// How the program is declared.
#[derive(Clone, Copy, Debug)]
struct Declared {
    format: Format,
    /// Of each weight, its gradient.
    elements: [ElementType; 2],
    grouped: bool,
    micro_batches: u32,
}

impl Declared {
    const fn new(format: Format, element: ElementType) -> Self {
        Self { format, elements: [element; 2], grouped: false, micro_batches: 1 }
    }

    /// Two weights whose rows five ranks cannot share without padding, both read by one call.
    fn program(&self) -> (StepProgram, [WeightId; 2]) {
        let mut model = Model::builder();
        let weights = ["up", "down"].map(|name| model.sharded(name, ROWS, COLS, self.format).unwrap());
        if self.grouped {
            model.group("both", &weights).unwrap();
        }
        let mut program = StepProgram::builder("train", &model.build());
        program.micro_batches(self.micro_batches).unwrap();
        let input = program.input("input", 1, ElementType::F32).unwrap();
        let mut call = program.call("fit", Phase::Backward).reads(input);
        for (weight, element) in weights.into_iter().zip(self.elements) {
            call = call.uses(weight, Orientation::Rowwise, Form::Dense).gradient_in(weight, element);
        }
        call.add().unwrap();
        (program.build_training().unwrap(), weights)
    }

    fn plan(&self, config: &Config, ranks: u32) -> Arc<StepPlan> {
        plan_program(&self.program().0, config, ranks).unwrap()
    }
}

/// What a gradient is of a weight's value: something that bf16 holds.
fn gradient(value: f32, at: usize, input: f32) -> bf16 {
    bf16::from_f32((value + 0.1) * (input + at as f32 * 0.37).sin())
}

fn fit(context: &ComputeContext<'_, CpuSurface>, weights: [WeightId; 2]) -> Result<(), ComputeError> {
    let input = context.read::<f32>(context.buffer_named("input")?)?[0];
    for weight in weights {
        let values = context.dense(weight, Orientation::Rowwise)?;
        let found = values.iter().enumerate().map(|(at, value)| gradient(*value, at, input));
        match context.gradient_element(weight)? {
            ElementType::Bf16 => {
                let mut into = context.gradient_bf16(weight)?;
                assert_eq!(into.len(), ROWS * COLS, "the weight's own rows, padding left out");
                into.iter_mut().zip(found).for_each(|(into, found)| *into = found);
            }
            _ => {
                let mut into = context.gradient(weight)?;
                into.iter_mut().zip(found).for_each(|(into, found)| *into = found.to_f32());
            }
        }
    }
    Ok(())
}

async fn trained(declared: Declared, config: Config, ranks: u32) -> Masters {
    let (program, weights) = declared.program();
    let closures =
        move |_: RankId| move |_: &Call, context: &ComputeContext<'_, CpuSurface>| fit(context, weights);
    let builder = Session::builder(config, closures).program(program).initialize(initial);
    let mut session = builder.start_cpu(ranks).await.unwrap();
    for step in 0..STEPS {
        for rank in 0..ranks {
            let inputs: Vec<f32> =
                (0..declared.micro_batches).map(|batch| (step * 11 + rank * 3 + batch) as f32).collect();
            session.write_input("train", RankId::new(rank), "input", &inputs).unwrap();
        }
        let report = session.step("train").await.unwrap();
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "{:?}", report.outcome);
    }
    let checkpoint = session.export().await.unwrap();
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    checkpoint.weights.iter().map(|weight| bits(&weight.master)).collect()
}

/// Rows are divided unevenly, with replicas and without, apart and as a group, by the checker's rules.
#[test]
fn gradients_written_in_bf16_give_the_bits_of_the_same_values_written_in_f32() {
    within_a_minute(async {
        for format in [Format::F32, Format::Bf16, Format::NVFP4_2D] {
            for (ranks, replicate, grouped, micro_batches, capture) in [
                (5, 1, false, 1, Capture::Off),
                (3, 1, true, 2, Capture::Step),
                (4, 2, true, 1, Capture::Off),
                (1, 1, false, 2, Capture::Step),
            ] {
                let config = |reduce_dtype| {
                    let mut config = Config { check: true, capture, reduce_dtype, ..Config::default() };
                    config.optimizer.lr = 1e-2;
                    config.mesh.dp_replicate = Some(replicate);
                    config
                };
                let whole = Declared { grouped, micro_batches, ..Declared::new(format, ElementType::F32) };
                let expected = trained(whole, config(ReduceDtype::Bf16), ranks).await;
                let (f32s, halves) = (ElementType::F32, ElementType::Bf16);
                for elements in [[halves, halves], [f32s, halves], [halves, f32s]] {
                    for dtype in [ReduceDtype::F32, ReduceDtype::Bf16] {
                        let written = Declared { elements, ..whole };
                        let found = trained(written, config(dtype), ranks).await;
                        assert!(found == expected, "{format}, {ranks} ranks, {elements:?}, {dtype:?}");
                    }
                }
            }
        }
    });
}

fn reductions(plan: &StepPlan) -> Vec<(WireType, usize)> {
    let of = |op: &Op| match op {
        Op::ExchangeGradient(ExchangeGradient { wire, parts, .. }) => Some((*wire, parts.len())),
        _ => None,
    };
    plan.tasks.iter().filter_map(|task| of(&task.op)).collect()
}

/// PL-4. Nothing rounds it, and it takes two bytes an element from the call to the wire.
#[test]
fn what_a_call_writes_in_bf16_is_reduced_where_it_lies() {
    let rounds = |plan: &StepPlan| plan.tasks.iter().any(|task| matches!(task.op, Op::RoundGradient(_)));
    let config = |reduce_dtype| Config { reduce_dtype, ..Config::default() };
    let whole = Declared::new(Format::F32, ElementType::F32).plan(&config(ReduceDtype::Bf16), 5);
    assert!(rounds(&whole));
    for dtype in [ReduceDtype::F32, ReduceDtype::Bf16] {
        let plan = Declared::new(Format::F32, ElementType::Bf16).plan(&config(dtype), 5);
        assert!(!rounds(&plan));
        assert_eq!(reductions(&plan), [(WireType::Bf16, 1); 2]);
        assert_eq!(plan.bounds.wire_bytes, whole.bounds.wire_bytes);
        assert!(plan.bounds.transient_bytes < whole.bounds.transient_bytes);
        for (_, slot) in plan.arena.entries() {
            assert!(!matches!(slot.content, Content::Gradient(..)), "{}", slot.name);
            if let Content::WireGradient(..) = slot.content {
                assert_eq!(slot.region.bytes, ROWS * COLS * 2, "80 rows are 16 for each of 5 ranks");
            }
        }
    }
}

/// A collective has one element type.
#[test]
fn gradients_of_one_group_in_two_element_types_are_two_collectives() {
    let elements = [ElementType::Bf16, ElementType::F32];
    let declared = Declared { elements, grouped: true, ..Declared::new(Format::F32, ElementType::F32) };
    let plan = declared.plan(&Config::default(), 3);
    assert_eq!(reductions(&plan), [(WireType::Bf16, 1), (WireType::F32, 1)]);
    let config = Config { reduce_dtype: ReduceDtype::Bf16, ..Config::default() };
    assert_eq!(reductions(&declared.plan(&config, 3)), [(WireType::Bf16, 2)], "all travel in bf16");
}

/// PL-4. What would be added on the rank is written in f32; what is alone there may be written in bf16.
#[test]
fn gradients_in_bf16_that_would_be_added_on_a_rank_are_refused_with_both_ways_out() {
    let every = |reduce_every| Config { reduce_every, ..Config::default() };
    let twice = Declared { micro_batches: 2, ..Declared::new(Format::F32, ElementType::Bf16) };
    let program = twice.program().0;
    let error = plan_program(&program, &every(ReduceEvery::Step), 2).unwrap_err();
    for word in ["`fit`", "`up`", "reduce_every = \"step\"", "reduce_every to \"call\"", "in f32"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    assert!(
        matches!(&error, SessionError::Plan(error) if matches!(error, PlanError::GradientSum { .. })),
        "{error}"
    );
    plan_program(&program, &every(ReduceEvery::MicroBatch), 2).unwrap();
    let once = Declared::new(Format::F32, ElementType::Bf16).program().0;
    plan_program(&once, &every(ReduceEvery::Step), 2).unwrap();
    let whole = Declared { elements: [ElementType::F32; 2], ..twice }.program().0;
    plan_program(&whole, &every(ReduceEvery::Step), 2).unwrap();
}

#[test]
fn a_gradient_is_lent_in_the_element_type_it_was_declared_in_and_no_other() {
    within_a_minute(async {
        for (element, word) in [
            (ElementType::F32, "request it by gradient,"),
            (ElementType::Bf16, "request it by gradient_bf16,"),
        ] {
            let (program, weights) = Declared::new(Format::F32, element).program();
            let closures = move |_: RankId| {
                move |_: &Call, context: &ComputeContext<'_, CpuSurface>| {
                    assert_eq!(context.gradient_element(weights[0])?, element);
                    let strange = context.gradient_element(WeightId::new(7));
                    assert!(matches!(strange, Err(ComputeError::NotDeclared { .. })), "{strange:?}");
                    match element {
                        ElementType::Bf16 => context.gradient(weights[0]).map(drop),
                        _ => context.gradient_bf16(weights[0]).map(drop),
                    }
                }
            };
            let builder = Session::builder(Config::default(), closures).program(program).initialize(initial);
            let mut session = builder.start_cpu(1).await.unwrap();
            session.write_input("train", RankId::new(0), "input", &[1.0_f32]).unwrap();
            let told = match session.step("train").await {
                Ok(report) => format!("{report:?}"),
                Err(error) => error.to_string(),
            };
            assert!(told.contains(word) && told.contains("call `fit`"), "{told}");
        }
    });
}
