//! The passes of blocks: the user's forward, loss and backward, called with the operands of each.
//!
//! Law: a pass is given the ids of what its call declared, and reaches memory through its context alone.

use std::sync::Arc;

use warpweft::compute::{Compute, ComputeContext, ComputeError, Surface};
use warpweft::id::{BufferId, WeightId};
use warpweft::model::Call;

/// The job of a call: one pass of one block.
#[derive(Clone, Debug)]
pub struct Job {
    /// Which block, counted from 0.
    pub block: usize,
    /// Its weights, in the order in which the block names them.
    pub weights: Vec<WeightId>,
    /// The inputs that every call reads, in the order of [`Blocks::every`](crate::Blocks::every).
    pub every: Vec<BufferId>,
    /// Does the block's backward run in this step, in this call or after it? It does where the block or one before it
    /// has a weight that trains.
    pub trains: bool,
    /// What it does.
    pub pass: Pass,
}

/// A pass of a block: forward, loss or backward.
#[derive(Clone, Debug)]
pub enum Pass {
    /// From the block's input to its output.
    Forward {
        /// What it reads.
        input: BufferId,
        /// What it writes.
        output: BufferId,
    },
    /// The last block with the loss, and in training its backward.
    Loss(Loss),
    /// From the gradient of the block's output to those of its weights and its input.
    Backward(Backward),
}

/// The operands of the last block's call, which computes the loss.
#[derive(Clone, Debug)]
pub struct Loss {
    /// The block's input.
    pub input: BufferId,
    /// What its output is compared with.
    pub targets: BufferId,
    /// What the call writes of the loss, in the order of [`Blocks::outputs`](crate::Blocks::outputs).
    pub outputs: Vec<BufferId>,
    /// Where the gradient of the input goes, if a block before it wants one.
    pub input_gradient: Option<BufferId>,
}

/// The operands of a backward call.
#[derive(Clone, Copy, Debug)]
pub struct Backward {
    /// The block's input once more; `None` of a block whose forward keeps what backward needs.
    pub input: Option<BufferId>,
    /// The gradient of the block's output.
    pub output_gradient: BufferId,
    /// Where the gradient of the input goes, if a block before it wants one.
    pub input_gradient: Option<BufferId>,
}

/// The context of a pass: its block, and the operands it may touch.
#[derive(Debug)]
pub struct At<'a, S: Surface> {
    /// The block, counted from 0.
    pub block: usize,
    /// Its weights.
    pub weights: &'a [WeightId],
    /// The inputs that every call reads.
    pub every: &'a [BufferId],
    /// Does the block's backward run in this step, in this call or after it?
    pub trains: bool,
    /// Lends memory.
    pub context: &'a ComputeContext<'a, S>,
}

/// The user's passes of all blocks, one value for each rank.
pub trait Passes<S: Surface> {
    /// Writes a block's output. Also of the last block, in a program that predicts.
    ///
    /// # Errors
    /// Any error skips the step on all ranks.
    fn forward(&mut self, at: &At<'_, S>, input: BufferId, output: BufferId) -> Result<(), ComputeError>;

    /// Computes the last block and the loss, and in training the gradients of its weights and its input.
    ///
    /// # Errors
    /// As [`Passes::forward`].
    fn loss(&mut self, at: &At<'_, S>, loss: &Loss) -> Result<(), ComputeError>;

    /// Writes the gradients of a block's weights that train, and of its input.
    ///
    /// # Errors
    /// As [`Passes::forward`].
    fn backward(&mut self, at: &At<'_, S>, backward: &Backward) -> Result<(), ComputeError>;
}

/// The jobs of one program's calls, in their order.
#[derive(Clone, Debug)]
pub struct Jobs {
    pub(crate) program: String,
    pub(crate) jobs: Arc<[Job]>,
}

/// The closure of a rank, for `Session::builder`: it calls `passes` for the calls of `programs`.
#[must_use]
pub fn compute<S: Surface, P: Passes<S>>(
    programs: impl IntoIterator<Item = Jobs>,
    passes: P,
) -> impl Compute<S> {
    Running { programs: programs.into_iter().collect(), passes }
}

struct Running<P> {
    programs: Vec<Jobs>,
    passes: P,
}

impl<S: Surface, P: Passes<S>> Compute<S> for Running<P> {
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, S>) -> Result<(), ComputeError> {
        let program = self.programs.iter().find(|program| program.program == context.program());
        let Some(job) = program.and_then(|program| program.jobs.get(context.call().index())) else {
            let program = context.program();
            let foreign = format!("call `{}` of program `{program}` is not one of these blocks", call.name);
            return Err(ComputeError::closure(foreign));
        };
        let Job { block, trains, .. } = *job;
        let at = At { block, weights: &job.weights, every: &job.every, trains, context };
        match &job.pass {
            Pass::Forward { input, output } => self.passes.forward(&at, *input, *output),
            Pass::Loss(loss) => self.passes.loss(&at, loss),
            Pass::Backward(backward) => self.passes.backward(&at, backward),
        }
    }
}
