//! The declaration of blocks: their inputs and outputs, and the programs that follow.
//!
//! Law: buffers are `input`, `targets`, `<block>.output` and `<block>.output_gradient`, calls `<block>.forward` and
//! `<block>.backward`. The last block is one call, `<block>.loss`, or where nothing is trained or measured
//! `<block>.forward` like the others.

use std::sync::Arc;

use warpweft::format::{ElementType, Orientation};
use warpweft::id::{BufferId, WeightId};
use warpweft::model::{
    CallBuilder, DeclareError, Form, Model, Phase, Placement, ProgramBuilder, StepProgram,
};

use crate::passes::{Backward, Job, Jobs, Loss, Pass};

/// The size and element type of a block's input or output, of one rank and micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// How many elements.
    pub elements: usize,
    /// Their type. What goes between two blocks has a gradient of the same type.
    pub element: ElementType,
}

impl Flow {
    /// `elements` numbers in f32.
    #[must_use]
    pub const fn f32(elements: usize) -> Self {
        Self { elements, element: ElementType::F32 }
    }
}

/// One block of a model.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Block {
    /// Its name, by which buffers and calls are named.
    pub name: String,
    /// Its weights. Two blocks that name the same are tied: their gradients are added.
    pub weights: Vec<WeightId>,
    /// What comes out of it.
    pub output: Flow,
    /// Does its forward keep what backward needs, but for the weights? Then backward does not read the input again.
    pub keeps: bool,
    /// In which form its sharded weights are lent.
    pub form: Form,
    /// How backward is lent its sharded weights; forward is lent them rowwise.
    pub backward: Orientation,
}

impl Block {
    /// A block whose backward reads its input again and multiplies by dense transposed weights.
    #[must_use]
    pub fn new(name: &str, weights: Vec<WeightId>, output: Flow) -> Self {
        let (form, backward) = (Form::Dense, Orientation::Columnwise);
        Self { name: name.to_owned(), weights, output, keeps: false, form, backward }
    }
}

/// A step program of blocks, with the job of each of its calls.
#[derive(Clone, Debug)]
pub struct Declared {
    /// For `SessionBuilder::program`.
    pub program: StepProgram,
    /// For [`compute`](crate::compute).
    pub jobs: Jobs,
}

/// A model as its blocks, first to last.
#[derive(Clone, Debug)]
pub struct Blocks {
    input: Flow,
    targets: Flow,
    every: Vec<(String, Flow)>,
    outputs: Vec<(String, Flow)>,
    blocks: Vec<Block>,
}

/// The purpose of a program of blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Training,
    Evaluation,
    Prediction,
}

impl Blocks {
    /// A model without blocks yet: the first one reads `input`, and the loss compares with `targets`.
    #[must_use]
    pub fn new(input: Flow, targets: Flow) -> Self {
        let outputs = vec![("loss".to_owned(), Flow::f32(1))];
        Self { input, targets, every: Vec::new(), outputs, blocks: Vec::new() }
    }

    /// Adds a block after the others.
    pub fn block(&mut self, block: Block) -> &mut Self {
        self.blocks.push(block);
        self
    }

    /// Adds an input that every call reads, such as a mask.
    pub fn every(&mut self, name: &str, flow: Flow) -> &mut Self {
        self.every.push((name.to_owned(), flow));
        self
    }

    /// Sets the outputs of the last block's call, in place of one f32 called `loss`.
    pub fn outputs(&mut self, outputs: Vec<(String, Flow)>) -> &mut Self {
        self.outputs = outputs;
        self
    }

    /// The program that trains, in `micro_batches` of each rank.
    ///
    /// # Errors
    /// What [`ProgramBuilder`] refuses, such as two blocks of one name, and a list without blocks.
    pub fn training(&self, name: &str, model: &Model, micro_batches: u32) -> Result<Declared, DeclareError> {
        self.declare(name, model, Purpose::Training, micro_batches)
    }

    /// The program that computes the loss alone.
    ///
    /// # Errors
    /// As [`Blocks::training`].
    pub fn evaluation(&self, name: &str, model: &Model) -> Result<Declared, DeclareError> {
        self.declare(name, model, Purpose::Evaluation, 1)
    }

    /// The program whose output is that of the last block, called `<block>.output`.
    ///
    /// # Errors
    /// As [`Blocks::training`].
    pub fn prediction(&self, name: &str, model: &Model) -> Result<Declared, DeclareError> {
        self.declare(name, model, Purpose::Prediction, 1)
    }

    fn declare(
        &self,
        name: &str,
        model: &Model,
        purpose: Purpose,
        micro_batches: u32,
    ) -> Result<Declared, DeclareError> {
        let mut program = StepProgram::builder(name, model);
        program.micro_batches(micro_batches)?;
        let input = program.input("input", self.input.elements, self.input.element)?;
        let every: Vec<BufferId> =
            declared(&self.every, |name, Flow { elements, element }| program.input(name, elements, element))?;
        let trains = self.trains(model, purpose)?;
        let between = self.between(&mut program, input, (purpose, &trains))?;
        let mut jobs = Vec::new();
        for (number, pass) in self.passes(&mut program, &between, (purpose, &trains))? {
            let (block, trains) = (&self.blocks[number], trains[number]);
            let job =
                Job { block: number, weights: block.weights.clone(), every: every.clone(), trains, pass };
            call(&mut program, block, &job)?;
            jobs.push(job);
        }
        let program = match purpose {
            Purpose::Training => program.build_training()?,
            Purpose::Evaluation | Purpose::Prediction => program.build_evaluation()?,
        };
        Ok(Declared { jobs: Jobs { program: name.to_owned(), jobs: Arc::from(jobs) }, program })
    }

    /// Of every block, whether it or one before it has a weight that trains.
    fn trains(&self, model: &Model, purpose: Purpose) -> Result<Vec<bool>, DeclareError> {
        let (mut all, mut trains) = (Vec::new(), false);
        for weights in self.blocks.iter().map(|block| &block.weights) {
            for weight in weights {
                trains |= purpose == Purpose::Training && !model.weight(*weight)?.frozen;
            }
            all.push(trains);
        }
        Ok(all)
    }

    /// The inputs of all blocks, and the output of the last where it is predicted.
    fn between(
        &self,
        program: &mut ProgramBuilder,
        input: BufferId,
        (purpose, trains): (Purpose, &[bool]),
    ) -> Result<Between, DeclareError> {
        let mut between = Between { values: vec![input], gradients: Vec::new() };
        let last = self.blocks.len().saturating_sub(1);
        for (number, Block { name, output: Flow { elements, element }, .. }) in self.blocks.iter().enumerate()
        {
            let name = format!("{name}.output");
            if number < last {
                between.values.push(program.activation_in(&name, *elements, *element)?);
            } else if purpose == Purpose::Prediction {
                between.values.push(program.output(&name, *elements, *element)?);
            }
            if number < last {
                let gradient = trains[number]
                    .then(|| program.activation_in(&format!("{name}_gradient"), *elements, *element));
                between.gradients.push(gradient.transpose()?);
            }
        }
        Ok(between)
    }

    /// All calls, in their order, with the number of their block.
    fn passes(
        &self,
        program: &mut ProgramBuilder,
        Between { values, gradients }: &Between,
        (purpose, trains): (Purpose, &[bool]),
    ) -> Result<Vec<(usize, Pass)>, DeclareError> {
        let forward = |(number, pair): (usize, &[BufferId])| {
            (number, Pass::Forward { input: pair[0], output: pair[1] })
        };
        let mut passes: Vec<(usize, Pass)> = values.windows(2).enumerate().map(forward).collect();
        let Some(last) = self.blocks.len().checked_sub(1).filter(|_| purpose != Purpose::Prediction) else {
            return Ok(passes);
        };
        let targets = program.input("targets", self.targets.elements, self.targets.element)?;
        let outputs = declared(&self.outputs, |name, Flow { elements, element }| {
            program.output(name, elements, element)
        })?;
        let before = |number: usize| number.checked_sub(1).and_then(|before| gradients[before]);
        let (input, input_gradient) = (values[last], before(last));
        passes.push((last, Pass::Loss(Loss { input, targets, outputs, input_gradient })));
        for number in (0..last).rev().filter(|number| trains[*number]) {
            let Some(output_gradient) = gradients[number] else { continue };
            let input = (!self.blocks[number].keeps).then_some(values[number]);
            let input_gradient = before(number);
            passes.push((number, Pass::Backward(Backward { input, output_gradient, input_gradient })));
        }
        Ok(passes)
    }
}

/// Declares one call.
fn call(program: &mut ProgramBuilder, block: &Block, job: &Job) -> Result<(), DeclareError> {
    let rowwise = Orientation::Rowwise;
    let (suffix, orientations) = match &job.pass {
        Pass::Forward { .. } => ("forward", vec![rowwise]),
        Pass::Loss(Loss { input_gradient: None, .. }) => ("loss", vec![rowwise]),
        Pass::Loss(_) => ("loss", vec![rowwise, block.backward]),
        Pass::Backward(_) => ("backward", vec![block.backward]),
    };
    let is_backward = job.trains && !matches!(job.pass, Pass::Forward { .. });
    let is_replicated =
        |weight: &WeightId| Ok(program.model().weight(*weight)?.placement == Placement::Replicated);
    let replicated: Vec<bool> =
        block.weights.iter().map(is_replicated).collect::<Result<_, DeclareError>>()?;
    let phase = if is_backward { Phase::Backward } else { Phase::Forward };
    let mut call = program.call(&format!("{}.{suffix}", block.name), phase);
    for (weight, replicated) in block.weights.iter().zip(replicated) {
        call = uses(call, *weight, (replicated, block.form), &orientations);
        if is_backward {
            call = call.gradient_if_trained(*weight, ElementType::F32);
        }
    }
    call = job.every.iter().fold(call, |call, buffer| call.reads(*buffer));
    call = match &job.pass {
        Pass::Forward { input, output } => call.reads(*input).writes(*output),
        Pass::Loss(Loss { input, targets, outputs, input_gradient }) => {
            let call = call.reads(*input).reads(*targets);
            outputs.iter().chain(input_gradient).fold(call, |call, buffer| call.writes(*buffer))
        }
        Pass::Backward(Backward { input, output_gradient, input_gradient }) => {
            let call = input.iter().chain([output_gradient]).fold(call, |call, buffer| call.reads(*buffer));
            input_gradient.iter().fold(call, |call, buffer| call.writes(*buffer))
        }
    };
    call.add().map(|_| ())
}

/// A weight in each of the orientations, once; a replicated one is f32, as it is.
fn uses<'p>(
    call: CallBuilder<'p>,
    weight: WeightId,
    (replicated, form): (bool, Form),
    orientations: &[Orientation],
) -> CallBuilder<'p> {
    if replicated {
        return call.uses(weight, Orientation::Rowwise, Form::Dense);
    }
    let mut orientations = orientations.to_vec();
    orientations.dedup();
    orientations.into_iter().fold(call, |call, orientation| call.uses(weight, orientation, form))
}

/// The buffers between blocks, and those of their gradients.
struct Between {
    values: Vec<BufferId>,
    gradients: Vec<Option<BufferId>>,
}

fn declared(
    flows: &[(String, Flow)],
    mut declare: impl FnMut(&str, Flow) -> Result<BufferId, DeclareError>,
) -> Result<Vec<BufferId>, DeclareError> {
    flows.iter().map(|(name, flow)| declare(name, *flow)).collect()
}
