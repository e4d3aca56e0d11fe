//! A model of experts and a training step of it, for sessions on every backend.
//!
//! A block of experts for each format, one after the other. Every expert has tokens of its own; its block is
//! a group that is gathered and reduced as one. What a block gave in forward is recomputed in backward,
//! and a step has two micro-batches. The loss is half the squared length of what the last block gives, so its
//! gradient is that, and a device brings products alone: `crate::products`.

use std::collections::BTreeMap;

use warpweft_base::id::{BufferId, WeightId};
use warpweft_format::{ElementType, Format, Orientation, Shape};
use warpweft_plan::model::{
    BufferSpec, Lifetime, Model, ParameterGroup, Phase, ProgramBuilder, Role, StepProgram, TensorParallel,
};
use warpweft_session::session::initial::MasterRows;

use super::harness::noise;
use crate::products::{form, turned};

/// Of every expert.
pub(crate) const WEIGHT: Shape = Shape::new(256, 256);
/// Of every expert and micro-batch.
pub(crate) const TOKENS: usize = 16;

/// Of every block.
pub(crate) const EXPERTS: usize = 2;
/// Of every step.
pub(crate) const MICRO_BATCHES: usize = 2;
/// Of every expert's input, output and micro-batch.
pub(crate) const ELEMENTS: usize = TOKENS * WEIGHT.cols;

/// A product of one expert. Matrices of tokens are bf16, a token a row; dW is f32.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Product {
    /// y = x Wᵀ.
    Forward { weight: WeightId, x: BufferId, y: BufferId },
    /// dx = dy W, and dW = dyᵀ x.
    Backward { weight: WeightId, x: BufferId, dy: BufferId, dx: BufferId },
}

/// A program, and by the name of a call the block it belongs to and what it computes.
pub(crate) struct Declared {
    pub(crate) program: StepProgram,
    pub(crate) products: BTreeMap<String, (usize, Vec<Product>)>,
}

/// Every format of weights; a block's number is that of its format.
pub(crate) fn formats() -> Vec<Format> {
    Format::CANONICAL.into_iter().filter(|format| format.check_weight().is_ok()).collect()
}

/// Buffers of bf16, one for each expert.
fn per_expert(name: &str, role: Role, program: &mut ProgramBuilder) -> Vec<BufferId> {
    let spec = |expert| BufferSpec {
        name: format!("{name} {expert}"),
        elements: ELEMENTS,
        element: ElementType::Bf16,
        role,
        lifetime: Lifetime::Step,
    };
    (0..EXPERTS).map(|expert| program.buffer(spec(expert)).unwrap()).collect()
}

/// The program; these calls are dynamic.
pub(crate) fn declare(dynamic: &[&str]) -> Declared {
    declare_with(dynamic, MICRO_BATCHES as u32)
}

/// The program with so many micro-batches in a step.
pub(crate) fn declare_with(dynamic: &[&str], micro_batches: u32) -> Declared {
    declared(dynamic, micro_batches, ParameterGroup::default(), (1, false))
}

/// The program of one micro-batch whose weights' matrices a custom optimizer gets whole.
pub(crate) fn declare_by_matrices() -> Declared {
    declared(&[], 1, ParameterGroup { whole_matrix: true, ..ParameterGroup::default() }, (1, false))
}

/// The program for tensor-parallel groups of so many ranks: the parts of the weights are what the others' weights are,
/// by rows of every first expert and by columns of every second.
pub(crate) fn declare_cut(tensor: u32) -> Declared {
    declared(&[], MICRO_BATCHES as u32, ParameterGroup::default(), (tensor as usize, false))
}

/// The same, where every second block has other experts on each rank of an expert-parallel group, and is not cut.
pub(crate) fn declare_parallel(tensor: u32) -> Declared {
    declared(&[], MICRO_BATCHES as u32, ParameterGroup::default(), (tensor as usize, true))
}

fn declared(
    dynamic: &[&str],
    micro_batches: u32,
    parameters: ParameterGroup,
    (tensor, parallel): (usize, bool),
) -> Declared {
    let formats = formats();
    let mut model = Model::builder();
    let blocks: Vec<Vec<WeightId>> = formats
        .iter()
        .enumerate()
        .map(|(block, format)| {
            let is_parallel = parallel && block % 2 == 1;
            let name = |expert: usize| match is_parallel {
                true => format!("{format}.experts.{expert}"),
                false => format!("{format} {expert}"),
            };
            let sharded = |expert: usize| {
                if is_parallel {
                    let weight = model.sharded(&name(expert), WEIGHT.rows, WEIGHT.cols, *format).unwrap();
                    model.expert_parallel(weight).unwrap();
                    model.tensor_parallel(weight, TensorParallel::SplitTokens).unwrap();
                    return weight;
                }
                let Shape { rows, cols } = WEIGHT;
                let (rows, cols, how) = match expert.is_multiple_of(2) {
                    true => (tensor * rows, cols, TensorParallel::ColumnParallel),
                    false => (rows, tensor * cols, TensorParallel::RowParallel),
                };
                let weight = model.sharded(&name(expert), rows, cols, *format).unwrap();
                model.tensor_parallel(weight, how).unwrap();
                weight
            };
            let experts: Vec<WeightId> = (0..EXPERTS).map(sharded).collect();
            model.group(&format.to_string(), &experts).unwrap();
            experts.iter().for_each(|expert| model.parameters(*expert, parameters).unwrap());
            experts
        })
        .collect();
    let mut program = StepProgram::builder("train", &model.build());
    program.micro_batches(micro_batches).unwrap();
    let last = blocks.len() - 1;
    let mut x = vec![per_expert("input", Role::Input, &mut program)];
    x.extend((1..=last).map(|block| per_expert(&format!("x{block}"), Role::Internal, &mut program)));
    x.push(per_expert("output", Role::Output, &mut program));
    let gradients =
        ["even gradient", "odd gradient"].map(|name| per_expert(name, Role::Internal, &mut program));
    let mut products = BTreeMap::new();
    let mut call = |name: String, phase, block: usize, orientation, computed: Vec<Product>| {
        let mut call = program.call(&name, phase);
        if dynamic.contains(&name.as_str()) {
            call = call.dynamic();
        }
        for product in &computed {
            call = match *product {
                Product::Forward { weight, x, y } => {
                    call.uses(weight, orientation, form(formats[block])).reads(x).writes(y)
                }
                Product::Backward { weight, x, dy, dx } => call
                    .uses(weight, orientation, form(formats[block]))
                    .reads(x)
                    .reads(dy)
                    .writes(dx)
                    .gradient(weight),
            };
        }
        call.add().unwrap();
        products.insert(name, (block, computed));
    };
    let forward = |block: usize| -> Vec<Product> {
        let of = |expert| Product::Forward {
            weight: blocks[block][expert],
            x: x[block][expert],
            y: x[block + 1][expert],
        };
        (0..EXPERTS).map(of).collect()
    };
    for block in 0..=last {
        call(format!("f{block}"), Phase::Forward, block, Orientation::Rowwise, forward(block));
    }
    for block in (0..=last).rev() {
        if block > 0 {
            let again = format!("f{} again", block - 1);
            call(again, Phase::Backward, block - 1, Orientation::Rowwise, forward(block - 1));
        }
        let above = if block == last { &x[block + 1] } else { &gradients[(block + 1) % 2] };
        let of = |expert| Product::Backward {
            weight: blocks[block][expert],
            x: x[block][expert],
            dy: above[expert],
            dx: gradients[block % 2][expert],
        };
        let computed = (0..EXPERTS).map(of).collect();
        call(format!("b{block}"), Phase::Backward, block, turned(formats[block]), computed);
    }
    Declared { program: program.build_training().unwrap(), products }
}

/// Masters under which activations neither grow nor vanish from block to block.
pub(crate) fn initial(rows: MasterRows<'_>, masters: &mut [f32]) {
    let seed =
        rows.weight.bytes().fold(7u32, |seed, byte| seed.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let end = rows.first_element() + masters.len();
    let all = noise(end.max(WEIGHT.elements()), seed);
    let own = &all[rows.first_element()..end];
    masters.iter_mut().zip(own).for_each(|(to, from)| *to = 0.108 * from);
}
