//! The step program: compute calls in order, each naming what it consumes and produces.
//!
//! Law: the unit is the consumption event. A weight may be used by any number of calls (tied
//! weights, replayed layers, recompute); nothing links weights to each other. Calls run in the
//! order they were added. A program is checked when it is built and never again.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::weight::names;
use super::{Access, BufferAccess, BufferSpec, DeclareError, Lifetime, Model, Placement, Reuse, Role};
use crate::format::{ElementType, Orientation};
use crate::id::{BufferId, CallId, MicroBatchId, WeightId};

/// In what shape a call wants to read a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Form {
    /// The quantized planes themselves, padded as a GEMM wants them.
    Planes,
    /// Dequantized to f32: `[rows, cols]` rowwise, its transpose `[cols, rows]` columnwise.
    Dense,
    /// Dequantized to bfloat16, nearest even, laid out as [`Form::Dense`]: what a BF16 product reads where a device
    /// has no product of the format's own. A bf16 weight is read as it lies. Sharded weights only.
    DenseBf16,
}

impl Form {
    /// The element type of dense values; `None` for planes.
    #[must_use]
    pub const fn values(self) -> Option<ElementType> {
        match self {
            Self::Planes => None,
            Self::Dense => Some(ElementType::F32),
            Self::DenseBf16 => Some(ElementType::Bf16),
        }
    }
}

/// One consumption event of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Use {
    /// Which weight.
    pub weight: WeightId,
    /// Rowwise as stored, or columnwise as backward wants it.
    pub orientation: Orientation,
    /// Planes or dense.
    pub form: Form,
    /// Whether the planes are kept for it; as the weight says, else the configuration, when not set.
    pub reuse: Option<Reuse>,
}

/// Which part of the step a call belongs to. A declaration for people and for coming policies: no part
/// of planning, running or reporting reads it today.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Phase {
    /// Activations.
    Forward,
    /// Gradients.
    Backward,
}

/// In what numbers the matrix products of a call are computed: which of a device's speeds applies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Math {
    /// 32-bit floats.
    #[default]
    F32,
    /// bfloat16 operands, sums in f32.
    Bf16,
    /// 8-bit operands with scales.
    Fp8,
    /// 4-bit operands with scales.
    Fp4,
}

/// What a call costs; a hint, never a promise.
///
/// The simulator ([`crate::backend::sim`]) reads all of it, and nothing else does: no plan and no number
/// depends on it. There a call takes the longer of `flops` at the device's speed in `math` and `bytes` at
/// the speed of its memory. A call without a hint takes no time but its launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct CostHint {
    /// Floating-point operations on this rank; a multiplication and an addition are two.
    pub flops: u64,
    /// Bytes read from and written to device memory by this rank.
    pub bytes: u64,
    /// What the operations are computed in.
    pub math: Math,
}

/// One compute call of a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Call {
    /// Unique name within the program.
    pub name: String,
    /// The repetition this call belongs to; the first in a declaration.
    pub micro_batch: MicroBatchId,
    /// Forward or backward.
    pub phase: Phase,
    /// Weights read, in the order the call consumes them.
    pub uses: Vec<Use>,
    /// Weights whose full gradient `[rows, cols]` f32 the call overwrites; the scheduler reduces
    /// and accumulates every such contribution.
    pub grads: Vec<WeightId>,
    /// Buffers accessed.
    pub buffers: Vec<BufferAccess>,
    /// Cost of the call.
    pub cost: CostHint,
}

/// A checked step program over one model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepProgram {
    pub(super) micro_batches: u32,
    name: String,
    model: Model,
    buffers: Vec<BufferSpec>,
    calls: Vec<Call>,
    updates_weights: bool,
}

impl StepProgram {
    /// Starts the declaration of a program called `name` over the weights of `model`.
    #[must_use]
    pub fn builder(name: &str, model: &Model) -> ProgramBuilder {
        ProgramBuilder {
            micro_batches: 1,
            name: name.to_owned(),
            model: model.clone(),
            buffers: Vec::new(),
            calls: Vec::new(),
        }
    }

    /// The program's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The weights it runs over.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// All buffers, in the order of their ids.
    #[must_use]
    pub fn buffers(&self) -> &[BufferSpec] {
        &self.buffers
    }

    /// All calls as declared, in program order; a step repeats them ([`StepProgram::runs`]).
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Every call with its id.
    pub fn entries(&self) -> impl Iterator<Item = (CallId, &Call)> {
        self.calls.iter().enumerate().map(|(position, call)| (CallId::at(position), call))
    }

    /// Does a step of this program end in an optimizer step?
    #[must_use]
    pub fn updates_weights(&self) -> bool {
        self.updates_weights
    }

    /// The id of the buffer called `name`.
    ///
    /// # Errors
    /// [`DeclareError::Unknown`] lists the names that exist.
    pub fn buffer(&self, name: &str) -> Result<BufferId, DeclareError> {
        self.buffers.iter().position(|spec| spec.name == name).map(BufferId::at).ok_or_else(|| {
            DeclareError::Unknown {
                kind: "buffer",
                name: name.to_owned(),
                declared: names(self.buffers.iter().map(|spec| spec.name.as_str())),
            }
        })
    }

    /// The id of the call called `name`.
    ///
    /// # Errors
    /// [`DeclareError::Unknown`] lists the names that exist.
    pub fn call(&self, name: &str) -> Result<CallId, DeclareError> {
        self.calls.iter().position(|call| call.name == name).map(CallId::at).ok_or_else(|| {
            DeclareError::Unknown {
                kind: "call",
                name: name.to_owned(),
                declared: names(self.calls.iter().map(|call| call.name.as_str())),
            }
        })
    }
}

/// Collects buffers and calls.
#[derive(Clone, Debug)]
pub struct ProgramBuilder {
    pub(super) micro_batches: u32,
    name: String,
    model: Model,
    buffers: Vec<BufferSpec>,
    calls: Vec<Call>,
}

impl ProgramBuilder {
    /// The model the program runs over.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Declares a buffer.
    ///
    /// # Errors
    /// A repeated name, zero elements, or more bytes than can be addressed.
    pub fn buffer(&mut self, spec: BufferSpec) -> Result<BufferId, DeclareError> {
        if self.buffers.iter().any(|other| other.name == spec.name) {
            return Err(DeclareError::Duplicate { kind: "buffer", name: spec.name });
        }
        if spec.elements == 0 {
            return Err(DeclareError::Empty { kind: "buffer", name: spec.name });
        }
        if spec.bytes() > isize::MAX as usize {
            return Err(DeclareError::TooLarge { buffer: spec.name, elements: spec.elements });
        }
        self.buffers.push(spec);
        Ok(BufferId::at(self.buffers.len() - 1))
    }

    /// Declares an input of `elements` elements, filled by the trainer before each step.
    ///
    /// # Errors
    /// As [`ProgramBuilder::buffer`].
    pub fn input(
        &mut self,
        name: &str,
        elements: usize,
        element: ElementType,
    ) -> Result<BufferId, DeclareError> {
        self.buffer(BufferSpec {
            name: name.to_owned(),
            elements,
            element,
            role: Role::Input,
            lifetime: Lifetime::Step,
        })
    }

    /// Declares an output of `elements` elements, readable from the step's report.
    ///
    /// # Errors
    /// As [`ProgramBuilder::buffer`].
    pub fn output(
        &mut self,
        name: &str,
        elements: usize,
        element: ElementType,
    ) -> Result<BufferId, DeclareError> {
        self.buffer(BufferSpec {
            name: name.to_owned(),
            elements,
            element,
            role: Role::Output,
            lifetime: Lifetime::Step,
        })
    }

    /// Declares an f32 buffer that passes activations or their gradients between calls.
    ///
    /// # Errors
    /// As [`ProgramBuilder::buffer`].
    pub fn activation(&mut self, name: &str, elements: usize) -> Result<BufferId, DeclareError> {
        self.buffer(BufferSpec {
            name: name.to_owned(),
            elements,
            element: ElementType::F32,
            role: Role::Internal,
            lifetime: Lifetime::Step,
        })
    }

    /// Starts the declaration of a call; nothing is added until [`CallBuilder::add`].
    pub fn call(&mut self, name: &str, phase: Phase) -> CallBuilder<'_> {
        CallBuilder {
            program: self,
            call: Call {
                name: name.to_owned(),
                micro_batch: MicroBatchId::default(),
                phase,
                uses: Vec::new(),
                grads: Vec::new(),
                buffers: Vec::new(),
                cost: CostHint::default(),
            },
        }
    }

    /// A program whose steps train: gradients are reduced and the optimizer rewrites the weights.
    ///
    /// # Errors
    /// [`DeclareError::NoGradient`] when some weight gets no gradient, and every error of
    /// [`ProgramBuilder::build_evaluation`].
    pub fn build_training(self) -> Result<StepProgram, DeclareError> {
        self.check_gradients()?;
        self.build(true)
    }

    /// A program whose steps reduce gradients into the main grads and leave the weights alone: what a step costs without
    /// its optimizer. The next step that sums gradients begins the main grads anew.
    ///
    /// # Errors
    /// As [`ProgramBuilder::build_training`].
    pub fn build_gradients(self) -> Result<StepProgram, DeclareError> {
        self.check_gradients()?;
        self.build(false)
    }

    /// A program whose steps compute no gradients and leave the weights alone.
    ///
    /// # Errors
    /// A program without calls, a buffer read before it is written, an output nobody writes, a
    /// call-lifetime buffer of two calls, a gradient nobody would consume.
    pub fn build_evaluation(self) -> Result<StepProgram, DeclareError> {
        if let Some(call) = self.calls.iter().find(|call| !call.grads.is_empty()) {
            return Err(DeclareError::LostGradient { program: self.name, call: call.name.clone() });
        }
        self.build(false)
    }

    fn check_gradients(&self) -> Result<(), DeclareError> {
        let lacks = |weight| !self.calls.iter().any(|call| call.grads.contains(&weight));
        match self.model.entries().find(|(weight, _)| lacks(*weight)) {
            None => Ok(()),
            Some((_, spec)) => {
                Err(DeclareError::NoGradient { program: self.name.clone(), weight: spec.name.clone() })
            }
        }
    }

    fn build(self, updates_weights: bool) -> Result<StepProgram, DeclareError> {
        if self.calls.is_empty() {
            return Err(DeclareError::NoCalls { program: self.name });
        }
        self.check_buffers()?;
        Ok(StepProgram {
            micro_batches: self.micro_batches,
            name: self.name,
            model: self.model,
            buffers: self.buffers,
            calls: self.calls,
            updates_weights,
        })
    }

    fn check_buffers(&self) -> Result<(), DeclareError> {
        let mut first_access: Vec<Option<&str>> = vec![None; self.buffers.len()];
        let mut filled: Vec<bool> = self
            .buffers
            .iter()
            .map(|spec| spec.role == Role::Input || spec.lifetime == Lifetime::Carried)
            .collect();
        for call in &self.calls {
            for BufferAccess { buffer, access } in &call.buffers {
                let spec = &self.buffers[buffer.index()];
                if access.reads() && !filled[buffer.index()] {
                    return Err(DeclareError::ReadBeforeWrite {
                        call: call.name.clone(),
                        buffer: spec.name.clone(),
                    });
                }
                if access.writes() && spec.role == Role::Input {
                    return Err(DeclareError::WritesInput {
                        call: call.name.clone(),
                        buffer: spec.name.clone(),
                    });
                }
                match first_access[buffer.index()] {
                    Some(first) if spec.lifetime == Lifetime::Call => {
                        return Err(DeclareError::CallLifetime {
                            buffer: spec.name.clone(),
                            first: first.to_owned(),
                            second: call.name.clone(),
                        });
                    }
                    Some(_) => {}
                    None => first_access[buffer.index()] = Some(&call.name),
                }
            }
            for BufferAccess { buffer, access } in &call.buffers {
                filled[buffer.index()] |= access.writes();
            }
        }
        let is_written = |number: usize| {
            let writes = |access: &BufferAccess| access.buffer.index() == number && access.access.writes();
            self.calls.iter().any(|call| call.buffers.iter().any(writes))
        };
        let unwritten =
            |(number, spec): &(usize, &BufferSpec)| spec.role == Role::Output && !is_written(*number);
        match self.buffers.iter().enumerate().find(unwritten) {
            Some((_, spec)) => Err(DeclareError::OutputNeverWritten { buffer: spec.name.clone() }),
            None => Ok(()),
        }
    }
}

/// One call under declaration. Ids come from the builder and model the call is added to.
#[derive(Debug)]
pub struct CallBuilder<'program> {
    program: &'program mut ProgramBuilder,
    call: Call,
}

impl CallBuilder<'_> {
    /// The call reads `weight`. Repeat it for every use, in the order of consumption.
    #[must_use]
    pub fn uses(mut self, weight: WeightId, orientation: Orientation, form: Form) -> Self {
        self.call.uses.push(Use { weight, orientation, form, reuse: None });
        self
    }

    /// Decides for the use named last whether its planes are kept from the use before, whatever weight and
    /// configuration say. Without a use it decides nothing.
    #[must_use]
    pub fn reuse(mut self, reuse: Reuse) -> Self {
        if let Some(usage) = self.call.uses.last_mut() {
            usage.reuse = Some(reuse);
        }
        self
    }

    /// The call overwrites the full gradient of `weight`.
    #[must_use]
    pub fn gradient(mut self, weight: WeightId) -> Self {
        self.call.grads.push(weight);
        self
    }

    /// The call reads `buffer`.
    #[must_use]
    pub fn reads(self, buffer: BufferId) -> Self {
        self.accesses(buffer, Access::Read)
    }

    /// The call overwrites `buffer`.
    #[must_use]
    pub fn writes(self, buffer: BufferId) -> Self {
        self.accesses(buffer, Access::Write)
    }

    /// The call reads and changes `buffer`.
    #[must_use]
    pub fn updates(self, buffer: BufferId) -> Self {
        self.accesses(buffer, Access::Update)
    }

    /// The call accesses `buffer` in the given way.
    #[must_use]
    pub fn accesses(mut self, buffer: BufferId, access: Access) -> Self {
        self.call.buffers.push(BufferAccess { buffer, access });
        self
    }

    /// What the call costs.
    #[must_use]
    pub fn cost(mut self, cost: CostHint) -> Self {
        self.call.cost = cost;
        self
    }

    /// Adds the call behind those added before.
    ///
    /// # Errors
    /// A repeated name, an id of another model or program, a buffer or gradient named twice, a
    /// use the weight's format or placement cannot serve. The program is unchanged then.
    pub fn add(self) -> Result<CallId, DeclareError> {
        let Self { program, call } = self;
        if program.calls.iter().any(|other| other.name == call.name) {
            return Err(DeclareError::Duplicate { kind: "call", name: call.name });
        }
        let model = &program.model;
        let unknown_weight = |weight: &WeightId| DeclareError::Unknown {
            kind: "weight",
            name: weight.to_string(),
            declared: names(model.weights().iter().map(|spec| spec.name.as_str())),
        };
        for usage in &call.uses {
            let spec =
                model.weights().get(usage.weight.index()).ok_or_else(|| unknown_weight(&usage.weight))?;
            check_use(&call.name, usage, spec)?;
        }
        let mut seen = BTreeSet::new();
        for weight in &call.grads {
            let spec = model.weights().get(weight.index()).ok_or_else(|| unknown_weight(weight))?;
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
            if !seen.insert(access.buffer) {
                return Err(DeclareError::RepeatedAccess {
                    call: call.name,
                    kind: "buffer",
                    name: spec.name.clone(),
                });
            }
        }
        program.calls.push(call);
        Ok(CallId::at(program.calls.len() - 1))
    }
}

fn check_use(call: &str, usage: &Use, spec: &super::WeightSpec) -> Result<(), DeclareError> {
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
            spec.format.derives_columnwise().map_err(|source| DeclareError::Columnwise {
                call: call.to_owned(),
                weight: spec.name.clone(),
                source,
            })
        }
    }
}
