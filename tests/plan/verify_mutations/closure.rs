//! The calls of a random program: they compute numbers that depend on every bit they read.
//!
//! Law: a call folds all that it reads into one number and writes noise made of it, so one wrong bit anywhere
//! changes everything after it. Machine and reference share this arithmetic and nothing else: each has its
//! own way to what a call reads.

use half::bf16;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::{RankId, WeightId};
use warpweft_format::ElementType;
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::layout::WeightLayout;
use warpweft_plan::model::{Block, Call, Form, Gradient, Model, StepProgram};
use warpweft_session::session::initial::MasterRows;
use warpweft_testing::random_programs::{bound_counts, counts_beside, filled, mix};

/// What a call has read so far.
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn new(call: &str, rank: RankId) -> Self {
        let mut digest = Self(u64::from(rank.number()) + 1);
        digest.bytes(call.as_bytes());
        digest
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(5);
        }
    }

    /// The numbers a call writes into its `position`-th target: small, never all the same.
    pub(crate) fn fill(&self, position: usize, values: &mut [f32]) {
        for (at, value) in values.iter_mut().enumerate() {
            let bits = mix(self.0 ^ mix((position as u64) << 32 | at as u64));
            *value = ((bits >> 40) as f32 / (1 << 23) as f32 - 1.0) * 0.25;
        }
    }

    /// The same, rounded.
    pub(crate) fn fill_bf16(&self, position: usize, values: &mut [bf16]) {
        let mut whole = vec![0.0; values.len()];
        self.fill(position, &mut whole);
        values.iter_mut().zip(whole).for_each(|(value, whole)| *value = bf16::from_f32(whole));
    }

    /// The bytes of a buffer of so many elements, whatever these are.
    pub(crate) fn bytes_of(&self, position: usize, element: ElementType, elements: usize) -> Vec<u8> {
        let mut values = vec![0.0; elements];
        self.fill(position, &mut values);
        match element {
            ElementType::F32 | ElementType::U32 => bytemuck::cast_slice(&values).to_vec(),
            ElementType::Bf16 => {
                let rounded: Vec<bf16> = values.into_iter().map(bf16::from_f32).collect();
                bytemuck::cast_slice(&rounded).to_vec()
            }
            ElementType::U8 => values.into_iter().map(|value| (value.to_bits() >> 8) as u8).collect(),
        }
    }
}

/// Runs a call on the machine.
pub(crate) fn run(
    program: &StepProgram,
    call: &Call,
    context: &ComputeContext<'_, CpuSurface>,
) -> Result<(), ComputeError> {
    let model = program.model();
    let mut digest = Digest::new(&call.name, context.rank());
    for usage in &call.uses {
        match usage.form {
            Form::Dense => {
                digest.bytes(bytemuck::cast_slice(&context.dense(usage.weight, usage.orientation)?))
            }
            Form::DenseBf16 => {
                let values = context.dense_bf16(usage.weight, usage.orientation)?;
                digest.bytes(bytemuck::cast_slice::<bf16, u8>(&values));
            }
            Form::Planes => {
                let planes = context.planes(usage.weight, usage.orientation)?;
                digest.bytes(&planes.data);
                digest.bytes(&planes.scale);
                if let (Some(scale), true) = (planes.tensor_scale, has_tensor_scale(model, usage.weight)) {
                    digest.bytes(bytemuck::cast_slice(&scale));
                }
            }
        }
    }
    for access in call.buffers.iter().filter(|access| access.access.reads()) {
        let bytes = context.read_bytes(access.buffer)?;
        match counts_beside(program, access.buffer) {
            Some(counts) => {
                digest.bytes(&filled(program, access.buffer, &bytes, &context.read_bytes(counts)?))
            }
            None => digest.bytes(&bytes),
        }
    }
    for (position, Gradient { weight, element }) in call.gradients.iter().copied().enumerate() {
        match element {
            ElementType::Bf16 => digest.fill_bf16(position, &mut context.gradient_bf16(weight)?),
            _ => digest.fill(position, &mut context.gradient(weight)?),
        }
    }
    for (position, access) in call.buffers.iter().enumerate().filter(|(_, access)| access.access.writes()) {
        let spec = &program.buffers()[access.buffer.index()];
        let bytes = digest.bytes_of(call.gradients.len() + position, spec.element, spec.elements);
        let bytes = bound_counts(program, access.buffer, bytes);
        context.write_bytes(access.buffer)?.copy_from_slice(&bytes);
    }
    Ok(())
}

/// Do planes of the weight mean nothing without a scale of the whole tensor?
pub(crate) fn has_tensor_scale(model: &Model, weight: WeightId) -> bool {
    model.weight(weight).unwrap().format.needs_tensor_amax()
}

/// A rank's input of one micro-batch of a step.
pub(crate) fn input(step: u32, rank: RankId, micro_batch: u32, name: &str, values: &mut [f32]) {
    let mut digest = Digest::new(name, rank);
    digest.bytes(&[step.to_le_bytes(), micro_batch.to_le_bytes()].concat());
    digest.fill(0, values);
}

/// What a rank has of the masters at the start.
pub(crate) fn initial_rows(layout: &WeightLayout, rank: RankId) -> Vec<f32> {
    let (name, columns) = (layout.name_at(rank), layout.shard.whole().cols);
    let row = |row: usize| {
        let mut values = vec![0.0f32; columns];
        initial(MasterRows { weight: &name, first_row: row, columns }, &mut values);
        values[layout.shard.columns_of(rank)].to_vec()
    };
    let rows = |Block { first, shape }: Block| first.rows..first.rows + shape.rows;
    layout.shard.blocks_of(rank).flat_map(rows).flat_map(row).collect()
}

/// Masters at the start.
pub(crate) fn initial(rows: MasterRows<'_>, values: &mut [f32]) {
    let seed = rows.weight.bytes().fold(7u64, |seed, byte| mix(seed ^ u64::from(byte)));
    for (at, value) in values.iter_mut().enumerate() {
        *value =
            (mix(seed ^ (rows.first_element() + at) as u64) >> 40) as f32 / (1 << 24) as f32 * 0.5 - 0.25;
    }
}
