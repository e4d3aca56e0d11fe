//! The stack as step programs: one call for each unit and direction.
//!
//! Law: both programs have the same calls, which write weight gradients in f32 or in bf16; they differ in what
//! becomes of the gradients. Both units declare the same weights and buffers, some of which live for one call of a
//! block, and cut the same parts into calls ([`super::parts`]); the weights of a block that is a unit are one group,
//! which travels as one collective. The gradient of `qkv` is one carried buffer for all blocks: it starts as zeros,
//! and only its first columns are ever written.

use std::sync::Arc;

use warpweft_base::id::{BufferId, WeightId};
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::model::{
    BufferAccess, BufferSpec, DeclareError, Lifetime, Model, Phase, ProgramBuilder, Role, StepProgram,
};

use super::layers::{Computed, kept_bytes};
use super::parts::{Block, Part, Saved, after, together, writes};
use super::shape::{Projection, StackShape};
use super::variant::{Ending, Unit};

/// What a closure needs to know of the programs.
#[derive(Debug)]
pub(super) struct Declaration {
    /// The parts of every call, in program order.
    pub(super) calls: Vec<Vec<Part>>,
    pub(super) blocks: Vec<Block>,
    pub(super) qkv_gradient: BufferId,
    pub(super) loss: BufferId,
}

/// Name of the output that holds the loss.
pub(super) const LOSS: &str = "loss";

/// Declares the stack with weights in `format`, multiplied as `computed` says, with calls and gathers of a
/// `unit` each: one program for each ending, by its name.
pub(super) fn declare(
    shape: &StackShape,
    format: Format,
    computed: Computed,
    unit: Unit,
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
        if unit == Unit::Block {
            model.group(&format!("blocks.{block}"), &of_block)?;
        }
        weights.push(of_block);
    }
    let model = model.build();
    let mut declaration = None;
    let mut programs = Vec::with_capacity(endings.len());
    for ending in endings {
        let mut program = StepProgram::builder(ending.name(), &model);
        declaration = Some(calls(&mut program, shape, computed, unit, &weights)?);
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
    computed: Computed,
    unit: Unit,
    weights: &[[WeightId; 4]],
) -> Result<Declaration, DeclareError> {
    let narrow = shape.tokens * shape.hidden;
    let qkv_gradient = program.carried("qkv.gradient", 3 * narrow, ElementType::Bf16)?;
    let blocks = blocks(program, shape, computed, unit, weights)?;
    let loss = program.output(LOSS, 1, ElementType::F32)?;
    let mut declaration = Declaration { calls: Vec::new(), blocks, qkv_gradient, loss };
    let parts = Part::of_step(weights.len());
    for parts in parts.chunk_by(|one, other| unit == Unit::Block && one.block() == other.block()) {
        declaration.call(program, shape, computed, unit, parts)?;
        declaration.calls.push(parts.to_vec());
    }
    Ok(declaration)
}

fn blocks(
    program: &mut ProgramBuilder,
    shape: &StackShape,
    computed: Computed,
    unit: Unit,
    weights: &[[WeightId; 4]],
) -> Result<Vec<Block>, DeclareError> {
    let StackShape { hidden, ffn, tokens, .. } = *shape;
    let (narrow, wide) = (tokens * hidden, tokens * ffn);
    let mut blocks: Vec<Block> = Vec::with_capacity(weights.len());
    let kept = kept_bytes(shape, computed);
    // Between two products of one call whose backward reads codes.
    let within = if unit == Unit::Block && kept.is_some() { Lifetime::Call } else { Lifetime::Step };
    for (number, weights) in weights.iter().enumerate() {
        // For bf16 what was activated, for FP8 what each product keeps of its input.
        let saved = match kept {
            None => {
                let name = format!("blocks.{number}.activated");
                Saved::Values { activated: program.activation_in(&name, wide, ElementType::Bf16)? }
            }
            Some(kept) => {
                let mut buffers = [BufferId::default(); 4];
                for ((place, projection), bytes) in buffers.iter_mut().zip(Projection::ALL).zip(kept) {
                    let name = format!("blocks.{number}.{}.kept", projection.name());
                    *place = program.activation_in(&name, bytes, ElementType::U8)?;
                }
                Saved::Codes(buffers)
            }
        };
        let mut own_for = |name: &str, elements, lifetime| {
            let (name, element, role) =
                (format!("blocks.{number}.{name}"), ElementType::Bf16, Role::Internal);
            program.buffer(BufferSpec { name, elements, element, role, lifetime })
        };
        let (qkv, middle) = (own_for("qkv", 3 * narrow, within)?, own_for("middle", narrow, within)?);
        let mut own = |name: &str, elements| own_for(name, elements, Lifetime::Step);
        blocks.push(Block {
            weights: *weights,
            x: blocks.last().map(|before| before.output),
            qkv,
            middle,
            hidden: own("hidden", wide)?,
            saved,
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
    Ok(blocks)
}

impl Declaration {
    /// Adds the call that carries out `parts`, which are the loss or of one block and direction.
    fn call(
        &self,
        program: &mut ProgramBuilder,
        shape: &StackShape,
        (recipe, gradients): Computed,
        unit: Unit,
        parts: &[Part],
    ) -> Result<(), DeclareError> {
        let Some(first) = parts.first() else { return Ok(()) };
        let (form, turned) = (recipe.form(), recipe.dgrad_orientation());
        let phase = first.block().map_or(Phase::Forward, |(_, phase)| phase);
        let mut call = program.call(&name(unit, *first), phase);
        for part in parts {
            call = match *part {
                Part::Forward(block, projection) => {
                    call.uses(self.blocks[block].weight(projection), Orientation::Rowwise, form)
                }
                Part::Loss => call,
                Part::Backward(block, projection) => {
                    let weight = self.blocks[block].weight(projection);
                    call.uses(weight, turned, form).gradient_in(weight, gradients)
                }
            };
        }
        for BufferAccess { buffer, access } in together(parts.iter().flat_map(|part| self.accesses(*part))) {
            call = call.accesses(buffer, access);
        }
        let costs = parts.iter().flat_map(|part| match *part {
            Part::Forward(_, projection) => shape.forward_cost(projection, recipe),
            Part::Loss => vec![shape.loss_cost()],
            Part::Backward(_, projection) => shape.backward_cost(projection, recipe, gradients),
        });
        costs.fold(call, |call, part| call.cost(part)).add().map(|_| ())
    }

    /// The buffers of a part.
    fn accesses(&self, part: Part) -> Vec<BufferAccess> {
        match part {
            Part::Forward(block, projection) => self.blocks[block].forward(projection),
            Part::Loss => after(self.blocks.last().map(|last| last.output), &[writes(self.loss)]),
            Part::Backward(block, projection) => self.blocks[block].backward(projection, self.qkv_gradient),
        }
    }
}

/// The name of the call that begins with `part`.
fn name(unit: Unit, part: Part) -> String {
    match (unit, part) {
        (_, Part::Loss) => "loss".to_owned(),
        (Unit::Weight, Part::Forward(block, of)) => format!("blocks.{block}.{} forward", of.name()),
        (Unit::Weight, Part::Backward(block, of)) => format!("blocks.{block}.{} backward", of.name()),
        (Unit::Block, Part::Forward(block, _)) => format!("blocks.{block} forward"),
        (Unit::Block, Part::Backward(block, _)) => format!("blocks.{block} backward"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use warpweft_cuda::linear::Recipe;
    use warpweft_plan::op::{ExchangeGradient, Op, WireType};
    use warpweft_plan::plan::StepPlan;
    use warpweft_session::config::{Config, Prefetch};
    use warpweft_session::session::plan_program;

    const SHAPE: StackShape = StackShape { hidden: 128, ffn: 256, layers: 3, tokens: 32 };
    const BF16: Computed = (Recipe::Bf16, ElementType::F32);
    fn fp8() -> Computed {
        let Format::Fp8Block(block) = Format::FP8_BLOCK128_POW2 else { panic!("blocks") };
        (Recipe::Fp8Block(block), ElementType::F32)
    }

    const ENDINGS: [Ending; 2] = [Ending::Gradients, Ending::Training];

    /// SK-1.
    #[test]
    fn both_endings_have_the_same_calls_and_every_call_its_parts() {
        for (unit, calls) in [(Unit::Weight, 3 * 8 + 1), (Unit::Block, 3 * 2 + 1)] {
            let (declaration, programs) = declare(&SHAPE, Format::Bf16, BF16, unit, &ENDINGS).unwrap();
            assert_eq!(programs[0].calls(), programs[1].calls());
            assert_eq!(declaration.calls.len(), programs[0].calls().len());
            assert_eq!(declaration.calls.len(), calls);
            assert!(!programs[0].updates_weights() && programs[1].updates_weights());
        }
    }

    /// SK-1.
    #[test]
    fn both_units_run_the_same_parts_in_the_same_order_on_the_same_memory() {
        for (format, computed) in [(Format::Bf16, BF16), (Format::FP8_BLOCK128_POW2, fp8())] {
            check_units(format, computed);
        }
    }

    fn check_units(format: Format, computed: Computed) {
        let [by_weight, by_block] = [Unit::Weight, Unit::Block]
            .map(|unit| declare(&SHAPE, format, computed, unit, &[Ending::Training]).unwrap());
        assert_eq!(by_weight.0.calls.concat(), Part::of_step(SHAPE.layers));
        assert_eq!(by_block.0.calls.concat(), Part::of_step(SHAPE.layers));
        let (by_weight, by_block) = (&by_weight.1[0], &by_block.1[0]);
        // Those that pass between the parts of a block live for its one call.
        let buffers = |program: &StepProgram| -> Vec<_> {
            let all = program.buffers().iter();
            all.map(|spec| (spec.name.clone(), spec.elements, spec.element, spec.role)).collect()
        };
        assert_eq!(buffers(by_weight), buffers(by_block));
        // Uses, gradients and costs are those of the same parts, in their order.
        let uses = |program: &StepProgram| -> Vec<_> {
            program.calls().iter().flat_map(|call| call.uses.clone()).collect()
        };
        let gradients = |program: &StepProgram| -> Vec<_> {
            program.calls().iter().flat_map(|call| call.gradients.clone()).collect()
        };
        assert_eq!(uses(by_weight), uses(by_block));
        assert_eq!(gradients(by_weight), gradients(by_block));
        let costs = |program: &StepProgram| -> Vec<_> {
            program.calls().iter().flat_map(|call| call.cost.clone()).collect()
        };
        assert_eq!(costs(by_weight), costs(by_block));
        assert_eq!(costs(by_block).iter().map(|part| part.flops).sum::<u64>(), SHAPE.flops());
    }

    /// SK-1: the parts are those of bf16; what differs is in what their inputs stay.
    #[test]
    fn in_fp8_backward_reads_codes_that_forward_kept_and_of_values_hidden_alone() {
        for unit in [Unit::Weight, Unit::Block] {
            let fp8 = declare(&SHAPE, Format::FP8_BLOCK128_POW2, fp8(), unit, &[Ending::Gradients]).unwrap();
            let bf16 = declare(&SHAPE, Format::Bf16, BF16, unit, &[Ending::Gradients]).unwrap();
            assert_eq!(fp8.0.calls, bf16.0.calls);
            let left = |(_, programs): &(Arc<Declaration>, Vec<StepProgram>)| {
                let program = &programs[0];
                let touched = |wanted: Phase, writes: bool| -> BTreeSet<BufferId> {
                    let calls = program.calls().iter().filter(move |call| call.phase == wanted);
                    let all = calls.flat_map(|call| call.buffers.iter());
                    let of =
                        all.filter(move |of| if writes { of.access.writes() } else { of.access.reads() });
                    of.map(|access| access.buffer).collect()
                };
                let (written, read) = (touched(Phase::Forward, true), touched(Phase::Backward, false));
                let spec = |buffer: &BufferId| &program.buffers()[buffer.index()];
                let left = written.intersection(&read).map(spec);
                left.map(|spec| (spec.name.clone(), spec.element, spec.elements)).collect::<Vec<_>>()
            };
            let StackShape { hidden, ffn, layers, tokens } = SHAPE;
            let expected = |number| {
                // Lines of a multiple of 16 tokens, and one scale for each line.
                let kept = |name: &str, inputs| {
                    (format!("blocks.{number}.{name}.kept"), ElementType::U8, inputs * (tokens + 4))
                };
                let narrow = ["qkv", "proj", "fc1"].map(|name| kept(name, hidden));
                let values = (format!("blocks.{number}.hidden"), ElementType::Bf16, tokens * ffn);
                narrow.into_iter().chain([kept("fc2", ffn), values])
            };
            assert_eq!(left(&fp8), (0..layers).flat_map(expected).collect::<Vec<_>>(), "{unit:?}");
            let of_bf16 = left(&bf16);
            assert!(of_bf16.iter().all(|(_, element, _)| *element == ElementType::Bf16));
            assert!(of_bf16.iter().any(|(name, ..)| name == "blocks.0.activated"));
        }
    }

    /// Tasks of that name.
    fn count(plan: &StepPlan, name: &str) -> usize {
        plan.tasks.iter().filter(|task| task.op.name() == name).count()
    }

    #[test]
    fn a_plan_of_every_format_ending_and_unit_is_verified() {
        // Every weight is gathered forward and again backward, but for the last block, whose planes are still
        // there: that is as much as a depth of 7 weights, or of one block, lets be in flight.
        let units = [(Unit::Weight, 7, 2 * 12 - 4, 12), (Unit::Block, 1, 2 * 3 - 1, 3)];
        for (format, recipe) in [
            (Format::Bf16, Recipe::Bf16),
            (Format::NVFP4_2D, Recipe::Bf16),
            (Format::FP8_BLOCK128_POW2, fp8().0),
        ] {
            let elements = [ElementType::F32, ElementType::Bf16];
            for (ending, element) in ENDINGS.into_iter().flat_map(|ending| elements.map(|of| (ending, of))) {
                for (unit, depth, gathers, exchanges) in units {
                    let (_, programs) = declare(&SHAPE, format, (recipe, element), unit, &[ending]).unwrap();
                    let config = Config { prefetch: Prefetch::depth(depth), ..Config::default() };
                    let plan = plan_program(&programs[0], &config, 4).unwrap();
                    let what = format!("{format} {ending:?} {unit:?}");
                    assert_eq!(count(&plan, "all-gather"), gathers, "{what}");
                    // What a gather brought is made whole by one task, unless only its values are wanted, and
                    // what is exchanged together is summed by one.
                    let assembles = if format == Format::NVFP4_2D { 0 } else { gathers };
                    assert_eq!(count(&plan, "assemble"), assembles, "{what}");
                    assert_eq!(count(&plan, "exchange gradient"), exchanges, "{what}");
                    assert_eq!(count(&plan, "sum gradient"), exchanges, "{what}");
                    // f32 was requested: what travels in bf16 was written so.
                    let halves = |op: &Op| {
                        matches!(op, Op::ExchangeGradient(ExchangeGradient { wire: WireType::Bf16, .. }))
                    };
                    let written = if element == ElementType::Bf16 { exchanges } else { 0 };
                    assert_eq!(plan.tasks.iter().filter(|task| halves(&task.op)).count(), written, "{what}");
                }
            }
        }
    }

    #[test]
    fn gathers_by_block_bring_the_bytes_of_gathers_by_weight() {
        let plan = |unit, depth| {
            let (_, programs) = declare(&SHAPE, Format::Bf16, BF16, unit, &[Ending::Gradients]).unwrap();
            let config = Config { prefetch: Prefetch::depth(depth), ..Config::default() };
            plan_program(&programs[0], &config, 4).unwrap()
        };
        // On demand nothing is kept: every block comes twice. With one block ahead the last one stays for
        // backward, with two also the one before it, with seven all of them.
        let whole = plan(Unit::Weight, 0).bounds.wire_bytes;
        let gathered = |plan: &StepPlan| -> usize {
            plan.tasks.iter().filter(|task| task.op.name() == "all-gather").map(|task| task.wire_bytes).sum()
        };
        let by_weight = gathered(&plan(Unit::Weight, 0));
        for (depth, gathers) in [(0, 6), (1, 5), (2, 4), (7, 3)] {
            let plan = plan(Unit::Block, depth);
            assert_eq!(count(&plan, "all-gather"), gathers, "depth {depth}");
            assert_eq!(gathered(&plan) * 6, by_weight * gathers, "depth {depth}");
            assert_eq!(plan.bounds.wire_bytes - gathered(&plan), whole - by_weight, "depth {depth}");
        }
    }
}
