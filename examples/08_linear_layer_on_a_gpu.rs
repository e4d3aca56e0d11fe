//! Trains one weight on a GPU with the library's own products, in FP8 where the GPU has them.
//!
//! `cargo run --release --example 08_linear_layer_on_a_gpu`
//!
//! A recipe says how the call declares the weight: as planes, which FP8 products read as they were gathered,
//! or as bf16 values in a slot of the plan. The layer is made in the closure's factory, which knows the rank's
//! GPU and whose failure is that of the start, and only enqueues afterwards. The loss here is ½‖y‖², so the
//! gradient of y is y, and the weight shrinks.

#[path = "shared/print.rs"]
mod print;

use warpweft::compute::Seat;
use warpweft::format::Shape;
use warpweft::linear::{Device, Linear, LinearSpec, Recipe, Weight};
use warpweft::{bf16, prelude::*};

use print::println;

const TOKENS: usize = 64;
const WEIGHT: Shape = Shape::new(256, 128);
const FORMAT: Format = Format::FP8_BLOCK128_POW2;

#[derive(Clone, Copy)]
struct Names {
    weight: WeightId,
    x: BufferId,
    y: BufferId,
}

fn declare(recipe: Recipe) -> Result<(Names, StepProgram), DeclareError> {
    let mut model = Model::builder();
    let weight = model.sharded("w", WEIGHT.rows, WEIGHT.cols, FORMAT)?;
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    let x = program.input("x", TOKENS * WEIGHT.cols, ElementType::Bf16)?;
    let y = program.output("y", TOKENS * WEIGHT.rows, ElementType::Bf16)?;
    let call = program.call("shrink", Phase::Backward).uses(weight, Orientation::Rowwise, recipe.form());
    call.reads(x).writes(y).add()?;
    program.call("gradient", Phase::Backward).reads(x).reads(y).gradient(weight).add()?;
    Ok((Names { weight, x, y }, program.build_training()?))
}

struct Closure {
    names: Names,
    layer: Linear,
}

impl Compute<CudaSurface> for Closure {
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, CudaSurface>) -> Result<(), ComputeError> {
        let Names { weight, x, y } = self.names;
        let layer = &mut self.layer;
        let (handles, x) = (context.handles(), context.read::<bf16>(x)?);
        if call.name == "shrink" {
            let form = layer.spec().recipe.form();
            let weight = Weight::of(context, weight, Orientation::Rowwise, form)?;
            layer.forward(handles, x, &weight, context.write::<bf16>(y)?)?;
        } else {
            layer.wgrad(handles, context.read::<bf16>(y)?, x, context.gradient(weight)?)?;
        }
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let found = DeviceOrdinal::all();
    let Some(gpu) = found.as_ref().ok().and_then(|all| all.first().copied()) else {
        println!(
            "nothing to compute on: {}",
            found.err().map_or("no GPU".into(), |failure| failure.to_string())
        );
        return Ok(());
    };
    let recipe = Recipe::best_for(FORMAT, gpu.compute_capability()?);
    let (names, program) = declare(recipe)?;
    let closure = move |seat: Seat<DeviceOrdinal>| {
        let device = Device::open(seat.device)?;
        let layer = Linear::new(&device, LinearSpec::new(recipe, TOKENS, WEIGHT))?;
        Ok(Closure { names, layer })
    };
    let mut config = Config::default();
    config.optimizer.lr = 2e-4; // All 128 inputs of an output push the same way: small steps.
    let mut session = Session::try_builder(config, closure)
        .program(program)
        .initialize(|rows, masters| {
            for (at, value) in masters.iter_mut().enumerate() {
                *value = ((rows.first_element() + at) as f32 * 0.7).sin() * 0.1;
            }
        })
        .start_cuda(vec![gpu])
        .await?;
    let x: Vec<bf16> = (0..TOKENS * WEIGHT.cols).map(|at| bf16::from_f32((at as f32).cos())).collect();
    session.write_input("train", RankId::new(0), "x", &x)?;
    for step in 0..50 {
        let report = session.step("train").await?;
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "step {step} was skipped: {report:?}");
        if step % 10 == 0 {
            let y: Vec<bf16> = report.output(RankId::new(0), "y")?;
            let loss: f32 = y.iter().map(|y| 0.5 * y.to_f32() * y.to_f32()).sum();
            println!("step {:2}  products in {recipe}  loss {loss:.4}", step + 1);
        }
    }
    session.close().await?;
    Ok(())
}
