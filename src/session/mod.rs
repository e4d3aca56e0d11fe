//! The embedder's handle: programs over one set of weights, driven step by step.
//!
//! Law: between two awaited steps a session is at an edge: all lanes drained, weights at one
//! version on all ranks. A dropped `step` future finishes in the background and the next call
//! awaits it. After a closure's error the session goes on; after a panic or the death of a rank
//! it is poisoned and says so until it is dropped. Nothing here is global: two sessions live side
//! by side.

mod builder;
mod checkpoint;
mod error;
mod policy;
mod recorder;
mod report;
mod store;

pub use builder::SessionBuilder;
pub use checkpoint::{Checkpoint, PlanesState, WeightState};
pub use error::SessionError;
pub use report::{Outcome, StepReport};
pub use store::{CheckpointStore, FileStore, StoreError};

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytemuck::Pod;

use crate::exec::{Command, ExecError, Inbox, RankThread};
use crate::id::RankId;
use crate::model::Role;
use crate::plan::StepPlan;
use recorder::Recorder;

/// Programs, weights and ranks, ready to step.
#[derive(Debug)]
pub struct Session {
    ranks: Vec<RankThread>,
    inbox: Arc<Inbox>,
    programs: Vec<Program>,
    learning_rate: f32,
    loss_scale: f32,
    steps: u64,
    pending: Option<Pending>,
    poisoned: Option<String>,
    recorder: Option<Recorder>,
    device: String,
}

/// One program with its plan and the inputs of the coming step.
#[derive(Debug)]
struct Program {
    plan: Arc<StepPlan>,
    /// Per rank, per buffer; empty for buffers that are no inputs.
    inputs: Vec<Vec<Vec<u8>>>,
}

/// A command some ranks still owe a reply to.
#[derive(Debug)]
struct Pending {
    owed: usize,
    failure: Option<ExecError>,
    started: Instant,
}

impl Session {
    /// Runs one step of the program called `program` with the inputs written so far, and waits
    /// until all ranks have drained their lanes.
    ///
    /// # Errors
    /// [`SessionError::Closure`] when a closure failed (weights unchanged, session usable),
    /// [`SessionError::Poisoned`] after a panic or the death of a rank. A step skipped for a
    /// non-finite gradient is no error: see [`StepReport::outcome`].
    pub async fn step(&mut self, program: &str) -> Result<StepReport, SessionError> {
        self.settle().await;
        self.check_usable()?;
        let number = self.position(program)?;
        for (rank, thread) in self.ranks.iter().enumerate() {
            let mut exchange = thread.exchange();
            exchange.learning_rate = self.learning_rate;
            exchange.loss_scale = self.loss_scale;
            exchange.recorded = self.recorder.as_ref().is_some_and(|recorder| recorder.keeps(self.steps));
            for (staged, input) in exchange.staged[number].iter_mut().zip(&self.programs[number].inputs[rank])
            {
                if !input.is_empty() {
                    staged.copy_from_slice(input);
                }
            }
        }
        self.command(Command::Step(number))?;
        let duration = self.finish().await?;
        self.report(number, duration)
    }

    /// Writes an input of the coming steps of one rank; it stays until written again.
    ///
    /// # Errors
    /// An unknown program, buffer or rank, a buffer that is no input, or another length.
    pub fn write_input<T: Pod>(
        &mut self,
        program: &str,
        rank: RankId,
        buffer: &str,
        values: &[T],
    ) -> Result<(), SessionError> {
        let number = self.position(program)?;
        let Program { plan, inputs } = &mut self.programs[number];
        let position = plan.buffers.iter().position(|spec| spec.name == buffer && spec.role == Role::Input);
        let place = position.and_then(|position| inputs.get_mut(rank.index())?.get_mut(position));
        let Some(place) = place else {
            return Err(SessionError::NoInput {
                program: program.to_owned(),
                rank,
                buffer: buffer.to_owned(),
            });
        };
        let bytes: &[u8] = bytemuck::cast_slice(values);
        if bytes.len() != place.len() {
            return Err(SessionError::InputSize {
                program: program.to_owned(),
                buffer: buffer.to_owned(),
                given: bytes.len(),
                expected: place.len(),
            });
        }
        place.copy_from_slice(bytes);
        Ok(())
    }

    /// Learning rate of the coming steps.
    pub fn set_learning_rate(&mut self, learning_rate: f32) {
        self.learning_rate = learning_rate;
    }

    /// The factor by which the closures multiply the loss of the coming steps, 1 at first.
    ///
    /// Gradients are divided by it before norm, clip and update. A step whose scaled gradients overflow is
    /// skipped ([`Outcome::Skipped`]): the trainer lowers the scale and goes on. A power of two changes no
    /// bit of a step that does not overflow or underflow.
    ///
    /// # Errors
    /// [`SessionError::LossScale`] unless it and its reciprocal are positive normal numbers; the scale stays
    /// as it was.
    pub fn set_loss_scale(&mut self, loss_scale: f32) -> Result<(), SessionError> {
        if loss_scale > 0.0 && loss_scale.is_normal() && (1.0 / loss_scale).is_normal() {
            self.loss_scale = loss_scale;
            return Ok(());
        }
        Err(SessionError::LossScale { given: loss_scale })
    }

    /// Copies the weights out: masters, moments, step count and quantized planes.
    ///
    /// # Errors
    /// A poisoned session.
    pub async fn export(&mut self) -> Result<Checkpoint, SessionError> {
        self.settle().await;
        self.check_usable()?;
        self.command(Command::Export)?;
        self.finish().await?;
        let mut exchanges: Vec<_> = self.ranks.iter().map(RankThread::exchange).collect();
        let checkpoint = Checkpoint::gather(&self.programs[0].plan.weights, &exchanges)?;
        for exchange in &mut exchanges {
            exchange.shards = Vec::new();
        }
        Ok(checkpoint)
    }

    /// Puts weights in place: masters, moments and step count; planes are quantized anew before
    /// the next step.
    ///
    /// # Errors
    /// [`SessionError::Import`] when names or shapes differ from the session's; nothing is changed
    /// then. A poisoned session.
    pub async fn import(&mut self, checkpoint: &Checkpoint) -> Result<(), SessionError> {
        self.settle().await;
        self.check_usable()?;
        let weights = &self.programs[0].plan.weights;
        checkpoint.check(weights)?;
        for (rank, thread) in self.ranks.iter().enumerate() {
            checkpoint.scatter(weights, RankId::at(rank), &mut thread.exchange());
        }
        self.command(Command::Import)?;
        self.finish().await?;
        for thread in &self.ranks {
            thread.exchange().shards = Vec::new();
        }
        Ok(())
    }

    /// The plan of a program.
    ///
    /// # Errors
    /// An unknown program.
    pub fn plan(&self, program: &str) -> Result<&Arc<StepPlan>, SessionError> {
        Ok(&self.programs[self.position(program)?].plan)
    }

    /// What the session runs on, and whether its link is paced.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Ends the session: waits for a step still under way, closes the ranks, writes the trace if
    /// one was asked for.
    ///
    /// # Errors
    /// [`SessionError::Trace`] when the trace cannot be written.
    pub async fn close(mut self) -> Result<(), SessionError> {
        self.settle().await;
        self.ranks.clear();
        self.recorder.take().map_or(Ok(()), Recorder::write)
    }

    fn position(&self, program: &str) -> Result<usize, SessionError> {
        self.programs.iter().position(|other| other.plan.name == program).ok_or_else(|| {
            let declared: Vec<&str> = self.programs.iter().map(|other| other.plan.name.as_str()).collect();
            SessionError::NoProgram { name: program.to_owned(), declared: declared.join(", ") }
        })
    }

    fn check_usable(&self) -> Result<(), SessionError> {
        match &self.poisoned {
            Some(reason) => Err(SessionError::Poisoned { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    fn command(&mut self, command: Command) -> Result<(), SessionError> {
        self.pending = Some(Pending { owed: 0, failure: None, started: Instant::now() });
        for thread in &self.ranks {
            match (thread.command(command), &mut self.pending) {
                (Ok(()), Some(pending)) => pending.owed += 1,
                (Err(error), Some(pending)) => pending.failure = Some(error),
                (_, None) => {}
            }
        }
        Ok(())
    }

    /// Waits for all replies owed; a failure of any rank poisons the session.
    async fn finish(&mut self) -> Result<Duration, SessionError> {
        let Some(pending) = &mut self.pending else { return Ok(Duration::ZERO) };
        while pending.owed > 0 {
            let reply = self.inbox.next().await;
            pending.owed -= 1;
            if let Err(error) = reply.outcome {
                pending.failure = Some(match pending.failure.take() {
                    Some(known) if !is_consequence(&known) => known,
                    _ => error,
                });
            }
        }
        let duration = pending.started.elapsed();
        let failure = self.pending.take().and_then(|pending| pending.failure);
        match failure {
            None => Ok(duration),
            Some(error) => {
                self.poisoned = Some(error.to_string());
                Err(SessionError::Poisoned { reason: error.to_string() })
            }
        }
    }

    /// Awaits every rank's first reply.
    async fn await_setup(&mut self) -> Result<(), SessionError> {
        self.pending = Some(Pending { owed: self.ranks.len(), failure: None, started: Instant::now() });
        self.finish().await.map(|_| ())
    }

    /// Lets a step whose future was dropped come to its end.
    async fn settle(&mut self) {
        if self.pending.is_some() {
            let _ = self.finish().await;
            self.note_panics();
        }
    }

    /// A panic in a step nobody looked at still poisons the session.
    fn note_panics(&mut self) {
        for (rank, thread) in self.ranks.iter().enumerate() {
            if let Some(fault) = thread.exchange().fault.as_ref().filter(|fault| fault.panicked) {
                let reason = format!("the closure of {} panicked: {}", RankId::at(rank), fault.message);
                self.poisoned.get_or_insert(reason);
            }
        }
    }

    fn report(&mut self, number: usize, duration: Duration) -> Result<StepReport, SessionError> {
        self.note_panics();
        let plan = Arc::clone(&self.programs[number].plan);
        let step = self.steps;
        self.steps += 1;
        let exchanges: Vec<_> = self.ranks.iter().map(RankThread::exchange).collect();
        if let Some(recorder) = &mut self.recorder {
            recorder.record(&plan, step, &exchanges);
        }
        let faulted = exchanges
            .iter()
            .enumerate()
            .find_map(|(rank, exchange)| exchange.fault.as_ref().map(|fault| (RankId::at(rank), fault)));
        if let Some((rank, fault)) = faulted {
            let call = plan.calls.get(fault.call.index()).map_or_else(String::new, |call| call.name.clone());
            let (message, panicked) = (fault.message.clone(), fault.panicked);
            return Err(SessionError::Closure { step, rank, call, message, panicked });
        }
        let device = self.device.clone();
        report::build(&plan, number, step, duration, device, &exchanges)
    }
}

/// Is the error only the echo of another rank's end?
fn is_consequence(error: &ExecError) -> bool {
    matches!(
        error,
        ExecError::World { .. } | ExecError::Backend(crate::backend::BackendError::Poisoned { .. })
    )
}
