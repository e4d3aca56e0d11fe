//! Commands to the ranks of this process, and their replies.
//!
//! Law: one command is under way at a time, and goes to all ranks. Whoever sends one awaits all replies; if that future
//! was dropped, the next call does, and reports what no caller saw. A rank that fails poisons the session.

use std::time::{Duration, Instant};

use super::dropped::Asks;
use super::step::report::Unseen;
use super::{Session, SessionError};
use crate::exec::{Command, ExecError};

/// A command some ranks still owe a reply to.
#[derive(Debug)]
pub(super) struct Pending {
    /// `None` while the ranks are set up.
    pub(super) command: Option<Command>,
    pub(super) owed: usize,
    pub(super) failure: Option<ExecError>,
    pub(super) started: Instant,
}

impl Pending {
    /// A rank failed. Of several failures the first that is no echo of another stands.
    fn failed(&mut self, error: ExecError) {
        if self.failure.as_ref().is_none_or(ExecError::is_consequence) {
            self.failure = Some(error);
        }
    }
}

/// Why the session runs no further steps.
#[derive(Debug)]
pub(super) struct Poison {
    pub(super) reason: String,
    /// Do all ranks live, with whole weights?
    pub(super) exports: bool,
}

impl Session {
    pub(super) fn check_usable(&self) -> Result<(), SessionError> {
        match &self.poisoned {
            Some(Poison { reason, exports }) => {
                Err(SessionError::Poisoned { reason: reason.clone(), exports: *exports })
            }
            None => Ok(()),
        }
    }

    pub(super) fn command(&mut self, command: Command) {
        let mut pending = Pending { command: Some(command), owed: 0, failure: None, started: Instant::now() };
        for thread in &self.ranks {
            match thread.command(command) {
                Ok(()) => pending.owed += 1,
                Err(error) => pending.failed(error),
            }
        }
        self.pending = Some(pending);
    }

    /// Waits for all replies owed.
    pub(super) async fn replies(&mut self) -> Result<Duration, ExecError> {
        let Some(pending) = &mut self.pending else { return Ok(Duration::ZERO) };
        while pending.owed > 0 {
            let reply = self.inbox.next().await;
            pending.owed -= 1;
            if let Err(error) = reply.outcome {
                pending.failed(error);
            }
        }
        let duration = pending.started.elapsed();
        self.pending.take().and_then(|pending| pending.failure).map_or(Ok(duration), Err)
    }

    /// Waits for all replies owed; a failure of any rank poisons the session.
    pub(super) async fn finish(&mut self) -> Result<Duration, SessionError> {
        self.replies().await.map_err(|error| {
            let (reason, exports) = (error.to_string(), false);
            self.poisoned = Some(Poison { reason: reason.clone(), exports });
            SessionError::Poisoned { reason, exports }
        })
    }

    /// Awaits every rank's first reply.
    pub(super) async fn await_setup(&mut self) -> Result<(), SessionError> {
        let owed = self.ranks.len();
        self.pending = Some(Pending { command: None, owed, failure: None, started: Instant::now() });
        Ok(self.replies().await.map(|_| ())?)
    }

    /// Lets a command whose future was dropped come to its end. How a step ended is reported by the next
    /// report, or right now if it failed; so is an import that was refused.
    pub(super) async fn settle(&mut self) -> Result<(), SessionError> {
        self.settle_for(Asks::More).await
    }

    /// As [`Session::settle`], for a call that asks this.
    pub(super) async fn settle_for(&mut self, asks: Asks) -> Result<(), SessionError> {
        let Some(command) = self.pending.as_ref().and_then(|pending| pending.command) else {
            return self.check_save(asks);
        };
        let duration = self.finish().await?;
        match command {
            Command::Step(number) => {
                self.write_snapshot();
                let report = self.report(number, duration).map_err(|error| error.of_dropped_step(asks))?;
                self.unseen = Unseen { outcomes: report.unobserved, not_captured: report.not_captured };
                self.unseen.outcomes.push(report.outcome);
                self.complete_written().await?;
            }
            Command::Import | Command::ImportPart => {
                self.imported().map_err(|error| error.of_dropped_command(asks))?;
            }
            Command::SavePart => self.saved().map_err(|error| error.of_dropped_command(asks))?,
            Command::CompleteSave => self.save_completed(),
            Command::BeginSave => self.save_begun().map_err(|error| error.of_dropped_command(asks))?,
            Command::TakeSnapshot => self.write_copied()?,
            // Who no longer waits for what it found may ask again.
            Command::CompareReplicas => {}
            Command::Export | Command::MainGrads => {
                self.ranks.iter().for_each(|thread| thread.handover().forget_weights());
            }
        }
        self.check_save(asks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warpweft_base::id::RankId;

    #[test]
    fn of_several_failures_the_first_that_is_no_echo_of_another_stands() {
        let echo = |rank| ExecError::World { rank: RankId::new(rank), reason: "rank 2 failed".into() };
        let cause = |rank| ExecError::ReplicasDiffer { rank: RankId::new(rank), other: RankId::new(9) };
        let told = |failures: Vec<ExecError>| {
            let mut pending = Pending { command: None, owed: 4, failure: None, started: Instant::now() };
            failures.into_iter().for_each(|failure| pending.failed(failure));
            pending.failure.map(|failure| failure.to_string())
        };
        assert_eq!(told(vec![]), None);
        assert_eq!(told(vec![echo(0), cause(2), cause(3), echo(1)]), Some(cause(2).to_string()));
        assert_eq!(told(vec![cause(3), echo(0)]), Some(cause(3).to_string()));
        assert_eq!(told(vec![echo(0), echo(1)]), Some(echo(1).to_string()));
    }
}
