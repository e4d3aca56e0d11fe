//! Weights of one call on the CPU: in one collective, in groups or each alone, they train as whole weights do.

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::{BufferId, RankId, WeightId};
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::compute::ComputeContext;
use warpweft_plan::model::{Call, Form, Model, Phase, StepProgram};
use warpweft_plan::policy::{ByteSize, ReduceDtype};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::Session;
use warpweft_testing::reference::{Parameter, RATE, as_stored, mean};
use warpweft_testing::trainer::{SIZE, initial, input, within_a_minute};

const RANKS: u32 = 3;
const EXPERTS: usize = 4;
const STEPS: u32 = 6;

fn name(expert: usize) -> String {
    format!("expert{expert}")
}

/// One call that uses all experts, in groups of so many or in none, and writes the gradients of all.
fn program(format: Format, groups_of: Option<usize>) -> (StepProgram, Vec<WeightId>, BufferId) {
    let mut model = Model::builder();
    let experts: Vec<WeightId> =
        (0..EXPERTS).map(|expert| model.sharded(&name(expert), SIZE, SIZE, format).unwrap()).collect();
    for (number, members) in groups_of.into_iter().flat_map(|of| experts.chunks(of)).enumerate() {
        model.group(&format!("experts.{number}"), members).unwrap();
    }
    let mut program = StepProgram::builder("train", &model.build());
    let x = program.input("x", SIZE, ElementType::F32).unwrap();
    let mut call = program.call("fit", Phase::Backward).reads(x);
    for expert in &experts {
        call = call.uses(*expert, Orientation::Rowwise, Form::Dense).gradient(*expert);
    }
    call.add().unwrap();
    (program.build_training().unwrap(), experts, x)
}

/// The gradient of half the squared length of `W x`.
fn gradient(weight: &[f32], x: &[f32]) -> Vec<f32> {
    let row = |row: &[f32]| row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
    weight.chunks(SIZE).map(row).flat_map(|y| x.iter().map(move |x| y * x)).collect()
}

/// Bits of all masters after some steps.
async fn trained(format: Format, groups_of: Option<usize>, config: Config) -> Vec<Vec<u32>> {
    let (program, experts, x) = program(format, groups_of);
    let closures = move |_: RankId| {
        let experts = experts.clone();
        move |_: &Call, context: &ComputeContext<'_, CpuSurface>| {
            let x = context.read::<f32>(x)?;
            for expert in &experts {
                let found = gradient(&context.dense(*expert, Orientation::Rowwise)?, &x);
                context.gradient(*expert)?.copy_from_slice(&found);
            }
            Ok(())
        }
    };
    let builder = Session::builder(config, closures).program(program).initialize(initial);
    let mut session = builder.start_cpu(RANKS).await.unwrap();
    for step in 0..STEPS {
        for rank in 0..RANKS {
            session.write_input("train", RankId::new(rank), "x", &input(step, rank, 0)).unwrap();
        }
        session.step("train").await.unwrap();
    }
    let checkpoint = session.export().await.unwrap();
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    checkpoint.weights.iter().map(|weight| bits(&weight.master)).collect()
}

fn reference(format: Format, dtype: ReduceDtype) -> Vec<Vec<u32>> {
    let mut experts: Vec<Parameter> =
        (0..EXPERTS).map(|expert| Parameter::new(&name(expert), SIZE, SIZE * SIZE)).collect();
    for step in 0..STEPS {
        for expert in &mut experts {
            let weight = as_stored(format, &expert.master);
            let ranks: Vec<_> =
                (0..RANKS).map(|rank| vec![gradient(&weight, &input(step, rank, 0))]).collect();
            expert.update(&mean(&ranks, 1, dtype), step as i32 + 1);
        }
    }
    experts.iter().map(|expert| expert.master.iter().map(|value| value.to_bits()).collect()).collect()
}

#[test]
fn gathers_in_chunks_of_any_size_train_as_whole_ones_do() {
    within_a_minute(async {
        for format in [Format::F32, Format::NVFP4_2D, Format::Mxfp8, Format::FP8_BLOCK128_POW2] {
            let config = |chunk: Option<u64>, communicators| {
                let mut config = Config { check: true, communicators, ..Config::default() };
                config.optimizer.lr = f64::from(RATE);
                config.prefetch.depth = Some(2);
                config.prefetch.chunk = chunk.map(ByteSize::new);
                config
            };
            let whole = trained(format, None, config(None, Some(2))).await;
            for (chunk, communicators) in [(1, 2), (700, 1), (1500, 2), (3000, 1), (1 << 40, 2)] {
                let cut = trained(format, None, config(Some(chunk), Some(communicators))).await;
                assert!(cut == whole, "{format}, chunks of {chunk}");
            }
        }
    });
}

#[test]
fn weights_train_as_whole_ones_do_whichever_of_them_travel_together() {
    within_a_minute(async {
        for format in [Format::F32, Format::NVFP4_2D, Format::Mxfp8, Format::FP8_BLOCK128_POW2] {
            for dtype in [ReduceDtype::F32, ReduceDtype::Bf16] {
                let expected = reference(format, dtype);
                for (groups_of, depth, capture) in [
                    (Some(1), 0, Capture::Off),
                    (None, 0, Capture::Off),
                    (None, 2, Capture::Step),
                    (Some(EXPERTS), 0, Capture::Off),
                    (Some(EXPERTS), 2, Capture::Step),
                ] {
                    let mut config =
                        Config { check: true, capture, reduce_dtype: dtype, ..Config::default() };
                    config.optimizer.lr = f64::from(RATE);
                    config.prefetch.depth = Some(depth);
                    assert!(
                        trained(format, groups_of, config).await == expected,
                        "{format}, {dtype:?}, {groups_of:?}"
                    );
                }
            }
        }
    });
}
