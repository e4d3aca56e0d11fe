//! The embedder's side: the trait a trainer implements and what its calls may touch.
//!
//! Law: a closure reaches memory only through its context, and its context hands out only what
//! the call declared, in the way it was declared. What a closure captures is constant over steps;
//! whatever changes lies in declared buffers. The type that lends memory is the backend's
//! [`Surface`]; nothing here knows which.

use bytemuck::Pod;
use half::bf16;

use crate::format::{Format, Orientation, PlaneSpec, Shape};
use crate::id::{BufferId, CallId, MicroBatchId, RankId, WeightId};
use crate::layout::{ArenaLayout, PlaneRegions, Region, WeightLayout, Weights};
use crate::model::{Access, Call, Form};
use crate::op::{Operand, OperandRole};

/// Why a call could not be carried out.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ComputeError {
    /// The call did not declare what its closure asked for.
    #[error("call `{call}` asked for {what}, which it did not declare; add it to the call's declaration")]
    NotDeclared {
        /// The call's name.
        call: String,
        /// What was asked for.
        what: String,
    },
    /// A slice of another element type or length was asked for.
    #[error(
        "call `{call}`: {what} holds {bytes} bytes, which are no whole number of aligned elements of {element} bytes"
    )]
    Element {
        /// The call's name.
        call: String,
        /// What was asked for.
        what: String,
        /// Bytes there.
        bytes: usize,
        /// Size of the element asked for.
        element: usize,
    },
    /// Two live views of one piece of memory, of which one writes.
    #[error("{0}")]
    Race(String),
    /// The embedder's own error.
    #[error("{0}")]
    Closure(String),
}

impl ComputeError {
    /// An embedder's error, kept as its message.
    pub fn closure(error: impl std::fmt::Display) -> Self {
        Self::Closure(error.to_string())
    }
}

/// Memory a backend lends to closures, and the handles a closure needs beside it.
///
/// Law: only a [`ComputeContext`] holds a surface. A backend makes one for each call and gives it
/// to the context alone, so no closure can name a region of its own choice. A backend therefore
/// lets nobody else make or copy its surface.
pub trait Surface {
    /// What closures need to launch work of their own and only the backend knows, such as the
    /// compute lane's CUDA stream; `()` where there is nothing. It reaches no memory.
    type Handles;
    /// A readable piece of memory: a slice on the CPU, a device pointer on a GPU.
    type Read<'a, T: Pod>
    where
        Self: 'a;
    /// A writable piece of memory.
    type Write<'a, T: Pod>
    where
        Self: 'a;

    /// Lends `region` for reading.
    ///
    /// # Errors
    /// [`ComputeError::Element`] or [`ComputeError::Race`].
    fn read<T: Pod>(&self, region: Region) -> Result<Self::Read<'_, T>, ComputeError>;

    /// Lends `region` for writing.
    ///
    /// # Errors
    /// [`ComputeError::Element`] or [`ComputeError::Race`].
    fn write<T: Pod>(&self, region: Region) -> Result<Self::Write<'_, T>, ComputeError>;

    /// The backend's handles for the lane the call runs on.
    fn handles(&self) -> &Self::Handles;
}

/// What a trainer implements: one value per rank, made on the thread that will own it.
///
/// It need be neither `Send` nor `Sync`. `run` is called in the plan's order, for the calls of
/// every program of the session.
pub trait Compute<S: Surface> {
    /// Carries out one call.
    ///
    /// # Errors
    /// Any error skips the step on all ranks; the report names this rank and call.
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, S>) -> Result<(), ComputeError>;
}

impl<S: Surface, F> Compute<S> for F
where
    F: FnMut(&Call, &ComputeContext<'_, S>) -> Result<(), ComputeError>,
{
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, S>) -> Result<(), ComputeError> {
        self(call, context)
    }
}

/// Makes a rank's [`Compute`] on the thread that will own it.
pub type ComputeFactory<S> = std::sync::Arc<dyn Fn(RankId) -> Box<dyn Compute<S>> + Send + Sync>;

/// One use of a call, bound to memory.
#[derive(Clone, Debug)]
struct BoundUse {
    weight: WeightId,
    orientation: Orientation,
    form: Form,
    planes: PlaneRegions,
    tensor_scale: Option<Region>,
}

/// A call bound to the arena: every operand's region, resolved once per plan.
#[derive(Clone, Debug)]
pub struct BoundCall {
    /// The call's number in the step.
    pub id: CallId,
    /// The number of its declaration; the same in every micro-batch.
    pub declared: CallId,
    /// The call.
    pub call: Call,
    uses: Vec<BoundUse>,
    gradients: Vec<(WeightId, Region)>,
    buffers: Vec<(BufferId, Access, Region)>,
    formats: Vec<(WeightId, Format, Shape)>,
}

impl BoundCall {
    /// Resolves the operands of `call`, whose numbers in the step and in the declaration are given.
    #[must_use]
    pub fn new(
        (id, declared): (CallId, CallId),
        call: &Call,
        operands: &[Operand],
        arena: &ArenaLayout,
        weights: &Weights,
    ) -> Self {
        let mut bound = Self {
            id,
            declared,
            call: call.clone(),
            uses: Vec::new(),
            gradients: Vec::new(),
            buffers: Vec::new(),
            formats: Vec::new(),
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
                    let shape = weights.layout(weight).shard.shape;
                    let bytes = shape.rows * shape.cols * size_of::<f32>();
                    bound.gradients.push((weight, Region { offset: region.offset, bytes }));
                }
                OperandRole::Buffer(buffer) => bound.buffers.push((buffer, operand.access, region)),
            }
        }
        bound
    }
}

/// Values of the weight's own shape at the start of a slot.
fn dense_values(region: Region, shape: Shape, element: usize) -> PlaneRegions {
    let data = Region { offset: region.offset, bytes: shape.rows * shape.cols * element };
    PlaneRegions { data, scale: Region::default() }
}

/// Where the tensor scale of the use at `position` lies, if the call got it.
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
pub(crate) fn bound_planes(region: Region, layout: &WeightLayout, orientation: Orientation) -> PlaneRegions {
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

/// The quantized planes of one use.
#[derive(Debug)]
pub struct PlanesView<D, S> {
    /// Format of the planes.
    pub format: Format,
    /// Logical shape of the weight.
    pub shape: Shape,
    /// Codes, one byte plane in the shape `formats` gives.
    pub data: D,
    /// Decode scales; empty for formats without.
    pub scale: D,
    /// One f32: NVFP4's amax, per-tensor FP8's scale_inv; absent for formats without.
    pub tensor_scale: Option<S>,
}

/// Planes as a surface lends them.
pub type PlanesOf<'a, S> = PlanesView<<S as Surface>::Read<'a, u8>, <S as Surface>::Read<'a, f32>>;

/// What one call may touch, for as long as it runs.
///
/// The surface behind it is out of a closure's reach, so a closure gets no region that its call
/// did not declare:
///
/// ```compile_fail,E0616
/// # use warpweft::{backend::cpu::CpuSurface, compute::{ComputeContext, Surface}, layout::Region};
/// fn peek(context: &ComputeContext<'_, CpuSurface>) {
///     let anywhere = Region { offset: 0, bytes: 4 };
///     let _ = context.surface.read::<u8>(anywhere);
/// }
/// ```
#[derive(Debug)]
pub struct ComputeContext<'a, S: Surface> {
    rank: RankId,
    bound: &'a BoundCall,
    surface: &'a S,
}

impl<'a, S: Surface> ComputeContext<'a, S> {
    /// The context of one run of a bound call; made by backends.
    #[must_use]
    pub fn new(rank: RankId, bound: &'a BoundCall, surface: &'a S) -> Self {
        Self { rank, bound, surface }
    }

    /// The rank that runs the call.
    #[must_use]
    pub fn rank(&self) -> RankId {
        self.rank
    }

    /// The number of the call as declared in its program, the same in every micro-batch.
    #[must_use]
    pub fn call(&self) -> CallId {
        self.bound.declared
    }

    /// The micro-batch the call runs for.
    #[must_use]
    pub fn micro_batch(&self) -> MicroBatchId {
        self.bound.call.micro_batch
    }

    /// What the backend hands to closures beside memory: the stream of the compute lane on a GPU,
    /// `()` on the CPU.
    #[must_use]
    pub fn handles(&self) -> &'a S::Handles {
        self.surface.handles()
    }

    /// A weight the call uses densely: f32 `[rows, cols]` rowwise, `[cols, rows]` columnwise.
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call declares exactly this use.
    pub fn dense(
        &self,
        weight: WeightId,
        orientation: Orientation,
    ) -> Result<S::Read<'a, f32>, ComputeError> {
        let usage = self.usage(weight, orientation, Form::Dense)?;
        self.surface.read(usage.planes.data)
    }

    /// A weight the call uses densely in bfloat16: `[rows, cols]` rowwise, `[cols, rows]` columnwise.
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call declares exactly this use.
    pub fn dense_bf16(
        &self,
        weight: WeightId,
        orientation: Orientation,
    ) -> Result<S::Read<'a, bf16>, ComputeError> {
        let usage = self.usage(weight, orientation, Form::DenseBf16)?;
        self.surface.read(usage.planes.data)
    }

    /// The planes of a weight the call uses quantized.
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call declares exactly this use.
    pub fn planes(
        &self,
        weight: WeightId,
        orientation: Orientation,
    ) -> Result<PlanesOf<'a, S>, ComputeError> {
        let usage = self.usage(weight, orientation, Form::Planes)?;
        let (format, shape) = self
            .bound
            .formats
            .iter()
            .find(|(other, ..)| *other == weight)
            .map(|(_, format, shape)| (*format, *shape))
            .ok_or_else(|| self.undeclared(format!("{weight}")))?;
        Ok(PlanesView {
            format,
            shape,
            data: self.surface.read(usage.planes.data)?,
            scale: self.surface.read(usage.planes.scale)?,
            tensor_scale: usage.tensor_scale.map(|region| self.surface.read(region)).transpose()?,
        })
    }

    /// The gradient of `weight` this call overwrites: f32 `[rows, cols]`, the gradient of this rank's
    /// loss times the loss scale ([`crate::session::Session::set_loss_scale`], 1 unless set).
    ///
    /// The sum over ranks and micro-batches ([`crate::model::ProgramBuilder::micro_batches`]) is divided by the
    /// product of their numbers when it is added to the main grad, so a closure divides by neither. What it
    /// must divide by itself is everything the loss of one rank and micro-batch is a mean of: its samples or
    /// tokens. Several calls of one micro-batch that contribute to one weight are added, as the chain rule
    /// says. Ranks and micro-batches of different size are therefore weighted equally, not per sample.
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call declares this gradient.
    pub fn gradient(&self, weight: WeightId) -> Result<S::Write<'a, f32>, ComputeError> {
        let region = self
            .bound
            .gradients
            .iter()
            .find(|(other, _)| *other == weight)
            .map(|(_, region)| *region)
            .ok_or_else(|| self.undeclared(format!("the gradient of {weight}")))?;
        self.surface.write(region)
    }

    /// A buffer the call reads.
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call declares to read or update it.
    pub fn read<T: Pod>(&self, buffer: BufferId) -> Result<S::Read<'a, T>, ComputeError> {
        self.surface.read(self.buffer(buffer, "to read", Access::reads)?)
    }

    /// A buffer the call writes or updates. What a write finds there is unspecified.
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call declares to write or update it.
    pub fn write<T: Pod>(&self, buffer: BufferId) -> Result<S::Write<'a, T>, ComputeError> {
        self.surface.write(self.buffer(buffer, "to write", Access::writes)?)
    }

    fn buffer(
        &self,
        buffer: BufferId,
        verb: &str,
        allows: fn(Access) -> bool,
    ) -> Result<Region, ComputeError> {
        self.bound
            .buffers
            .iter()
            .find(|(other, access, _)| *other == buffer && allows(*access))
            .map(|(_, _, region)| *region)
            .ok_or_else(|| self.undeclared(format!("{verb} {buffer}")))
    }

    fn usage(
        &self,
        weight: WeightId,
        orientation: Orientation,
        form: Form,
    ) -> Result<&BoundUse, ComputeError> {
        self.bound
            .uses
            .iter()
            .find(|usage| usage.weight == weight && usage.orientation == orientation && usage.form == form)
            .ok_or_else(|| self.undeclared(format!("{weight} {orientation} as {form:?}")))
    }

    fn undeclared(&self, what: String) -> ComputeError {
        ComputeError::NotDeclared { call: self.bound.call.name.clone(), what }
    }
}
