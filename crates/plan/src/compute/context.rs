//! The context of a call: what it may touch while it runs.
//!
//! Law: a context hands out what its call declared, in the way and in the element type it was declared, and
//! answers everything else with an error. A buffer's bytes, whatever its elements are, have methods of their
//! own. Besides, every call may read the step's loss scale, which the host alone writes, between steps. The
//! context keeps the surface to itself.

use half::bf16;

use super::bound::{BoundBuffer, BoundCall, BoundGradient, BoundUse};
use super::error::ComputeError;
use super::surface::Surface;
use crate::layout::Region;
use crate::model::{Access, Form};
use warpweft_base::id::{BufferId, CallId, MicroBatchId, RankId, WeightId};
use warpweft_format::{Element, ElementType, Format, Orientation, Shape};

/// The quantized planes of one use.
#[derive(Debug)]
pub struct PlanesView<D, S> {
    /// Format of the planes.
    pub format: Format,
    /// Logical shape of the weight.
    pub shape: Shape,
    /// Codes, or the values of a plain format: the bytes of the first plane that [`Format::planes`] lists for the
    /// use's orientation and this shape. Codes of rows that complete the last blocks
    /// ([`Format::whole_blocks`]) are zeros.
    pub data: D,
    /// Decode scales: the bytes of the second, also where [`PlaneSpec::element`](warpweft_format::PlaneSpec::element)
    /// is f32 (little endian, as FP8 in blocks has them); empty for formats without.
    pub scale: D,
    /// One f32: NVFP4's amax, per-tensor FP8's scale_inv; absent for formats without.
    pub tensor_scale: Option<S>,
}

/// Planes as a surface lends them.
pub type PlanesOf<'a, S> = PlanesView<<S as Surface>::Read<'a, u8>, <S as Surface>::Read<'a, f32>>;

/// What one call may touch, for as long as it runs.
///
/// A closure asks it for everything that its call declares to write. On the CPU it lends slices:
///
/// ```
/// use warpweft::prelude::*;
///
/// /// `y = w · x`, of a call that uses `w` rowwise and dense, reads `x` and writes `y`.
/// fn map(
///     context: &ComputeContext<'_, CpuSurface>,
///     (w, x, y): (WeightId, BufferId, BufferId),
/// ) -> Result<(), ComputeError> {
///     let (w, x) = (context.dense(w, Orientation::Rowwise)?, context.read::<f32>(x)?);
///     for (row, y) in w.chunks(x.len()).zip(context.write::<f32>(y)?.iter_mut()) {
///         *y = row.iter().zip(x.iter()).map(|(w, x)| w * x).sum();
///     }
///     Ok(())
/// }
/// ```
///
/// The surface is out of a closure's reach, so a closure gets no region that its call did not declare:
///
/// ```compile_fail,E0616
/// # use warpweft::{backend::cpu::CpuSurface, compute::ComputeContext};
/// # use warpweft_plan::{compute::Surface, layout::Region};
/// fn peek(context: &ComputeContext<'_, CpuSurface>) {
///     let anywhere = Region { offset: 0, bytes: 4 };
///     let _ = context.surface.read::<u8>(anywhere);
/// }
/// ```
#[derive(Debug)]
pub struct ComputeContext<'a, S: Surface> {
    rank: RankId,
    pub(super) bound: &'a BoundCall,
    surface: &'a S,
}

impl<'a, S: Surface> ComputeContext<'a, S> {
    /// The context of one run of a bound call.
    pub(super) fn new(rank: RankId, bound: &'a BoundCall, surface: &'a S) -> Self {
        Self { rank, bound, surface }
    }

    /// The rank that runs the call.
    #[must_use]
    pub fn rank(&self) -> RankId {
        self.rank
    }

    /// The name of the program whose call it is.
    #[must_use]
    pub fn program(&self) -> &'a str {
        self.bound.program.name()
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

    /// The loss scale of this step, one f32 (`Session::set_loss_scale`, 1
    /// unless set): what the gradients of a training call are to be multiplied by. No call declares it. On the CPU it
    /// is `context.loss_scale()?[0]`; on a GPU it is where a kernel reads it, also in a step that is replayed.
    ///
    /// # Errors
    /// [`ComputeError::Outside`] in a plan without a place for it, which the planner makes none of.
    pub fn loss_scale(&self) -> Result<S::Read<'a, f32>, ComputeError> {
        let missing = || ComputeError::Outside {
            call: self.bound.call.name.clone(),
            what: "the loss scale".to_owned(),
            reason: "its plan has no place for it".to_owned(),
        };
        self.surface.read(self.bound.loss_scale.ok_or_else(missing)?)
    }

    /// The rows and columns of a weight that the call uses or writes the gradient of: as it is declared, or with tensor
    /// parallelism of the rank's part.
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call does either,
    /// [`ComputeError::OtherOwner`] for the id of another model whose number a weight of this one has.
    pub fn shape(&self, weight: WeightId) -> Result<Shape, ComputeError> {
        let name = self.weight_name(weight)?;
        let found = self.bound.formats.iter().find(|(other, ..)| *other == weight);
        found.map(|(_, _, shape)| *shape).ok_or_else(|| self.undeclared(format!("weight `{name}`")))
    }

    /// What the backend hands to closures besides memory: the stream of the compute lane on a GPU, `()` on
    /// the CPU.
    #[must_use]
    pub fn handles(&self) -> &'a S::Handles {
        self.surface.handles()
    }

    /// A weight the call uses densely: f32 `[rows, cols]` rowwise, `[cols, rows]` columnwise.
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call declares exactly this use,
    /// [`ComputeError::OtherOwner`] for the id of another model whose number a weight of this one has.
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
    /// [`ComputeError::NotDeclared`] unless the call declares exactly this use,
    /// [`ComputeError::OtherOwner`] for the id of another model whose number a weight of this one has.
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
    /// [`ComputeError::NotDeclared`] unless the call declares exactly this use,
    /// [`ComputeError::OtherOwner`] for the id of another model whose number a weight of this one has.
    pub fn planes(
        &self,
        weight: WeightId,
        orientation: Orientation,
    ) -> Result<PlanesOf<'a, S>, ComputeError> {
        let usage = self.usage(weight, orientation, Form::Planes)?;
        let Some((_, format, shape)) = self.bound.formats.iter().find(|(other, ..)| *other == weight) else {
            return Err(self.undeclared(weight.to_string()));
        };
        Ok(PlanesView {
            format: *format,
            shape: *shape,
            data: self.surface.read(usage.planes.data)?,
            scale: self.surface.read(usage.planes.scale)?,
            tensor_scale: usage.tensor_scale.map(|region| self.surface.read(region)).transpose()?,
        })
    }

    /// The gradient of `weight` that this call overwrites: f32 `[rows, cols]`, the gradient of this rank's
    /// loss times the loss scale ([`ComputeContext::loss_scale`], 1 unless set). Its previous
    /// contents are unspecified: write every element, and never add to it. A closure that returns without
    /// requesting a gradient its call declares has failed ([`ComputeError::NotWritten`]).
    ///
    /// The sum over ranks and micro-batches ([`crate::model::ProgramBuilder::micro_batches`]) is divided by
    /// the product of their numbers when it is added to the main grad, so a closure divides by neither. It
    /// must divide by everything else that the loss of one rank and micro-batch is a mean over: its samples
    /// or tokens. Contributions of several calls of one micro-batch to one weight are added, as the chain
    /// rule says. Ranks and micro-batches of different sizes are therefore weighted equally, not per sample.
    ///
    /// # Errors
    /// As [`ComputeContext::gradient_element`], and [`ComputeError::GradientElement`] if it declares it in bf16.
    pub fn gradient(&self, weight: WeightId) -> Result<S::Write<'a, f32>, ComputeError> {
        self.surface.write(self.gradient_region(weight, ElementType::F32)?)
    }

    /// The gradient of `weight` that this call overwrites in bf16. Like [`ComputeContext::gradient`], for a
    /// call that declares it by [`CallBuilder::gradient_in`](crate::model::CallBuilder::gradient_in). The
    /// ranks' gradients are summed in f32, as they were written.
    ///
    /// # Errors
    /// As [`ComputeContext::gradient_element`], and [`ComputeError::GradientElement`] if it declares it in f32.
    pub fn gradient_bf16(&self, weight: WeightId) -> Result<S::Write<'a, bf16>, ComputeError> {
        self.surface.write(self.gradient_region(weight, ElementType::Bf16)?)
    }

    /// The element type in which this call overwrites the gradient of `weight`, for closures that serve both.
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call declares this gradient,
    /// [`ComputeError::OtherOwner`] for the id of another model whose number a weight of this one has.
    pub fn gradient_element(&self, weight: WeightId) -> Result<ElementType, ComputeError> {
        Ok(self.bound_gradient(weight)?.gradient.element)
    }

    fn gradient_region(&self, weight: WeightId, requested: ElementType) -> Result<Region, ComputeError> {
        let bound = self.bound_gradient(weight)?;
        if bound.gradient.element == requested {
            bound.lent.mark();
            return Ok(bound.region);
        }
        let (call, declared) = (self.bound.call.name.clone(), bound.gradient.element);
        let weight = format!("weight `{}`", self.weight_name(weight)?);
        Err(ComputeError::GradientElement { call, weight, declared, requested })
    }

    fn bound_gradient(&self, weight: WeightId) -> Result<&BoundGradient, ComputeError> {
        let name = self.weight_name(weight)?;
        let found = self.bound.gradients.iter().find(|bound| bound.gradient.weight == weight);
        found.ok_or_else(|| self.undeclared(format!("the gradient of weight `{name}`")))
    }

    /// A buffer the call reads: the elements of one micro-batch, in their declared type.
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call declares to read or update it,
    /// [`ComputeError::OtherOwner`] for the id of another program whose number a buffer of this one has,
    /// [`ComputeError::BufferElement`] unless it is declared in `T`.
    pub fn read<T: Element>(&self, buffer: BufferId) -> Result<S::Read<'a, T>, ComputeError> {
        self.surface.read(self.typed(self.readable(buffer)?, T::TYPE)?)
    }

    /// A buffer the call writes or updates, lent like [`ComputeContext::read`] does. What a write finds there
    /// is unspecified. A closure that returns without requesting a buffer its call declares to write has
    /// failed ([`ComputeError::NotWritten`]).
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call declares to write or update it,
    /// [`ComputeError::OtherOwner`] for the id of another program whose number a buffer of this one has,
    /// [`ComputeError::BufferElement`] unless it is declared in `T`.
    pub fn write<T: Element>(&self, buffer: BufferId) -> Result<S::Write<'a, T>, ComputeError> {
        let bound = self.writable(buffer)?;
        let region = self.typed(bound, T::TYPE)?;
        bound.lent.mark();
        self.surface.write(region)
    }

    /// The bytes of a buffer the call reads, whatever its elements are, in little-endian order. For closures
    /// that copy or hash what they do not interpret, or that serve several element types.
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call declares to read or update it,
    /// [`ComputeError::OtherOwner`] for the id of another program whose number a buffer of this one has.
    pub fn read_bytes(&self, buffer: BufferId) -> Result<S::Read<'a, u8>, ComputeError> {
        self.surface.read(self.readable(buffer)?.region)
    }

    /// The bytes of a buffer the call writes or updates, lent like [`ComputeContext::read_bytes`] does.
    ///
    /// # Errors
    /// [`ComputeError::NotDeclared`] unless the call declares to write or update it,
    /// [`ComputeError::OtherOwner`] for the id of another program whose number a buffer of this one has.
    pub fn write_bytes(&self, buffer: BufferId) -> Result<S::Write<'a, u8>, ComputeError> {
        let bound = self.writable(buffer)?;
        bound.lent.mark();
        self.surface.write(bound.region)
    }

    fn readable(&self, buffer: BufferId) -> Result<&BoundBuffer, ComputeError> {
        self.buffer(buffer, "read", Access::reads)
    }

    fn writable(&self, buffer: BufferId) -> Result<&BoundBuffer, ComputeError> {
        self.buffer(buffer, "write", Access::writes)
    }

    fn buffer(
        &self,
        buffer: BufferId,
        verb: &str,
        allows: fn(Access) -> bool,
    ) -> Result<&BoundBuffer, ComputeError> {
        let program = &self.bound.program;
        let Some(spec) = program.spec(buffer) else {
            return Err(self.undeclared(format!("{buffer}, which is of another program, to {verb}")));
        };
        if !buffer.is_named(&spec.name) {
            let (call, program) = (self.bound.call.name.clone(), program.name().to_owned());
            let (id, named) = (buffer.to_string(), spec.name.clone());
            return Err(ComputeError::OtherOwner { call, program, id, owner: "program", named });
        }
        let found = self.bound.buffers.iter().find(|bound| bound.buffer == buffer && allows(bound.access));
        found.ok_or_else(|| self.undeclared(format!("buffer `{}` to {verb}", spec.name)))
    }

    /// Where a buffer is, if it is declared in the type `requested`.
    fn typed(&self, bound: &BoundBuffer, requested: ElementType) -> Result<Region, ComputeError> {
        if bound.element == requested {
            return Ok(bound.region);
        }
        let (call, buffer) = (self.bound.call.name.clone(), bound.name.clone());
        Err(ComputeError::BufferElement { call, buffer, declared: bound.element, requested })
    }

    fn usage(
        &self,
        weight: WeightId,
        orientation: Orientation,
        form: Form,
    ) -> Result<&BoundUse, ComputeError> {
        let name = self.weight_name(weight)?;
        self.bound
            .uses
            .iter()
            .find(|usage| usage.weight == weight && usage.orientation == orientation && usage.form == form)
            .ok_or_else(|| self.undeclared(format!("weight `{name}` {orientation} as {form:?}")))
    }

    /// The name of a weight of this model.
    fn weight_name(&self, weight: WeightId) -> Result<&str, ComputeError> {
        let program = &self.bound.program;
        match program.weight_name(weight) {
            Some(name) if weight.is_named(name) => Ok(name),
            Some(name) => Err(ComputeError::OtherOwner {
                call: self.bound.call.name.clone(),
                program: program.name().to_owned(),
                id: weight.to_string(),
                owner: "model",
                named: name.to_owned(),
            }),
            None => Err(self.undeclared(format!("{weight} of another model"))),
        }
    }

    fn undeclared(&self, what: String) -> ComputeError {
        ComputeError::NotDeclared { call: self.bound.call.name.clone(), what }
    }
}
