//! Calls bound to the arena.
//!
//! Law: every region a call may touch is resolved once per plan, from the operands the plan names; a run
//! resolves nothing. A region covers the weight's own shape, even where its slot is laid out for a padded
//! one.

use std::sync::Arc;

use half::bf16;

use super::error::ComputeError;
use super::lent::Lent;
use super::program::BoundProgram;
use crate::layout::{ArenaLayout, Content, PlaneRegions, Region, WeightLayout, Weights};
use crate::model::{Access, Call, Form, Gradient};
use crate::op::{Operand, OperandRole};
use warpweft_base::id::{BufferId, CallId, WeightId};
use warpweft_format::{ElementType, Format, Orientation, PlaneSpec, Shape};

/// One use of a call, bound to memory.
#[derive(Clone, Debug)]
pub(super) struct BoundUse {
    pub(super) weight: WeightId,
    pub(super) orientation: Orientation,
    pub(super) form: Form,
    pub(super) planes: PlaneRegions,
    pub(super) tensor_scale: Option<Region>,
}

/// A gradient that a call overwrites, bound to memory.
#[derive(Debug)]
pub(super) struct BoundGradient {
    pub(super) gradient: Gradient,
    pub(super) region: Region,
    pub(super) lent: Lent,
}

/// One access of a call to a buffer, bound to memory.
#[derive(Debug)]
pub(super) struct BoundBuffer {
    pub(super) buffer: BufferId,
    pub(super) name: String,
    pub(super) element: ElementType,
    pub(super) access: Access,
    pub(super) region: Region,
    pub(super) lent: Lent,
}

/// A call bound to the arena: every operand's region, resolved once per plan.
#[derive(Debug)]
pub struct BoundCall {
    /// The program the call belongs to.
    pub program: Arc<BoundProgram>,
    /// The call's number in the step.
    pub id: CallId,
    /// The number of the call's declaration, the same in every micro-batch.
    pub declared: CallId,
    /// The call.
    pub call: Call,
    pub(super) uses: Vec<BoundUse>,
    pub(super) gradients: Vec<BoundGradient>,
    pub(super) buffers: Vec<BoundBuffer>,
    /// Of the weights that the call uses or writes gradients of.
    pub(super) formats: Vec<(WeightId, Format, Shape)>,
    /// Where the loss scale is, which every call may read.
    pub(super) loss_scale: Option<Region>,
    /// Whether what the call overwrites is spoiled before its closure gets it.
    pub(super) spoiled: bool,
}

impl BoundCall {
    /// Resolves the operands of `call`, given its numbers in the step and in the declaration. A buffer that
    /// is not among the program's is never lent. With `spoiled`, what the call overwrites is filled with
    /// [`SPOILED`](super::SPOILED) before its closure gets it.
    #[must_use]
    pub fn new(
        program: &Arc<BoundProgram>,
        (id, declared): (CallId, CallId),
        call: &Call,
        operands: &[Operand],
        (arena, weights): (&ArenaLayout, &Weights),
        spoiled: bool,
    ) -> Self {
        let mut bound = Self {
            program: Arc::clone(program),
            id,
            declared,
            call: call.clone(),
            uses: Vec::new(),
            gradients: Vec::new(),
            buffers: Vec::new(),
            formats: Vec::new(),
            loss_scale: arena.find(Content::LossScale).map(|slot| arena.region(slot)),
            spoiled,
        };
        for operand in operands {
            let region = arena.region(operand.slot);
            match operand.role {
                OperandRole::Use(position) => {
                    let Some(usage) = call.uses.get(position) else { continue };
                    let layout = weights.layout(usage.weight);
                    let shape = layout.shard.shape;
                    let planes = match usage.form {
                        Form::Planes => bound_planes(region, layout, usage.orientation),
                        Form::Dense => dense_values(region, shape, size_of::<f32>()),
                        Form::DenseBf16 => dense_values(region, shape, size_of::<bf16>()),
                    };
                    bound.formats.push((usage.weight, layout.format, shape));
                    bound.uses.push(BoundUse {
                        weight: usage.weight,
                        orientation: usage.orientation,
                        form: usage.form,
                        planes,
                        tensor_scale: tensor_scale(position, operands, arena, layout),
                    });
                }
                OperandRole::TensorScale(_) => {}
                OperandRole::Gradient(weight) => {
                    let Some(element) = call.gradient(weight) else { continue };
                    let layout = weights.layout(weight);
                    let shape = layout.shard.shape;
                    bound.formats.push((weight, layout.format, shape));
                    let bytes = shape.rows * shape.cols * element.bytes();
                    let gradient = Gradient { weight, element };
                    let region = Region { offset: region.offset, bytes };
                    bound.gradients.push(BoundGradient { gradient, region, lent: Lent::default() });
                }
                OperandRole::Buffer(buffer) => {
                    let Some(spec) = program.spec(buffer) else { continue };
                    let (name, element, access) = (spec.name.clone(), spec.element, operand.access);
                    let lent = Lent::default();
                    bound.buffers.push(BoundBuffer { buffer, name, element, access, region, lent });
                }
            }
        }
        bound
    }

    /// The operand of the call that begins where `region` does, by name, for messages.
    pub(super) fn operand_at(&self, region: Region) -> String {
        let begins = |other: &Region| other.bytes > 0 && other.offset == region.offset;
        let gradient = self
            .gradients
            .iter()
            .find(|gradient| begins(&gradient.region))
            .map(|gradient| format!("the gradient of {}", self.name_of(gradient.gradient.weight)));
        let buffer = || {
            let found = self.buffers.iter().find(|buffer| begins(&buffer.region));
            found.map(|buffer| format!("buffer `{}`", buffer.name))
        };
        let weight = || {
            let of = |usage: &&BoundUse| begins(&usage.planes.data) || begins(&usage.planes.scale);
            let found = self.uses.iter().find(of);
            found.map(|usage| format!("weight {}", self.name_of(usage.weight)))
        };
        let found = gradient.or_else(buffer).or_else(weight);
        found.unwrap_or_else(|| format!("the memory at byte {}", region.offset))
    }

    /// A weight of the call, for messages.
    fn name_of(&self, weight: WeightId) -> String {
        self.program.weight_name(weight).map_or_else(|| weight.to_string(), |name| format!("`{name}`"))
    }

    /// The gradients that the call overwrites, and where they are.
    #[doc(hidden)]
    pub fn written_gradients(&self) -> impl Iterator<Item = (Gradient, Region)> + '_ {
        self.gradients.iter().map(|gradient| (gradient.gradient, gradient.region))
    }

    /// The regions of the gradients and buffers that the call overwrites.
    pub(super) fn overwritten(&self) -> impl Iterator<Item = Region> + '_ {
        let buffers = self.buffers.iter().filter(|buffer| buffer.access == Access::Write);
        let gradients = self.gradients.iter().map(|gradient| gradient.region);
        gradients.chain(buffers.map(|buffer| buffer.region))
    }

    /// Begins a run of the call: nothing is lent yet.
    pub(super) fn begin(&self) {
        self.gradients.iter().for_each(|gradient| gradient.lent.begin());
        self.buffers.iter().for_each(|buffer| buffer.lent.begin());
    }

    /// Checks, when a closure has returned, that it requested everything that the call declares to overwrite.
    /// What a call updates may stay as it was.
    pub(super) fn check_written(&self) -> Result<(), ComputeError> {
        let not_written = |what| ComputeError::NotWritten { call: self.call.name.clone(), what };
        if let Some(forgotten) = self.gradients.iter().find(|gradient| !gradient.lent.is_marked()) {
            let weight = self.name_of(forgotten.gradient.weight);
            return Err(not_written(format!("the gradient of {weight}")));
        }
        let overwritten = || self.buffers.iter().filter(|buffer| buffer.access == Access::Write);
        match overwritten().find(|buffer| !buffer.lent.is_marked()) {
            None => Ok(()),
            Some(forgotten) => Err(not_written(format!("buffer `{}`", forgotten.name))),
        }
    }
}

/// Values of the weight's own shape at the start of a slot.
fn dense_values(region: Region, shape: Shape, element: usize) -> PlaneRegions {
    let data = Region { offset: region.offset, bytes: shape.rows * shape.cols * element };
    PlaneRegions { data, scale: Region::default() }
}

/// Where the tensor scale of the use at `position` is, if the call got it.
fn tensor_scale(
    position: usize,
    operands: &[Operand],
    arena: &ArenaLayout,
    layout: &WeightLayout,
) -> Option<Region> {
    let scale = operands.iter().find(|operand| operand.role == OperandRole::TensorScale(position))?;
    arena.region(scale.slot).part(layout.position * size_of::<f32>(), size_of::<f32>())
}

/// The planes of the weight's own shape inside a slot that may be laid out for a padded shape.
pub fn bound_planes(region: Region, layout: &WeightLayout, orientation: Orientation) -> PlaneRegions {
    let stored = layout.format.stored_orientations().contains(&orientation);
    let laid_out = if stored { layout.gathered_planes(orientation) } else { layout.transposed_planes() };
    let placed = PlaneRegions::within(region, &laid_out);
    let own = layout.format.planes(orientation, layout.shard.shape);
    let size = |position: usize| own.get(position).map_or(0, PlaneSpec::bytes);
    PlaneRegions {
        data: Region { offset: placed.data.offset, bytes: size(0) },
        scale: Region { offset: placed.scale.offset, bytes: size(1) },
    }
}
