//! The declaration of one call.
//!
//! Law: nothing is added to the program before [`CallBuilder::add`], which checks the whole call first:
//! names, ids, repeated accesses, and whether the weight's format and placement can serve each use. A refused
//! call leaves the program as it was.

use std::collections::BTreeSet;

use super::builder::ProgramBuilder;
use super::call::{Call, Form, Gradient, Phase, Reuse, Use};
use super::call_counts::{check_counts, check_readers_of_rows, check_writers_of_counts};
use super::cost::CostHint;
use crate::model::names::{check_name, names};
use crate::model::{Access, BufferAccess, BufferSpec, Collective, DeclareError, Placement, WeightSpec};
use warpweft_base::id::{BufferId, CallId, MicroBatchId, WeightId};
use warpweft_format::{ElementType, Orientation};

impl ProgramBuilder {
    /// Starts the declaration of a call; nothing is added until [`CallBuilder::add`].
    pub fn call(&mut self, name: &str, phase: Phase) -> CallBuilder<'_> {
        CallBuilder {
            program: self,
            call: Call {
                name: name.to_owned(),
                micro_batch: MicroBatchId::default(),
                phase,
                uses: Vec::new(),
                gradients: Vec::new(),
                buffers: Vec::new(),
                cost: Vec::new(),
                dynamic: false,
                collective: None,
            },
            reuse_of_nothing: false,
        }
    }

    /// Adds a [`Collective`] after the calls added before. It counts as a call of that name, which no closure runs.
    ///
    /// How many elements `to` must have follows from `from` and from the number of ranks
    /// ([`CollectiveKind::received`](crate::model::CollectiveKind::received)), which is known when a session starts; it
    /// is checked then.
    ///
    /// In a step in which a closure failed on some rank, what that rank gives is whatever its buffer held, so closures
    /// after a collective must bear any bits: check indices that came by one. The step
    /// is skipped on all ranks; a [carried](crate::model::Lifetime::Carried) buffer is not rolled back, so what is
    /// made of a collective should reach it in the step that follows.
    ///
    /// # Errors
    /// A repeated, empty or unprintable name, a buffer that the program does not have, a buffer of another
    /// program, one buffer on both sides ([`DeclareError::CollectiveInPlace`]), buffers of two element types or, to be
    /// summed or compared, not of f32 ([`DeclareError::CollectiveElement`]), counts that are not those of its rows
    /// ([`DeclareError::Counts`]). The program is unchanged then.
    pub fn collective(
        &mut self,
        name: &str,
        phase: Phase,
        collective: Collective,
    ) -> Result<CallId, DeclareError> {
        let mut builder = self.call(name, phase).reads(collective.from).writes(collective.to);
        if let Some(counts) = collective.counts {
            builder = builder.reads(counts.given);
            builder = if counts.known { builder.reads(counts.taken) } else { builder.writes(counts.taken) };
        }
        builder.call.collective = Some(collective);
        builder.add()
    }
}

/// One call under declaration. Ids come from the builder and model the call is added to.
#[derive(Debug)]
#[must_use = "a call is declared by `add`"]
pub struct CallBuilder<'program> {
    program: &'program mut ProgramBuilder,
    call: Call,
    /// Was a reuse decided before there was a use to decide it for?
    reuse_of_nothing: bool,
}

impl CallBuilder<'_> {
    /// The call reads `weight`. Repeat it for every use, in the order of consumption.
    pub fn uses(mut self, weight: WeightId, orientation: Orientation, form: Form) -> Self {
        self.call.uses.push(Use { weight, orientation, form, reuse: None });
        self
    }

    /// The call reads the values of `weight` in f32, `[rows, cols]`: [`CallBuilder::uses`] rowwise and dense.
    pub fn uses_dense(self, weight: WeightId) -> Self {
        self.uses(weight, Orientation::Rowwise, Form::Dense)
    }

    /// Decides for the use named last whether its planes are kept from the use before, whatever weight and
    /// configuration say. After no use it is refused by [`CallBuilder::add`].
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        match self.call.uses.last_mut() {
            Some(usage) => usage.reuse = Some(reuse),
            None => self.reuse_of_nothing = true,
        }
        self
    }

    /// The call overwrites the full gradient of `weight`, in f32.
    pub fn gradient(self, weight: WeightId) -> Self {
        self.gradient_in(weight, ElementType::F32)
    }

    /// The call overwrites the full gradient of `weight` in `element`, f32 or bf16. In bf16 half the bytes are
    /// written, and it is reduced as it lies, or rounded to MXFP8 where gradients travel so. Sharded weights only;
    /// and nothing is added to it on its rank, so where several calls or micro-batches write gradients of the
    /// weight, `reduce_every` must be `"call"`.
    pub fn gradient_in(mut self, weight: WeightId, element: ElementType) -> Self {
        self.call.gradients.push(Gradient { weight, element });
        self
    }

    /// As [`CallBuilder::gradient_in`] of a weight that trains, and nothing of one that is
    /// [frozen](crate::model::WeightSpec::frozen), of which calls write none. The closure asks the model too.
    pub fn gradient_if_trained(self, weight: WeightId, element: ElementType) -> Self {
        let frozen = self.program.model.weight(weight).is_ok_and(|spec| spec.frozen);
        if frozen { self } else { self.gradient_in(weight, element) }
    }

    /// The call reads `buffer`.
    pub fn reads(self, buffer: BufferId) -> Self {
        self.accesses(buffer, Access::Read)
    }

    /// The call overwrites `buffer`.
    pub fn writes(self, buffer: BufferId) -> Self {
        self.accesses(buffer, Access::Write)
    }

    /// The call reads and changes `buffer`.
    pub fn updates(self, buffer: BufferId) -> Self {
        self.accesses(buffer, Access::Update)
    }

    /// The call accesses `buffer` in the given way.
    pub fn accesses(mut self, buffer: BufferId, access: Access) -> Self {
        self.call.buffers.push(BufferAccess { buffer, access });
        self
    }

    /// A part of what the call costs. Repeat it for every part: what they take adds up.
    pub fn cost(mut self, part: CostHint) -> Self {
        self.call.cost.push(part);
        self
    }

    /// The call cannot be captured: its closure decides on the host what it launches, such as shapes that
    /// differ from step to step, or waits, or allocates. It is issued anew in every step, between the
    /// captured segments before and after it (`capture = "segments"`); a step with such a call cannot be
    /// captured whole. Where nothing is captured this changes nothing.
    ///
    /// On GPUs what it launches must have been launched in the plan's first step, or
    /// `CUDA_MODULE_LOADING=EAGER` must be set and its libraries warmed: loading code waits for the device,
    /// which may wait for a peer that waits for this very rank. Waiting and allocating after the first step
    /// hold up the host, and no test does either; the whole contract is a table in
    /// [`Compute`](crate::compute::Compute#on-a-gpu).
    pub fn dynamic(mut self) -> Self {
        self.call.dynamic = true;
        self
    }

    /// Adds the call after those added before.
    ///
    /// # Errors
    /// A repeated, empty or unprintable name, a number that no weight of the model and no buffer of the program has,
    /// a weight of another model or a buffer of another program ([`DeclareError::OtherOwner`]), a buffer or gradient
    /// named twice, a reuse before the first use, a use the weight's format or placement cannot serve, a gradient in
    /// an element type that gradients are not written in or, of a replicated weight, not in f32, a gradient of a
    /// frozen weight, rows of a dispatch without their counts, counts written again that a dispatch went by
    /// ([`DeclareError::Counts`]). The program is unchanged then.
    pub fn add(self) -> Result<CallId, DeclareError> {
        let Self { program, call, reuse_of_nothing } = self;
        check_name("call", &call.name)?;
        if program.call_names.contains(&call.name) {
            return Err(DeclareError::Duplicate { kind: "call", name: call.name });
        }
        if reuse_of_nothing {
            return Err(DeclareError::ReuseOfNothing { call: call.name });
        }
        let by = || format!("call `{}` of `{}`", call.name, program.name);
        for usage in &call.uses {
            let spec = program.model.weight_of(usage.weight, by)?;
            check_use(&call.name, usage, spec)?;
        }
        let mut seen = BTreeSet::new();
        for Gradient { weight, element } in &call.gradients {
            let spec = program.model.weight_of(*weight, by)?;
            check_gradient(&call.name, *element, spec)?;
            if !seen.insert(*weight) {
                return Err(DeclareError::RepeatedAccess {
                    call: call.name,
                    kind: "gradient",
                    name: spec.name.clone(),
                });
            }
        }
        let mut seen = BTreeSet::new();
        for access in &call.buffers {
            let spec = program.buffers.get(access.buffer.index()).ok_or_else(|| DeclareError::Unknown {
                kind: "buffer",
                name: access.buffer.to_string(),
                declared: names(program.buffers.iter().map(|spec| spec.name.as_str())),
            })?;
            if !access.buffer.is_named(&spec.name) {
                return Err(DeclareError::OtherOwner {
                    by: by(),
                    id: access.buffer.to_string(),
                    owner: "program",
                    named: spec.name.clone(),
                });
            }
            if !seen.insert(access.buffer) {
                let name = spec.name.clone();
                return Err(match call.collective {
                    Some(_) => DeclareError::CollectiveInPlace { call: call.name, buffer: name },
                    None => DeclareError::RepeatedAccess { call: call.name, kind: "buffer", name },
                });
            }
        }
        if let Some(collective) = &call.collective {
            check_collective(&call.name, collective, &program.buffers)?;
            check_counts(&call.name, collective, &program.calls, &program.buffers)?;
        }
        check_readers_of_rows(&call, &program.calls, &program.buffers)?;
        check_writers_of_counts(&call, &program.calls, &program.buffers)?;
        program.call_names.push(&call.name);
        program.calls.push(call);
        Ok(CallId::at(program.calls.len() - 1))
    }
}

/// After the checks of the accesses: both buffers exist.
fn check_collective(call: &str, collective: &Collective, buffers: &[BufferSpec]) -> Result<(), DeclareError> {
    let Collective { kind, from, to, .. } = *collective;
    let (from, to) = (&buffers[from.index()], &buffers[to.index()]);
    if from.element == to.element && kind.takes(from.element) {
        return Ok(());
    }
    Err(DeclareError::CollectiveElement {
        call: call.to_owned(),
        kind,
        from: from.name.clone(),
        from_type: from.element,
        to: to.name.clone(),
        to_type: to.element,
    })
}

fn check_gradient(call: &str, element: ElementType, spec: &WeightSpec) -> Result<(), DeclareError> {
    let (call, weight) = (call.to_owned(), spec.name.clone());
    if spec.frozen {
        return Err(DeclareError::FrozenGradient { call, weight });
    }
    match (element, spec.placement) {
        (ElementType::F32, _) | (ElementType::Bf16, Placement::Sharded) => Ok(()),
        (ElementType::Bf16, Placement::Replicated) => Err(DeclareError::ReplicatedGradient { call, weight }),
        (ElementType::U8 | ElementType::U32, _) => {
            Err(DeclareError::GradientElement { call, weight, element })
        }
    }
}

fn check_use(call: &str, usage: &Use, spec: &WeightSpec) -> Result<(), DeclareError> {
    match spec.placement {
        Placement::Replicated => {
            let what = match (usage.orientation, usage.form) {
                (Orientation::Rowwise, Form::Dense) => return Ok(()),
                (Orientation::Columnwise, _) => "a columnwise copy",
                (_, Form::Planes) => "quantized planes",
                (_, Form::DenseBf16) => "bfloat16 values",
            };
            Err(DeclareError::ReplicatedUse { call: call.to_owned(), weight: spec.name.clone(), what })
        }
        Placement::Sharded => {
            let stored = spec.format.stored_orientations().contains(&usage.orientation);
            if stored {
                return Ok(());
            }
            spec.format.derives_columnwise().map_err(|reason| DeclareError::Columnwise {
                call: call.to_owned(),
                weight: spec.name.clone(),
                reason,
            })
        }
    }
}
