//! The step programs of a calibration, and the one that is held out.
//!
//! Law: a program is the same on every device; what differs is how a product multiplies ([`Arithmetic`]).
//! Every program has one shape of weights, so that a task of one kind takes one time, and what it takes by
//! itself can be read from a *chain* of the same shape, alone or after products: one weight, gathered on
//! demand, in whose step nothing runs beside anything else.

use std::sync::Arc;

use warpweft_base::id::WeightId;
use warpweft_format::{Directions, ElementType, Format, Orientation, Shape};
use warpweft_plan::model::{
    CostHint, DeclareError, Form, Math, Model, Phase, ProgramBuilder, Reuse, StepProgram,
};

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
    /// To what activations and their gradients are quantized before they are multiplied.
    pub(super) activations: Option<Format>,
}

impl Arithmetic {
    /// In what activations and their gradients are written.
    fn activation(&self) -> ElementType {
        if self.math == Math::F32 { ElementType::F32 } else { ElementType::Bf16 }
    }

    /// What a kernel costs that quantizes `[tokens, features]`, if there is one.
    fn quantizes(&self, tokens: usize, features: usize, directions: Directions) -> Option<CostHint> {
        let shape = Shape { rows: tokens, cols: features };
        self.activations.map(|format| CostHint::quantizing(format, shape, directions))
    }
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
    /// All three products of a layer over so many tokens: forward, and both gradients, which are nobody's.
    Layer(usize),
    /// So many kernels that do next to nothing.
    Kernels(usize),
}

impl Work {
    /// What it costs with a weight of `shape`. Products do not name what they read, and what they write is a
    /// part by itself, so that every part is of one number of the cluster and of kernels.
    fn cost(self, shape: Shape, arithmetic: &Arithmetic) -> Vec<CostHint> {
        let Shape { rows, cols } = shape;
        let product = |tokens| CostHint::product(tokens, cols, rows, arithmetic.math);
        let of_x = |tokens, directions| arithmetic.quantizes(tokens, cols, directions);
        let of_dy = |tokens, directions| arithmetic.quantizes(tokens, rows, directions);
        let values = |tokens: usize, features: usize| arithmetic.activation().bytes() * tokens * features;
        let gradient = ElementType::F32.bytes() * shape.elements();
        let (before, multiplied, written) = match self {
            Self::Nothing => return Vec::new(),
            Self::Kernels(count) => {
                let kernels = u32::try_from(count).unwrap_or(u32::MAX);
                return vec![CostHint { kernels, ..CostHint::default() }];
            }
            Self::Product(tokens) => {
                (vec![of_x(tokens, Directions::Rowwise)], product(tokens), values(tokens, rows))
            }
            Self::Gradient(tokens) => {
                let both = [of_dy(tokens, Directions::Columnwise), of_x(tokens, Directions::Columnwise)];
                (both.into(), product(tokens), gradient)
            }
            Self::Layer(tokens) => {
                let of_x = [Directions::Rowwise, Directions::Columnwise].map(|of| of_x(tokens, of));
                let all = of_x.into_iter().chain([of_dy(tokens, Directions::Both)]);
                let written = values(tokens, rows) + values(tokens, cols) + gradient;
                (all.collect(), product(tokens).times(3), written)
            }
        };
        let written = CostHint { kernels: 0, ..CostHint::pass(written as u64) };
        before.into_iter().flatten().chain([multiplied, written]).collect()
    }
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
            Work::Nothing | Work::Kernels(_) => 0,
            Work::Product(tokens) | Work::Gradient(tokens) | Work::Layer(tokens) => tokens,
        }
    }
}

/// A program, what its calls do, and how it is run.
#[derive(Clone, Debug)]
pub(super) struct Experiment {
    pub(super) program: StepProgram,
    /// Of every call, in program order.
    pub(super) parts: Arc<[Part]>,
    /// How many calls ahead gathers start.
    pub(super) depth: u32,
    /// 1 or 2.
    pub(super) communicators: u32,
    /// Captured once and replayed, or issued task by task.
    pub(super) captured: bool,
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
        let Arithmetic { form, backward, .. } = arithmetic;
        let weight = self.weights[number];
        let (phase, orientations) = match work {
            Work::Gradient(_) => (Phase::Backward, vec![backward]),
            Work::Layer(_) if backward != Orientation::Rowwise => {
                (Phase::Forward, vec![Orientation::Rowwise, backward])
            }
            _ => (Phase::Forward, vec![Orientation::Rowwise]),
        };
        let mut call = self.program.call(name, phase);
        for orientation in orientations {
            call = call.uses(weight, orientation, form);
            if keep {
                call = call.reuse(Reuse::Keep);
            }
        }
        if matches!(work, Work::Gradient(_)) {
            call = call.gradient(weight);
        }
        let parts = work.cost(shape, &arithmetic);
        parts.into_iter().fold(call, |call, part| call.cost(part)).add()?;
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
        Ok(Experiment { program, parts, depth: 0, communicators: 1, captured: false, alone: false })
    }
}

enum Ending {
    Forward,
    Gradients,
    Training,
}

/// The backward of one weight: gather, transposition, call, reduction and accumulation, one after the other.
pub(super) fn chain(shape: Shape, arithmetic: Arithmetic, tokens: usize) -> Result<Experiment, DeclareError> {
    let mut draft = Draft::new("chain", 1, shape, arithmetic)?;
    draft.back(tokens)?;
    draft.experiment(Ending::Gradients)
}

/// A chain that trains, with a gradient of one token and f32 values, columnwise where the format derives
/// them: every op of the format once.
pub(super) fn ladder(shape: Shape, format: Format) -> Result<Experiment, DeclareError> {
    let backward = match format {
        Format::F32 | Format::Bf16 => Orientation::Rowwise,
        _ => Orientation::Columnwise,
    };
    let arithmetic = plain(format, backward);
    let mut draft = Draft::new("ladder", 1, shape, arithmetic)?;
    draft.back(1)?;
    draft.experiment(Ending::Training)
}

/// A chain after so many products of the same weight: what tasks take by themselves on a device that has
/// been at work.
pub(super) fn steady(
    products: usize,
    shape: Shape,
    arithmetic: Arithmetic,
    tokens: usize,
) -> Result<Experiment, DeclareError> {
    let mut draft = Draft::new("steady", 1, shape, arithmetic)?;
    for number in 0..products {
        draft.call(&format!("product{number}"), 0, Work::Product(tokens), true)?;
    }
    draft.back(tokens)?;
    draft.experiment(Ending::Gradients)
}

/// All products of a layer with one weight, over so many tokens each.
pub(super) fn layers(
    shape: Shape,
    arithmetic: Arithmetic,
    tokens: &[usize],
) -> Result<Experiment, DeclareError> {
    let mut draft = Draft::new("layers", 1, shape, arithmetic)?;
    for (number, tokens) in tokens.iter().enumerate() {
        draft.call(&format!("layer{number}"), 0, Work::Layer(*tokens), true)?;
    }
    draft.experiment(Ending::Forward)
}

/// Calls of so many small kernels, after a product over `tokens`, which lasts until the host has issued them all.
pub(super) fn kernels(
    shape: Shape,
    arithmetic: Arithmetic,
    tokens: usize,
    counts: &[usize],
) -> Result<Experiment, DeclareError> {
    let mut draft = Draft::new("kernels", 1, shape, arithmetic)?;
    draft.call("before", 0, Work::Product(tokens), true)?;
    for count in counts {
        draft.call(&format!("kernels{count}"), 0, Work::Kernels(*count), true)?;
    }
    draft.experiment(Ending::Forward)
}

/// f32 values of weights in `format`.
const fn plain(format: Format, backward: Orientation) -> Arithmetic {
    Arithmetic { format, math: Math::F32, form: Form::Dense, backward, activations: None }
}

/// So many calls that do nothing, each after a small dequantization: a step of many small tasks on one lane.
pub(super) fn launches(calls: usize, format: Format, captured: bool) -> Result<Experiment, DeclareError> {
    let arithmetic = plain(format, Orientation::Rowwise);
    let mut draft = Draft::new("launches", 1, Shape { rows: 128, cols: 128 }, arithmetic)?;
    for number in 0..calls {
        draft.call(&format!("call{number}"), 0, Work::Nothing, true)?;
    }
    Ok(Experiment { captured, ..draft.experiment(Ending::Forward)? })
}

/// Backward of several weights, whose planes are transposed ahead. Of tasks that begin together the simulator
/// charges one, the call. The transpositions of the first calls follow each other, so some begin while a call runs,
/// and are what is charged.
pub(super) fn transposed(
    weights: usize,
    shape: Shape,
    arithmetic: Arithmetic,
    tokens: usize,
) -> Result<Experiment, DeclareError> {
    let mut draft = Draft::new("transposed", weights, shape, arithmetic)?;
    draft.back(tokens)?;
    Ok(Experiment { depth: 3, ..draft.experiment(Ending::Gradients)? })
}

/// Several weights, gathered ahead: collectives of one communicator beside those of another.
pub(super) fn beside(
    weights: usize,
    shape: Shape,
    arithmetic: Arithmetic,
    tokens: usize,
) -> Result<Experiment, DeclareError> {
    let mut draft = Draft::new("beside", weights, shape, arithmetic)?;
    draft.there(tokens)?;
    draft.back(tokens)?;
    Ok(Experiment { depth: 1, communicators: 2, ..draft.experiment(Ending::Gradients)? })
}

/// The same with one communicator and, after every call backward, a call whose planes are kept. It waits for
/// no gather, and the reduction that stands after one begins beside it: what a collective is slowed by.
pub(super) fn after(
    weights: usize,
    shape: Shape,
    arithmetic: Arithmetic,
    tokens: usize,
) -> Result<Experiment, DeclareError> {
    let mut draft = Draft::new("after", weights, shape, arithmetic)?;
    draft.there(tokens)?;
    for number in (0..weights).rev() {
        draft.call(&format!("backward{number}"), number, Work::Gradient(tokens), false)?;
        draft.call(&format!("between{number}"), 0, Work::Product(tokens), true)?;
    }
    Ok(Experiment { depth: 1, ..draft.experiment(Ending::Gradients)? })
}

/// What no number was read from: a decoder-like stack that trains, forward and backward, gathers ahead,
/// reductions beside them.
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

#[cfg(test)]
mod tests;
