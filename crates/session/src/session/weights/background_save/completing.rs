//! The end of a save that several processes write.
//!
//! Law: processes tell each other in their steps that their parts are written, and between two steps the ranks of all
//! of them make a checkpoint of these, or withdraw them (CK-2).

use super::{Session, SessionError, Stage};
use crate::exec::Command;

impl Session {
    /// Are the parts of this process written, of a save that other processes write too?
    pub(in crate::session) fn part_is_written(&self) -> bool {
        matches!(&self.saves.stage, Some(Stage::Spread(spread)) if spread.is_written())
    }

    /// Notes after a step whether the parts of all processes are written.
    pub(in crate::session) fn note_written(&mut self, all: bool) {
        self.saves.all_written = all && self.part_is_written();
    }

    /// Makes a checkpoint of the parts of all processes, if the last step said that they are written.
    pub(in crate::session) async fn complete_written(&mut self) -> Result<(), SessionError> {
        if std::mem::take(&mut self.saves.all_written) { self.complete_save().await } else { Ok(()) }
    }

    /// Makes a checkpoint of the parts of all processes, as soon as they are written. What became of it is for whoever
    /// asks next.
    pub(super) async fn complete_save(&mut self) -> Result<(), SessionError> {
        let spread = match self.saves.stage.take() {
            Some(Stage::Spread(spread)) => spread,
            other => {
                self.saves.stage = other;
                return Ok(());
            }
        };
        // Ranks that are gone complete nothing.
        if let Err(error) = self.check_exports() {
            spread.withdraw();
            return Err(error);
        }
        for (thread, part) in self.ranks.iter().zip(spread.handed_over()) {
            thread.handover().part = part;
        }
        self.saves.stage = Some(Stage::Completing(spread));
        self.command(Command::CompleteSave);
        self.finish().await?;
        self.save_completed();
        Ok(())
    }

    /// What the ranks say of a save that they were to complete.
    pub(in crate::session) fn save_completed(&mut self) {
        if let Some(Stage::Completing(spread)) = self.saves.stage.take() {
            let failed = |(rank, source)| {
                let what = format!("{} (by {rank})", spread.what);
                Err(SessionError::BackgroundSave { what, source: Box::new(source), now: None })
            };
            let outcome = self.refusal().map_or(Ok(()), failed);
            if outcome.is_ok() {
                self.follow_save(spread.writer());
            }
            self.saves.stage = Some(Stage::Over(outcome));
        }
    }
}
