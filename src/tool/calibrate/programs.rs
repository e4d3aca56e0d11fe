//! The step programs that are measured, and the one that is held out.
//!
//! Law: a program is the same on every device; what differs is how a product multiplies ([`Arithmetic`]). Every program has one shape of
//! weights, so that a task of one kind takes one time, and what it takes by itself can be read from the *chain* and the products of the same
//! shape: one weight, gathered on demand, in whose step nothing runs beside anything else.

use std::sync::Arc;

use crate::format::{Format, Orientation, Shape};
use crate::id::WeightId;
use crate::model::{CostHint, DeclareError, Form, Math, Model, Phase, ProgramBuilder, Reuse, StepProgram};

/// How products of weights in one format multiply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Arithmetic {
    /// Format of the weight.
    pub(super) format: Format,
    /// What is multiplied.
    pub(super) math: Math,
    /// How a call declares the weight.
    pub(super) form: Form,
    /// In which orientation backward declares it.
    pub(super) backward: Orientation,
}

/// What a call does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Nothing.
    Nothing,
    /// `[tokens, cols]` by the weight's transpose.
    Product(usize),
    /// The weight's gradient, a product over so many tokens.
    Gradient(usize),
}

/// One call, for whoever carries it out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) work: Work,
    pub(super) weight: WeightId,
    pub(super) shape: Shape,
    pub(super) arithmetic: Arithmetic,
}

impl Part {
    /// Tokens of its product.
    pub(super) const fn tokens(&self) -> usize {
        match self.work {
            Work::Nothing => 0,
            Work::Product(tokens) | Work::Gradient(tokens) => tokens,
        }
    }
}

/// A program, what its calls do, and how it is run.
#[derive(Clone, Debug)]
pub(super) struct Experiment {
    pub(super) program: StepProgram,
    /// Of every call, in program order.
    pub(super) parts: Arc<[Part]>,
    /// How many uses ahead gathers start.
    pub(super) depth: u32,
    /// 1 or 2.
    pub(super) communicators: u32,
    /// Recorded once and replayed, or issued task by task.
    pub(super) recorded: bool,
    /// On one rank alone, whose collectives take no time.
    pub(super) alone: bool,
}

/// A program in the making.
struct Draft {
    program: ProgramBuilder,
    parts: Vec<Part>,
    weights: Vec<WeightId>,
    shape: Shape,
    arithmetic: Arithmetic,
}

impl Draft {
    fn new(name: &str, weights: usize, shape: Shape, arithmetic: Arithmetic) -> Result<Self, DeclareError> {
        let mut model = Model::builder();
        let weight =
            |number| model.sharded(&format!("weight{number}"), shape.rows, shape.cols, arithmetic.format);
        let weights = (0..weights).map(weight).collect::<Result<_, _>>()?;
        let program = StepProgram::builder(name, &model.build());
        Ok(Self { program, parts: Vec::new(), weights, shape, arithmetic })
    }

    /// Adds a call that uses weight `number`.
    fn call(&mut self, name: &str, number: usize, work: Work, keep: bool) -> Result<(), DeclareError> {
        let Self { shape, arithmetic, .. } = *self;
        let Arithmetic { math, form, backward, .. } = arithmetic;
        let weight = self.weights[number];
        let (phase, orientation) = match work {
            Work::Gradient(_) => (Phase::Backward, backward),
            Work::Nothing | Work::Product(_) => (Phase::Forward, Orientation::Rowwise),
        };
        let tokens = match work {
            Work::Nothing => 0,
            Work::Product(tokens) | Work::Gradient(tokens) => tokens as u64,
        };
        let flops = 2 * tokens * (shape.rows * shape.cols) as u64;
        let mut call = self.program.call(name, phase).uses(weight, orientation, form).cost(CostHint {
            flops,
            bytes: 0,
            math,
        });
        if keep {
            call = call.reuse(Reuse::Keep);
        }
        if matches!(work, Work::Gradient(_)) {
            call = call.gradient(weight);
        }
        call.add()?;
        self.parts.push(Part { work, weight, shape, arithmetic });
        Ok(())
    }

    /// Forward through all weights.
    fn there(&mut self, tokens: usize) -> Result<(), DeclareError> {
        let mut weights = 0..self.weights.len();
        weights.try_for_each(|number| {
            self.call(&format!("forward{number}"), number, Work::Product(tokens), false)
        })
    }

    /// And back.
    fn back(&mut self, tokens: usize) -> Result<(), DeclareError> {
        let mut weights = (0..self.weights.len()).rev();
        weights.try_for_each(|number| {
            self.call(&format!("backward{number}"), number, Work::Gradient(tokens), false)
        })
    }

    fn experiment(self, ending: Ending) -> Result<Experiment, DeclareError> {
        let program = match ending {
            Ending::Forward => self.program.build_evaluation()?,
            Ending::Gradients => self.program.build_gradients()?,
            Ending::Training => self.program.build_training()?,
        };
        let parts = self.parts.into();
        Ok(Experiment { program, parts, depth: 0, communicators: 1, recorded: false, alone: false })
    }
}

enum Ending {
    Forward,
    Gradients,
    Training,
}

/// The backward of one weight: gather, transposition, call, reduction and accumulation, one behind the other.
pub(super) fn chain(shape: Shape, arithmetic: Arithmetic, tokens: usize) -> Result<Experiment, DeclareError> {
    let mut draft = Draft::new("chain", 1, shape, arithmetic)?;
    draft.back(tokens)?;
    draft.experiment(Ending::Gradients)
}

/// A chain that trains, with a gradient of one token and f32 values, columnwise where the format derives them: every op once.
pub(super) fn ladder(shape: Shape, format: Format) -> Result<Experiment, DeclareError> {
    let backward = match format {
        Format::F32 | Format::Bf16 => Orientation::Rowwise,
        _ => Orientation::Columnwise,
    };
    let arithmetic = Arithmetic { format, math: Math::F32, form: Form::Dense, backward };
    let mut draft = Draft::new("ladder", 1, shape, arithmetic)?;
    draft.back(1)?;
    draft.experiment(Ending::Training)
}

/// Products of one weight, over so many tokens each.
pub(super) fn products(
    shape: Shape,
    arithmetic: Arithmetic,
    tokens: &[usize],
) -> Result<Experiment, DeclareError> {
    let mut draft = Draft::new("products", 1, shape, arithmetic)?;
    for (number, tokens) in tokens.iter().enumerate() {
        draft.call(&format!("product{number}"), 0, Work::Product(*tokens), true)?;
    }
    draft.experiment(Ending::Forward)
}

/// So many calls that do nothing, each behind a small dequantization: a step of many small tasks on one lane.
pub(super) fn launches(calls: usize, format: Format, recorded: bool) -> Result<Experiment, DeclareError> {
    let backward = Orientation::Rowwise;
    let arithmetic = Arithmetic { format, math: Math::F32, form: Form::Dense, backward };
    let mut draft = Draft::new("launches", 1, Shape { rows: 128, cols: 128 }, arithmetic)?;
    for number in 0..calls {
        draft.call(&format!("call{number}"), 0, Work::Nothing, true)?;
    }
    Ok(Experiment { recorded, ..draft.experiment(Ending::Forward)? })
}

/// Several weights, gathered ahead: tasks of one lane beside those of another.
pub(super) fn beside(
    weights: usize,
    shape: Shape,
    arithmetic: Arithmetic,
    tokens: usize,
    communicators: u32,
) -> Result<Experiment, DeclareError> {
    let mut draft = Draft::new("beside", weights, shape, arithmetic)?;
    draft.there(tokens)?;
    draft.back(tokens)?;
    Ok(Experiment { depth: 1, communicators, ..draft.experiment(Ending::Gradients)? })
}

/// The same with one communicator and, behind every call backward, a call whose planes are kept. It waits for no gather, so the host issues it
/// before the reduction that stands behind one, and the reduction runs beside it: what a collective is slowed by.
pub(super) fn behind(
    weights: usize,
    shape: Shape,
    arithmetic: Arithmetic,
    tokens: usize,
) -> Result<Experiment, DeclareError> {
    let mut draft = Draft::new("behind", weights, shape, arithmetic)?;
    draft.there(tokens)?;
    for number in (0..weights).rev() {
        draft.call(&format!("backward{number}"), number, Work::Gradient(tokens), false)?;
        draft.call(&format!("between{number}"), 0, Work::Product(tokens), true)?;
    }
    Ok(Experiment { depth: 1, ..draft.experiment(Ending::Gradients)? })
}

/// What no number was read from: a decoder-like stack that trains, forward and backward, gathers ahead, reductions beside them.
pub(super) fn held_out(
    blocks: usize,
    shape: Shape,
    arithmetic: Arithmetic,
    tokens: usize,
) -> Result<Experiment, DeclareError> {
    let mut draft = Draft::new("held-out", 2 * blocks, shape, arithmetic)?;
    draft.there(tokens)?;
    draft.back(tokens)?;
    Ok(Experiment { depth: 2, communicators: 2, ..draft.experiment(Ending::Training)? })
}
