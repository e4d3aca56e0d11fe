//! Building a session: programs, weights' first values, closures, an optimizer.
//!
//! Law: what is built says nothing of backends; `start` and `start_in` get them, and forget their type (`starting`).

use std::convert::Infallible;
use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::any_backend::{Startable, Unstarted};
use super::custom_optimizer::{CustomOptimizer, required};
use super::starting::Start;
use crate::checkpoint::ranks::MasterRows;
use crate::checkpoint::{FrozenBase, OptimizerIdentity};
use crate::config::Config;
use crate::exec::Initializer;
use crate::session::{Session, SessionError};
use warpweft_backend::rendezvous::Rendezvous;
use warpweft_backend::{Backend, Checked};
use warpweft_base::id::RankId;
use warpweft_plan::compute::{Compute, ComputeError, ComputeFactory, Optimizer, Seat, Surface};
use warpweft_plan::model::StepProgram;

/// A session in the making.
#[must_use = "a session begins with one of the `start` methods"]
pub struct SessionBuilder<S: Surface> {
    pub(in crate::session) config: Config,
    programs: Vec<StepProgram>,
    initializer: Option<Initializer>,
    base: Option<FrozenBase>,
    closures: ComputeFactory<S>,
    optimizer: Option<CustomOptimizer<S>>,
    /// How long ranks look for their next command before they sleep.
    pub(in crate::session) patience: Duration,
}

impl<S: Surface> std::fmt::Debug for SessionBuilder<S> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let programs: Vec<&str> = self.programs.iter().map(StepProgram::name).collect();
        out.debug_struct("SessionBuilder").field("programs", &programs).finish_non_exhaustive()
    }
}

impl Session {
    /// Starts building a session. `closures` is called once per rank, on the thread that will run
    /// the rank's calls. A factory that can fail, or wants to know the rank's GPU, goes to
    /// [`Session::try_builder`].
    pub fn builder<S, C, F>(config: Config, closures: F) -> SessionBuilder<S>
    where
        S: Surface,
        C: Compute<S> + 'static,
        F: Fn(RankId) -> C + Send + Sync + 'static,
    {
        Self::try_builder(config, move |seat: Seat<S::Device>| Ok(closures(seat.rank)))
    }

    /// As [`Session::builder`], with a factory that gets the rank's [`Seat`], on GPUs the device's ordinal with
    /// it, and may fail. Where it fails the session does not start: the error ([`SessionError::Exec`]) names the
    /// rank and has the factory's words.
    pub fn try_builder<S, C, F>(config: Config, closures: F) -> SessionBuilder<S>
    where
        S: Surface,
        C: Compute<S> + 'static,
        F: Fn(Seat<S::Device>) -> Result<C, ComputeError> + Send + Sync + 'static,
    {
        SessionBuilder {
            config,
            programs: Vec::new(),
            initializer: None,
            base: None,
            optimizer: None,
            patience: Duration::ZERO,
            closures: Arc::new(move |seat| Ok(Box::new(closures(seat)?))),
        }
    }
}

impl<S: Surface + 'static> SessionBuilder<S> {
    /// Adds a program. All programs of a session are declared over one model.
    pub fn program(mut self, program: StepProgram) -> Self {
        self.programs.push(program);
        self
    }

    /// Divides so many ranks into replicas, where nobody says into how many.
    pub(in crate::session) fn divide(&mut self, ranks: u32) {
        if let Some(program) = self.programs.first() {
            self.config = self.config.with_usual_replicas(ranks, program.model());
        }
    }

    /// How masters begin: `fill` is called for every rank and weight, with the weight's name, the place of
    /// the rank's rows in it, and these rows, row-major. What it fills in must depend on name and place alone:
    /// ranks that hold the same rows are asked one by one, and must be given the same values.
    /// [`initial::normal`](super::initial::normal) and [`initial::zeros`](super::initial::zeros) make such functions.
    /// One that reads files, and so can fail, goes to [`SessionBuilder::try_initialize`].
    ///
    /// A session whose model has weights does not start without one of the two
    /// ([`SessionError::NotInitialized`]), unless it is in virtual time.
    pub fn initialize(self, fill: impl Fn(MasterRows<'_>, &mut [f32]) + Send + Sync + 'static) -> Self {
        self.try_initialize(move |rows, values| {
            fill(rows, values);
            Ok::<(), Infallible>(())
        })
    }

    /// As [`SessionBuilder::initialize`], with a function that may fail, such as that of
    /// [`PretrainedFiles::initializer`](crate::checkpoint::PretrainedFiles::initializer). Where it fails the session
    /// does not start: the error ([`ExecError::Initializer`](crate::session::ExecError::Initializer)) names the rank
    /// and the weight, and has the function's words.
    pub fn try_initialize<E: Display>(
        mut self,
        fill: impl Fn(MasterRows<'_>, &mut [f32]) -> Result<(), E> + Send + Sync + 'static,
    ) -> Self {
        self.initializer =
            Some(Arc::new(move |rows, values| fill(rows, values).map_err(|error| error.to_string())));
        self
    }

    /// A custom optimizer updates the weights, in place of the Adam of the configuration, of which learning rate,
    /// weight decay, betas and clipping remain. Every rank gets a clone.
    pub fn optimizer<O>(self, optimizer: O) -> Self
    where
        O: Optimizer<S> + Clone + Send + Sync + 'static,
    {
        let states = optimizer.states().len();
        let made = Arc::new(move |_seat| Ok(Box::new(optimizer.clone()) as Box<dyn Optimizer<S>>));
        self.with_optimizer(CustomOptimizer { states, made })
    }

    /// As [`SessionBuilder::optimizer`], with a factory that gets the rank's [`Seat`], on GPUs the device's ordinal
    /// with it, and may fail: for one that has code or memory on the device. It keeps as many `states` as its
    /// [`Optimizer::states`] has names.
    pub fn try_optimizer<O>(
        self,
        states: usize,
        factory: impl Fn(Seat<S::Device>) -> Result<O, ComputeError> + Send + Sync + 'static,
    ) -> Self
    where
        O: Optimizer<S> + 'static,
    {
        let made = Arc::new(move |seat| Ok(Box::new(factory(seat)?) as Box<dyn Optimizer<S>>));
        self.with_optimizer(CustomOptimizer { states, made })
    }

    fn with_optimizer(mut self, optimizer: CustomOptimizer<S>) -> Self {
        self.config.optimizer.custom_states = Some(u8::try_from(optimizer.states).unwrap_or(u8::MAX));
        self.optimizer = Some(optimizer);
        self
    }

    /// Frozen weights begin with these planes, bit for bit, in place of what [`SessionBuilder::initialize`] gives; see
    /// [`PretrainedFiles::frozen_base`](crate::checkpoint::PretrainedFiles::frozen_base).
    pub fn frozen_base(self, base: FrozenBase) -> Self {
        Self { base: Some(base), ..self }
    }

    /// Plans the programs and starts one rank per backend, each inside the checking layer if the configuration
    /// requests it ([`Config::check`]) and the backend has none yet.
    ///
    /// # Errors
    /// [`SessionError::Backends`] unless `backends` are those of one whole world in rank order;
    /// [`SessionError::WeightRules`] unless programs are declared over a model that the rules of the
    /// configuration were applied to ([`Config::apply_weight_rules`]);
    /// [`SessionError::NotInitialized`] without [`SessionBuilder::initialize`]; [`SessionError::Checkpoint`] for a
    /// frozen weight of another format or shape than [`SessionBuilder::frozen_base`] has;
    /// [`SessionError::Unsupported`], [`SessionError::Plan`], [`SessionError::Trace`] and [`SessionError::Start`]
    /// before anything runs; [`SessionError::Exec`] with the cause when a rank cannot be set up.
    pub async fn start<B: Backend<Surface = S>>(self, backends: Vec<B>) -> Result<Session, SessionError> {
        self.config.validate()?;
        let ranks = u32::try_from(backends.len()).unwrap_or(u32::MAX);
        let deadline = self.config.deadline();
        self.start_in(Arc::new(Rendezvous::of_threads(ranks, deadline)), backends).await
    }

    /// As [`SessionBuilder::start`], for the ranks of this process of a world that may have others: one
    /// backend for each of `rendezvous.own()`. Every process calls it with the same configuration and
    /// programs.
    ///
    /// # Errors
    /// As [`SessionBuilder::start`]; what one process cannot do is reported to all.
    pub async fn start_in<B: Backend<Surface = S>>(
        self,
        rendezvous: Arc<Rendezvous>,
        backends: Vec<B>,
    ) -> Result<Session, SessionError> {
        let is_planned = self.config.optimizer.custom_states.is_some();
        let updates = self.programs.iter().any(StepProgram::updates_weights);
        let closures = match is_planned && updates && self.optimizer.is_none() {
            true => required(self.closures),
            false => self.closures,
        };
        let (start, ranks) = Self { closures, ..self }.of_any(backends);
        start.start_in(rendezvous, ranks).await
    }

    /// Forgets the type of the backends, which are inside the checking layer then if the configuration requests it.
    pub(in crate::session) fn of_any<B: Backend<Surface = S>>(
        self,
        backends: Vec<B>,
    ) -> (Start, Vec<Box<dyn Startable>>) {
        let Self { config, programs, initializer, base, closures, optimizer, patience } = self;
        let optimizer_identity = match config.optimizer.custom_states {
            None => Arc::new(OnceLock::from(OptimizerIdentity::Adam)),
            Some(_) => Arc::default(),
        };
        let closures = match optimizer {
            Some(optimizer) => optimizer.beside(closures, &programs, Arc::clone(&optimizer_identity)),
            None => closures,
        };
        let device = backends.first().map_or_else(String::new, Backend::describe);
        let check = config.check && !backends.iter().all(Backend::is_checked);
        let ranks = unstarted(backends.into_iter().map(|backend| Checked::when(check, backend)), &closures);
        (Start { config, programs, initializer, base, optimizer_identity, patience, device }, ranks)
    }
}

/// All backends with the factory of closures.
fn unstarted<B: Backend>(
    backends: impl Iterator<Item = B>,
    closures: &ComputeFactory<B::Surface>,
) -> Vec<Box<dyn Startable>> {
    let unstarted = |backend| Unstarted { backend, closures: Arc::clone(closures) };
    backends.map(|backend| Box::new(unstarted(backend)) as Box<dyn Startable>).collect()
}
