//! The stack as step programs: one call for each weight and direction.
//!
//! Law: both programs have the same calls, which write weight gradients in f32 or in bf16; they differ in what becomes of the gradients. The gradient of `qkv` is one carried
//! buffer for all blocks: it starts as zeros, and only its first columns are ever written.

use std::sync::Arc;

use super::shape::{Projection, StackShape};
use super::variant::Ending;
use crate::format::{ElementType, Format, Orientation};
use crate::id::{BufferId, WeightId};
use crate::linear::Recipe;
use crate::model::{
    BufferSpec, CallBuilder, DeclareError, Lifetime, Math, Model, Phase, ProgramBuilder, Role, StepProgram,
};

/// What a call computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// One weight of a block, forward.
    Forward(usize, Projection),
    /// The sum of the last output.
    Loss,
    /// One weight of a block, backward.
    Backward(usize, Projection),
}

/// What the calls of one block find where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// qkv, proj, fc1, fc2.
    pub(super) weights: [WeightId; 4],
    /// Output of the block before; the first block's is the closure's own.
    pub(super) x: Option<BufferId>,
    pub(super) qkv: BufferId,
    pub(super) middle: BufferId,
    pub(super) hidden: BufferId,
    pub(super) activated: BufferId,
    pub(super) output: BufferId,
    /// Gradient of the output; the last block's is the closure's own.
    pub(super) dy: Option<BufferId>,
    pub(super) hidden_gradient: BufferId,
    pub(super) middle_gradient: BufferId,
    /// Gradient of `x`.
    pub(super) dx: BufferId,
}

/// What a closure needs to know of the programs.
#[derive(Debug)]
pub(super) struct Declaration {
    /// Of every call, in program order.
    pub(super) parts: Vec<Part>,
    pub(super) blocks: Vec<Block>,
    pub(super) qkv_gradient: BufferId,
    pub(super) loss: BufferId,
}

/// Name of the output that holds the loss.
pub(super) const LOSS: &str = "loss";

/// By which products, and in what their weight gradients are written.
pub(super) type Computed = (Recipe, ElementType);

/// Declares the stack with weights in `format`, multiplied as `computed` says: one program for each ending, by its name.
pub(super) fn declare(
    shape: &StackShape,
    format: Format,
    computed: Computed,
    endings: &[Ending],
) -> Result<(Arc<Declaration>, Vec<StepProgram>), DeclareError> {
    let mut model = Model::builder();
    let mut weights = Vec::with_capacity(shape.layers);
    for block in 0..shape.layers {
        let mut of_block = [WeightId::default(); 4];
        for (place, projection) in of_block.iter_mut().zip(Projection::ALL) {
            let of = shape.weight(projection);
            *place =
                model.sharded(&format!("blocks.{block}.{}", projection.name()), of.rows, of.cols, format)?;
        }
        weights.push(of_block);
    }
    let model = model.build();
    let mut declaration = None;
    let mut programs = Vec::with_capacity(endings.len());
    for ending in endings {
        let mut program = StepProgram::builder(ending.name(), &model);
        declaration = Some(calls(&mut program, shape, computed, &weights)?);
        programs.push(match ending {
            Ending::Gradients => program.build_gradients()?,
            Ending::Training => program.build_training()?,
        });
    }
    let nothing = || DeclareError::NoCalls { program: "stack".to_owned() };
    Ok((Arc::new(declaration.ok_or_else(nothing)?), programs))
}

fn calls(
    program: &mut ProgramBuilder,
    shape: &StackShape,
    (recipe, gradients): Computed,
    weights: &[[WeightId; 4]],
) -> Result<Declaration, DeclareError> {
    let StackShape { hidden, ffn, tokens, .. } = *shape;
    let (narrow, wide) = (tokens * hidden, tokens * ffn);
    let qkv_gradient = buffer(program, "qkv.gradient".to_owned(), 3 * narrow, Lifetime::Carried)?;
    let mut blocks: Vec<Block> = Vec::with_capacity(weights.len());
    for (number, weights) in weights.iter().enumerate() {
        let mut own = |name: &str, elements| {
            buffer(program, format!("blocks.{number}.{name}"), elements, Lifetime::Step)
        };
        blocks.push(Block {
            weights: *weights,
            x: blocks.last().map(|before| before.output),
            qkv: own("qkv", 3 * narrow)?,
            middle: own("middle", narrow)?,
            hidden: own("hidden", wide)?,
            activated: own("activated", wide)?,
            output: own("output", narrow)?,
            dy: None,
            hidden_gradient: own("hidden.gradient", wide)?,
            middle_gradient: own("middle.gradient", narrow)?,
            dx: own("x.gradient", narrow)?,
        });
    }
    for number in 1..blocks.len() {
        blocks[number - 1].dy = Some(blocks[number].dx);
    }
    let loss = program.output(LOSS, 1, ElementType::F32)?;
    let mut parts = Vec::new();
    let (form, turned) = (recipe.form(), recipe.dgrad_orientation());
    let math = if recipe == Recipe::Bf16 { Math::Bf16 } else { Math::Fp8 };
    for (number, block) in blocks.iter().enumerate() {
        let Block { x, qkv, middle, hidden, activated, output, .. } = *block;
        for (weight, projection) in block.weights.into_iter().zip(Projection::ALL) {
            let name = format!("blocks.{number}.{} forward", projection.name());
            let call = program.call(&name, Phase::Forward).uses(weight, Orientation::Rowwise, form);
            let call = call.cost(shape.cost(projection, 1, math));
            match projection {
                Projection::Qkv => optional(call, x).writes(qkv),
                Projection::Proj => optional(call, x).reads(qkv).writes(middle),
                Projection::Fc1 => call.reads(middle).writes(hidden).writes(activated),
                Projection::Fc2 => call.reads(activated).reads(middle).writes(output),
            }
            .add()?;
            parts.push(Part::Forward(number, projection));
        }
    }
    if let Some(last) = blocks.last() {
        program.call("loss", Phase::Forward).reads(last.output).writes(loss).add()?;
        parts.push(Part::Loss);
    }
    for (number, block) in blocks.iter().enumerate().rev() {
        let Block { x, qkv, middle, hidden, activated, dy, hidden_gradient, middle_gradient, dx, .. } =
            *block;
        for (weight, projection) in block.weights.into_iter().zip(Projection::ALL).rev() {
            let name = format!("blocks.{number}.{} backward", projection.name());
            let call = program.call(&name, Phase::Backward).uses(weight, turned, form);
            let call = call.gradient_in(weight, gradients);
            let call = call.cost(shape.cost(projection, 2, math));
            match projection {
                Projection::Fc2 => optional(call, dy).reads(activated).reads(hidden).writes(hidden_gradient),
                Projection::Fc1 => {
                    optional(call, dy).reads(hidden_gradient).reads(middle).writes(middle_gradient)
                }
                Projection::Proj => call.reads(middle_gradient).reads(qkv).updates(qkv_gradient),
                Projection::Qkv => optional(call, x).reads(qkv_gradient).reads(middle_gradient).writes(dx),
            }
            .add()?;
            parts.push(Part::Backward(number, projection));
        }
    }
    Ok(Declaration { parts, blocks, qkv_gradient, loss })
}

fn optional(call: CallBuilder<'_>, buffer: Option<BufferId>) -> CallBuilder<'_> {
    match buffer {
        Some(buffer) => call.reads(buffer),
        None => call,
    }
}

fn buffer(
    program: &mut ProgramBuilder,
    name: String,
    elements: usize,
    lifetime: Lifetime,
) -> Result<BufferId, DeclareError> {
    let (element, role) = (ElementType::Bf16, Role::Internal);
    program.buffer(BufferSpec { name, elements, element, role, lifetime })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Prefetch};
    use crate::op::Op;
    use crate::session::plan_program;

    const SHAPE: StackShape = StackShape { hidden: 128, ffn: 256, layers: 3, tokens: 32 };

    /// SK-1.
    #[test]
    fn both_endings_have_the_same_calls_and_one_part_for_each() {
        let endings = [Ending::Gradients, Ending::Training];
        let (declaration, programs) =
            declare(&SHAPE, Format::Bf16, (Recipe::Bf16, ElementType::F32), &endings).unwrap();
        assert_eq!(programs[0].calls(), programs[1].calls());
        assert_eq!(declaration.parts.len(), programs[0].calls().len());
        assert_eq!(declaration.parts.len(), 3 * 8 + 1);
        assert!(!programs[0].updates_weights() && programs[1].updates_weights());
    }

    #[test]
    fn a_plan_of_every_format_and_ending_is_verified() {
        let block = Recipe::Fp8Block(match Format::FP8_BLOCK128_POW2 {
            Format::Fp8Block(block) => block,
            other => panic!("{other}"),
        });
        for (format, recipe) in [
            (Format::Bf16, Recipe::Bf16),
            (Format::NVFP4_2D, Recipe::Bf16),
            (Format::FP8_BLOCK128_POW2, block),
        ] {
            let endings = [Ending::Gradients, Ending::Training];
            let elements = [ElementType::F32, ElementType::Bf16];
            for (ending, element) in endings.into_iter().flat_map(|ending| elements.map(|of| (ending, of))) {
                let (_, programs) = declare(&SHAPE, format, (recipe, element), &[ending]).unwrap();
                let config = Config { prefetch: Prefetch::depth(7), ..Config::default() };
                let plan = plan_program(&programs[0], &config, 4).unwrap();
                // Every weight is gathered forward and again backward, but for the last block, whose planes are still there:
                // that is as much as a depth of 7 lets be in flight.
                let gathers = plan.tasks.iter().filter(|task| task.op.name() == "all-gather").count();
                assert_eq!(gathers, 2 * 12 - 4, "{format} {ending:?}");
                // f32 was asked for: what travels in bf16 was written so.
                let halves = |op: &Op| matches!(op, Op::ExchangeGradient { element: ElementType::Bf16, .. });
                let written = if element == ElementType::Bf16 { 12 } else { 0 };
                assert_eq!(plan.tasks.iter().filter(|task| halves(&task.op)).count(), written, "{format}");
            }
        }
    }
}
