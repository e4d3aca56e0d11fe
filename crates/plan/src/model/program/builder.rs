//! The declaration of a program: its buffers, and the checks that end it.
//!
//! Law: a refused buffer leaves the builder as it was. Buffers are checked as the calls run in program order: nothing
//! is read before it is filled, no input is written and every one is read, every output is written. A gradient has a
//! consumer, and a program that reduces gradients has one for every weight that trains, of which there is one at
//! least, and reads every activation. An evaluation need not: its forward calls may be those of training, which keep
//! activations for backward calls.

use std::collections::BTreeSet;

use super::accumulation::Accumulation;
use super::call::{Call, Gradient, Phase};
use super::step::StepProgram;
use crate::model::names::{NameIndex, check_name};
use crate::model::{BufferAccess, BufferSpec, DeclareError, Lifetime, Model, Role};
use warpweft_base::id::{BufferId, WeightId};
use warpweft_format::ElementType;

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
            buffer_names: NameIndex::default(),
            call_names: NameIndex::default(),
        }
    }
}

/// Collects buffers and calls.
///
/// ```
/// use warpweft::prelude::*;
///
/// let mut model = Model::builder();
/// let w = model.sharded("w", 64, 64, Format::Bf16)?;
/// let mut program = StepProgram::builder("train", &model.build());
/// let x = program.input("x", 64, ElementType::F32)?;
/// let y = program.activation("y", 64)?; // passes from call to call
/// let loss = program.output("loss", 1, ElementType::F32)?;
/// program.call("map", Phase::Forward).uses_dense(w).reads(x).writes(y).add()?;
/// program.call("fit", Phase::Backward).reads(x).reads(y).gradient(w).writes(loss).add()?;
/// let program = program.build_training()?; // what is missing or read too early is refused here
/// assert_eq!(program.calls().len(), 2);
/// # Ok::<(), DeclareError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ProgramBuilder {
    pub(in crate::model) micro_batches: u32,
    pub(super) name: String,
    pub(super) model: Model,
    pub(super) buffers: Vec<BufferSpec>,
    pub(super) calls: Vec<Call>,
    pub(super) buffer_names: NameIndex,
    pub(super) call_names: NameIndex,
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
    /// A repeated, empty or unprintable name, zero elements, or more bytes than can be addressed.
    pub fn buffer(&mut self, spec: BufferSpec) -> Result<BufferId, DeclareError> {
        check_name("buffer", &spec.name)?;
        if self.buffer_names.contains(&spec.name) {
            return Err(DeclareError::Duplicate { kind: "buffer", name: spec.name });
        }
        if spec.elements == 0 {
            return Err(DeclareError::Empty { kind: "buffer", name: spec.name });
        }
        if spec.bytes() > isize::MAX as usize {
            return Err(DeclareError::TooLarge { buffer: spec.name, elements: spec.elements });
        }
        let buffer = BufferId::named(&spec.name, self.buffers.len());
        self.buffer_names.push(&spec.name);
        self.buffers.push(spec);
        Ok(buffer)
    }

    fn named(
        &mut self,
        name: &str,
        (elements, element): (usize, ElementType),
        role: Role,
        lifetime: Lifetime,
    ) -> Result<BufferId, DeclareError> {
        self.buffer(BufferSpec { name: name.to_owned(), elements, element, role, lifetime })
    }

    /// Declares an input of `elements` elements, filled by the user before each step.
    ///
    /// # Errors
    /// As [`ProgramBuilder::buffer`].
    pub fn input(
        &mut self,
        name: &str,
        elements: usize,
        element: ElementType,
    ) -> Result<BufferId, DeclareError> {
        self.named(name, (elements, element), Role::Input, Lifetime::Step)
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
        self.named(name, (elements, element), Role::Output, Lifetime::Step)
    }

    /// Declares an f32 buffer that passes activations or their gradients between calls.
    ///
    /// # Errors
    /// As [`ProgramBuilder::buffer`].
    pub fn activation(&mut self, name: &str, elements: usize) -> Result<BufferId, DeclareError> {
        self.activation_in(name, elements, ElementType::F32)
    }

    /// As [`ProgramBuilder::activation`], of another element type, such as bf16 for matrix products on GPUs or
    /// bytes for what a layer keeps of its input.
    ///
    /// # Errors
    /// As [`ProgramBuilder::buffer`].
    pub fn activation_in(
        &mut self,
        name: &str,
        elements: usize,
        element: ElementType,
    ) -> Result<BufferId, DeclareError> {
        self.named(name, (elements, element), Role::Internal, Lifetime::Step)
    }

    /// Declares a buffer whose values stay from step to step ([`Lifetime::Carried`]), zeros at first.
    ///
    /// # Errors
    /// As [`ProgramBuilder::buffer`].
    pub fn carried(
        &mut self,
        name: &str,
        elements: usize,
        element: ElementType,
    ) -> Result<BufferId, DeclareError> {
        self.named(name, (elements, element), Role::Internal, Lifetime::Carried)
    }

    /// A program whose steps train: gradients are reduced and the optimizer rewrites the weights.
    ///
    /// # Errors
    /// [`DeclareError::NoGradient`] when some weight gets no gradient and is not frozen,
    /// [`DeclareError::NothingTrains`] when all are or there is none, [`DeclareError::NeverRead`] for an
    /// activation that no call reads, and every error of [`ProgramBuilder::build_evaluation`].
    pub fn build_training(self) -> Result<StepProgram, DeclareError> {
        self.check_gradients()?;
        self.build(true)
    }

    /// A program whose steps reduce gradients into the main grads and leave the weights alone: what a step
    /// costs without its optimizer. The next step that sums gradients begins the main grads anew.
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
    /// A program without name or calls, a buffer read before it is written, an input nobody reads, an output
    /// nobody writes, a call-lifetime buffer of two calls, a gradient nobody would consume.
    pub fn build_evaluation(self) -> Result<StepProgram, DeclareError> {
        if let Some(call) = self.calls.iter().find(|call| !call.gradients.is_empty()) {
            return Err(DeclareError::LostGradient { program: self.name, call: call.name.clone() });
        }
        self.build(false)
    }

    fn check_gradients(&self) -> Result<(), DeclareError> {
        let weights = self.model.weights();
        if weights.iter().all(|spec| spec.frozen) {
            return Err(DeclareError::NothingTrains { program: self.name.clone() });
        }
        let gradients = self.calls.iter().flat_map(|call| &call.gradients);
        let written: BTreeSet<WeightId> = gradients.map(|Gradient { weight, .. }| *weight).collect();
        match self.model.entries().find(|(weight, spec)| !spec.frozen && !written.contains(weight)) {
            None => self.check_activations(),
            Some((_, spec)) => {
                Err(DeclareError::NoGradient { program: self.name.clone(), weight: spec.name.clone() })
            }
        }
    }

    /// Every activation is read. The gradient of an activation need not be: what a backward call says of its input is
    /// for a call before it, and the first has none.
    fn check_activations(&self) -> Result<(), DeclareError> {
        let mut is_due: Vec<bool> = self
            .buffers
            .iter()
            .map(|spec| (spec.role, spec.lifetime) == (Role::Internal, Lifetime::Step))
            .collect();
        for call in &self.calls {
            for BufferAccess { buffer, access } in &call.buffers {
                is_due[buffer.index()] &= !access.reads() && call.phase == Phase::Forward;
            }
        }
        match self.buffers.iter().zip(is_due).find(|(_, is_due)| *is_due) {
            None => Ok(()),
            Some((spec, _)) => {
                Err(DeclareError::NeverRead { program: self.name.clone(), buffer: spec.name.clone() })
            }
        }
    }

    fn build(self, updates_weights: bool) -> Result<StepProgram, DeclareError> {
        check_name("program", &self.name)?;
        if self.calls.is_empty() {
            return Err(DeclareError::NoCalls { program: self.name });
        }
        self.check_buffers()?;
        let program = StepProgram {
            micro_batches: self.micro_batches,
            name: self.name,
            model: self.model,
            buffers: self.buffers,
            calls: self.calls,
            buffer_names: self.buffer_names,
            call_names: self.call_names,
            updates_weights,
            accumulates: false,
            accumulation: Accumulation::Whole,
        };
        if program.run_count() > StepProgram::MAX_RUNS {
            return Err(DeclareError::TooManyRuns {
                calls: program.calls.len(),
                program: program.name,
                micro_batches: program.micro_batches,
                most: StepProgram::MAX_RUNS,
            });
        }
        Ok(program)
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
        // Whoever accesses an input reads it: writing was refused above.
        let left_out = |(number, spec): &(usize, &BufferSpec)| match spec.role {
            Role::Input => first_access[*number].is_none(),
            Role::Output => !self.writes(*number),
            Role::Internal => false,
        };
        match self.buffers.iter().enumerate().find(left_out) {
            None => Ok(()),
            Some((_, spec)) if spec.role == Role::Input => {
                Err(DeclareError::InputNeverRead { program: self.name.clone(), buffer: spec.name.clone() })
            }
            Some((_, spec)) => Err(DeclareError::OutputNeverWritten { buffer: spec.name.clone() }),
        }
    }

    /// Does a call write buffer number `number`?
    fn writes(&self, number: usize) -> bool {
        let writes = |access: &BufferAccess| access.buffer.index() == number && access.access.writes();
        self.calls.iter().any(|call| call.buffers.iter().any(writes))
    }
}
