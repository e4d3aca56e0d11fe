//! The user's side: the trait a user implements and what its calls may touch.
//!
//! Law: a closure reaches memory only through its context, and its context hands out only what the call
//! declared, in the way it was declared, and the loss scale to read. A custom optimizer has contexts of its own, which
//! hand out the state it updates. What a closure captures is constant over steps; whatever changes is in
//! declared buffers. The type that lends memory is the backend's [`Surface`]; nothing here knows which. A call that
//! declares to overwrite a gradient or a buffer, and whose closure never requests it, has failed: its readers would
//! find what was in that memory before.

mod borrower;
mod bound;
mod by_name;
mod context;
mod error;
mod filled;
mod left_out;
mod lent;
mod matrix;
mod optimizer;
mod optimizer_base;
mod program;
mod run;
mod seat;
mod surface;
mod update;

pub use borrower::Borrower;
pub use bound::BoundCall;
#[doc(hidden)]
pub use bound::bound_planes;
pub use context::{ComputeContext, PlanesOf, PlanesView};
pub use error::ComputeError;
pub use left_out::LeftOut;
#[doc(hidden)]
pub use lent::Lent;
#[doc(hidden)]
pub use matrix::{BoundMatrix, BoundPreparation, BoundPrepared, BoundTransformation};
pub use matrix::{PrepareContext, TransformContext};
pub use optimizer::Optimizer;
#[doc(hidden)]
pub use optimizer::{OptimizerTask, WithOptimizer};
#[doc(hidden)]
pub use optimizer_base::BoundRows;
pub use optimizer_base::OptimizerContext;
pub use program::BoundProgram;
pub use seat::Seat;
pub use surface::{LentSlice, Surface};
#[doc(hidden)]
pub use update::{BoundState, BoundUpdate};
pub use update::{UpdateContext, UpdatedWeight};

use crate::model::Call;

/// The byte that fills what a call overwrites before its closure gets it, where the checking layer is on. In
/// every floating-point type such bytes are not a number, so what a closure leaves out or adds to shows at
/// once; where the host can look into the memory, by name ([`ComputeError::PartlyWritten`]).
pub const SPOILED: u8 = 0xFF;

/// What a user implements: one value per rank, made on the thread that will own it.
///
/// It need be neither `Send` nor `Sync`. `run` is called in the plan's order, for the calls of every program
/// of the session. [`ComputeContext::program`] says which program it is. A closure that serves several finds
/// its buffers by name ([`ComputeContext::buffer_named`]), because each program has its own ids. What the
/// closure captures is constant over steps; what changes is in declared buffers.
///
/// # On the CPU
///
/// A closure runs on the compute lane's own thread in every step, captured or not. It may wait and allocate.
///
/// # On a GPU
///
/// A closure runs on its rank's thread while its call is being enqueued, and enqueues on the stream that
/// [`ComputeContext::handles`] gives it. The device's primary context is current then, and must be when the
/// closure returns. The closure touches what its context lent and memory of its own; work on any other stream
/// is ordered against that stream by events. Where `capture` (of the configuration) requests it, what a
/// call enqueued is captured and repeated without the closure:
///
/// | | `"off"` | `"step"`, `"segments"` | a dynamic call in `"segments"` |
/// |---|---|---|---|
/// | runs | in every step | in the first step of its plan, and once more to be captured | in every step |
/// | enqueues | anything | what it enqueues then, every later step repeats | anything |
/// | loads code, makes handles, allocates | in the factory or in the first step | likewise | likewise |
/// | launches new code in a later step | with `CUDA_MODULE_LOADING=EAGER` | never: it is not run | with `CUDA_MODULE_LOADING=EAGER` |
/// | waits or allocates in a later step | holds up the host, which issues nothing meanwhile | no capture | holds up the host |
/// | depends on values of the host | as they are | as they were when it was captured | as they are |
/// | fails | the step is skipped on all ranks | in the first step likewise, later no capture | the step is skipped on all ranks |
///
/// *No capture*: the driver refuses, or the closure failed. All ranks drop what they captured, and issue
/// this step and the later ones of the program with the closure.
/// `StepReport::not_captured` says so once.
///
/// The *first step* of a plan lasts until one of its steps has completed on all ranks and no closure failed
/// in it. Closures after one that failed have not run. It is the place to load code and allocate memory
/// because in it ranks meet on the host before each of its collectives, and wait for it. Later, what waits
/// for the device may wait for a peer that waits for this very rank. This was seen with code that was loaded
/// late, on four GPUs. No test lets a closure wait or allocate after the first step.
pub trait Compute<S: Surface> {
    /// Carries out one call.
    ///
    /// # Errors
    /// Any error skips the step on all ranks; the report names this rank and call.
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, S>) -> Result<(), ComputeError>;

    /// The custom optimizer beside the calls, which a session puts there.
    #[doc(hidden)]
    fn optimizer(&mut self) -> Option<&mut dyn Optimizer<S>> {
        None
    }
}

impl<S: Surface, F> Compute<S> for F
where
    F: FnMut(&Call, &ComputeContext<'_, S>) -> Result<(), ComputeError>,
{
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, S>) -> Result<(), ComputeError> {
        self(call, context)
    }
}

/// Makes a rank's [`Compute`] on the thread that will own it. If it says why it cannot, the rank cannot be
/// set up and the session does not start.
pub type ComputeFactory<S> = std::sync::Arc<
    dyn Fn(Seat<<S as Surface>::Device>) -> Result<Box<dyn Compute<S>>, ComputeError> + Send + Sync,
>;

/// Makes a rank's [`Optimizer`], where its [`Compute`] is made.
pub type OptimizerFactory<S> = std::sync::Arc<
    dyn Fn(Seat<<S as Surface>::Device>) -> Result<Box<dyn Optimizer<S>>, ComputeError> + Send + Sync,
>;
