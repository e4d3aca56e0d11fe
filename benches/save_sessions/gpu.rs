//! A rank on a GPU, with products in bf16.
//!
//! Every layer reads what the one before gave, and its gradients are of that: the loss is half the squared length of
//! what the last one gives. The environment configures the session, as `WARPWEFT_TRACE__ENABLED=true
//! WARPWEFT_TRACE__FIRST_STEP=10 WARPWEFT_TRACE__STEPS=1` for a trace of a step that copies.

use std::collections::BTreeMap;

use warpweft::bf16;
use warpweft::compute::Seat;
use warpweft::format::Shape;
use warpweft::linear::{Device, Linear, LinearSpec, Recipe, Weight};
use warpweft::prelude::*;
use warpweft::session::block_on;

const LAYERS: usize = 16;
const WEIGHT: Shape = Shape::new(4096, 4096);

/// A layer: its weight, and what it reads and writes, with the gradients of both; the first layer's input has none.
#[derive(Clone, Copy)]
struct Layer {
    weight: WeightId,
    x: BufferId,
    y: BufferId,
    dx: Option<BufferId>,
    dy: BufferId,
}

struct Closure {
    layers: BTreeMap<String, Layer>,
    linear: Linear,
}

impl Compute<CudaSurface> for Closure {
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, CudaSurface>) -> Result<(), ComputeError> {
        let (kind, name) = call.name.split_once(' ').unwrap();
        let Layer { weight: id, x, y, dx, dy } = self.layers[name];
        let (linear, handles) = (&mut self.linear, context.handles());
        let (form, dgrad) = (linear.spec().recipe.form(), linear.spec().dgrad);
        match kind {
            "forward" => {
                let weight = Weight::of(context, id, Orientation::Rowwise, form)?;
                linear.forward(handles, context.read::<bf16>(x)?, &weight, context.write::<bf16>(y)?)?;
            }
            _ => {
                let (dy, x) = (context.read::<bf16>(dy)?, context.read::<bf16>(x)?);
                if let Some(dx) = dx {
                    let weight = Weight::of(context, id, dgrad, form)?;
                    linear.dgrad(handles, dy, &weight, context.write::<bf16>(dx)?)?;
                }
                linear.wgrad(handles, dy, x, context.gradient(id)?)?;
            }
        }
        Ok(())
    }
}

/// The program, and the layers by their names.
fn declare(tokens: usize, spec: &LinearSpec) -> Result<(BTreeMap<String, Layer>, StepProgram), DeclareError> {
    let (form, dgrad) = (spec.recipe.form(), spec.dgrad);
    let mut model = Model::builder();
    let weights: Vec<_> = (0..LAYERS)
        .map(|layer| model.sharded(&format!("layer{layer}"), WEIGHT.rows, WEIGHT.cols, Format::Bf16))
        .collect::<Result<_, _>>()?;
    let mut program = StepProgram::builder("train", &model.build());
    let elements = tokens * WEIGHT.cols;
    let mut x = program.input("tokens", elements, ElementType::Bf16)?;
    let mut buffers = Vec::new();
    for layer in 0..LAYERS {
        let y = program.activation_in(&format!("y{layer}"), elements, ElementType::Bf16)?;
        buffers.push((x, y));
        x = y;
    }
    let mut layers = BTreeMap::new();
    for (name, (weight, (x, y))) in weights.into_iter().zip(buffers).enumerate() {
        let call =
            program.call(&format!("forward {name}"), Phase::Forward).uses(weight, Orientation::Rowwise, form);
        call.reads(x).writes(y).add()?;
        layers.insert(name.to_string(), Layer { weight, x, y, dx: None, dy: y });
    }
    let mut dy = x;
    for number in (0..LAYERS).rev() {
        let Some(layer) = layers.get_mut(&number.to_string()) else { continue };
        layer.dy = dy;
        if number > 0 {
            dy = program.activation_in(&format!("dx{number}"), elements, ElementType::Bf16)?;
            layer.dx = Some(dy);
        }
        let call = program.call(&format!("backward {number}"), Phase::Backward).gradient(layer.weight);
        let call = call.reads(layer.x).reads(layer.dy);
        match layer.dx {
            Some(dx) => call.uses(layer.weight, dgrad, form).writes(dx).add()?,
            None => call.add()?,
        };
    }
    Ok((layers, program.build_training()?))
}

/// The description of the session, and it; or why there is none.
pub(crate) fn start(tokens: usize) -> Result<(String, Session), String> {
    let words = |error: &dyn std::error::Error| error.to_string();
    let gpus = DeviceOrdinal::all().map_err(|error| words(&error))?;
    let gpu = gpus.first().copied().ok_or("no GPU")?;
    let spec = LinearSpec::new(Recipe::Bf16, tokens, WEIGHT);
    let (layers, program) = declare(tokens, &spec).map_err(|error| words(&error))?;
    let closure = move |seat: Seat<DeviceOrdinal>| {
        let device = Device::open(seat.device)?;
        Ok(Closure { layers: layers.clone(), linear: Linear::new(&device, spec)? })
    };
    let mut config = Config::load(None).map_err(|error| words(&error))?;
    // Nothing is to be learned here, and so deep a product of weights would soon be too large.
    config.optimizer.lr = 1e-8;
    let builder = Session::try_builder(config, closure).program(program);
    let started = block_on(builder.initialize(initial::normal(17, 0.016)).start_cuda(vec![gpu]));
    let mut session = started.map_err(|error| words(&error))?;
    let values: Vec<bf16> =
        (0..tokens * WEIGHT.cols).map(|at| bf16::from_f32((at as f32 * 0.7).sin())).collect();
    session.write_input("train", RankId::new(0), "tokens", &values).map_err(|error| words(&error))?;
    Ok((
        format!("{LAYERS} layers of {} x {} and {tokens} tokens on a GPU", WEIGHT.rows, WEIGHT.cols),
        session,
    ))
}
