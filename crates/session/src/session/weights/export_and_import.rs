//! Export and import of checkpoints in memory.
//!
//! Law: both go to all ranks at once, at a step boundary. An import is judged whole before it changes anything, and one
//! that was refused is reported once, to whoever awaits it.

use crate::checkpoint::ranks::RankPart;
use crate::checkpoint::{Checkpoint, Taken};
use crate::exec::{Command, RankThread};
use crate::session::{CompiledHere, Session, SessionError, Skips, Sum};
use warpweft_base::errors::listed;

impl Session {
    /// Copies the weights out: masters, moments, step count and quantized planes; and every rank's
    /// carried buffers.
    ///
    /// It also does so after a closure panicked, as long as the session lives: that step changed no weight, and
    /// what is exported is what the last good step left. Carried buffers are as the closures of the failed step
    /// left them; import with [`Carried::Zeros`](crate::checkpoint::Carried::Zeros) where that is of no use.
    ///
    /// # Errors
    /// [`SessionError::Partial`] where other processes own ranks, [`SessionError::DroppedStep`];
    /// [`SessionError::Poisoned`] after a rank died or failed otherwise; [`SessionError::Diverged`] after a step that
    /// left a master or a moment that is not finite, until something is imported; [`SessionError::VirtualTime`].
    pub async fn export(&mut self) -> Result<Checkpoint, SessionError> {
        self.export_here().await
    }

    fn export_here(&mut self) -> CompiledHere<'_, Checkpoint> {
        Box::pin(async move {
            if !self.rendezvous.is_whole() {
                return Err(SessionError::Partial);
            }
            let checkpoint = self.export_to_first().await?;
            checkpoint.ok_or(SessionError::Partial)
        })
    }

    /// As [`Session::export`], called in every process: that of rank 0 gets the checkpoint of all ranks, the
    /// others `None`. While rank 0 writes it down the others wait in their next step, no longer than
    /// `deadline_s`: write on another thread, or let the configuration say more. What is too large for one
    /// process is for [`Session::save_parts`].
    ///
    /// # Errors
    /// As [`Session::export`], without [`SessionError::Partial`].
    pub async fn export_to_first(&mut self) -> Result<Option<Checkpoint>, SessionError> {
        self.export_to_first_here().await
    }

    fn export_to_first_here(&mut self) -> CompiledHere<'_, Option<Checkpoint>> {
        Box::pin(async move {
            self.settle().await?;
            self.check_exports()?;
            self.command(Command::Export);
            self.finish().await?;
            let mut handovers: Vec<_> = self.ranks.iter().map(RankThread::handover).collect();
            let plans = self.plans();
            let mut copied: Vec<&mut RankPart> = if self.rendezvous.is_whole() {
                handovers.iter_mut().map(|handover| &mut handover.transfer.own).collect()
            } else {
                // Rank 0 has them all, of every process.
                handovers.iter_mut().take(1).flat_map(|first| &mut first.transfer.gathered).collect()
            };
            let checkpoint = (!copied.is_empty())
                .then(|| Checkpoint::gather(&plans, &self.optimizer_identity, &mut copied));
            handovers.iter_mut().for_each(|handover| handover.forget_weights());
            Ok(checkpoint.transpose()?)
        })
    }

    /// Puts weights in place: masters, moments and step count; planes are quantized anew before
    /// the next step. Carried buffers become what the checkpoint says ([`Checkpoint::carried`]). A session that
    /// waits for that after a [`SessionError::Diverged`] goes on from here.
    ///
    /// A weight that was frozen and trains here begins without moments, and is reported by [`Session::thawed`]; of one
    /// that is frozen here moments are left out. Where the checkpoint has a digest and no values of it, as files
    /// have, the session must have begun with the same.
    ///
    /// A dropped future takes nothing back. Once it was polled with no earlier command under way, the weights
    /// are imported all the same, before whatever is asked next; if they were refused, whatever is asked next
    /// is not done and says so ([`SessionError::Import`]).
    ///
    /// # Errors
    /// [`SessionError::Import`] when names or shapes differ from the session's, or carried buffers are
    /// missing or of another number of ranks, or processes were given different checkpoints; nothing is
    /// changed then, in no process. [`SessionError::DroppedStep`], a poisoned session, [`SessionError::VirtualTime`].
    pub async fn import(&mut self, checkpoint: &Checkpoint) -> Result<(), SessionError> {
        self.import_here(checkpoint, None).await
    }

    /// The weights that were frozen in the session that wrote the checkpoint of the last import, and train here. Their
    /// moments began at zero, and all others kept theirs.
    ///
    /// There is one step count for all, by which bias correction takes these moments for settled ones: the first
    /// updates are too large, up to 6.6 times of a steady gradient with the default betas, until they are as old as
    /// the betas remember. So let the learning rate of these weights warm up ([`Session::set_hyperparameters_of`]).
    #[must_use]
    pub fn thawed(&self) -> &[String] {
        &self.thawed
    }

    /// Puts some weights of a checkpoint in place: those of the session that `takes` names, such as adapters onto
    /// another base, all but a new head, or the layers that a deeper model shares. Every one of them must be in the
    /// checkpoint, in the session's shape. All other weights stay as they are, whether or not the checkpoint has them,
    /// and so do carried buffers. The optimizer begins anew, without moments and steps, because weights of one step
    /// count would have moments of different ages. Called in every process, with the same choice.
    ///
    /// ```no_run
    /// # use warpweft::prelude::*;
    /// # async fn adapters(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
    /// let saved = FileStore::new("adapters.safetensors").load().await?;
    /// session.import_weights(&saved, |weight| weight.starts_with("adapter.")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Session::import`]; [`SessionError::Import`] also when `takes` names no weight, or one that the checkpoint
    /// does not have; [`SessionError::Diverged`] where weights that stay may not be finite. Nothing is changed then.
    pub async fn import_weights(
        &mut self,
        checkpoint: &Checkpoint,
        takes: impl Fn(&str) -> bool,
    ) -> Result<(), SessionError> {
        let taken = self.taken(takes);
        self.import_here(checkpoint, Some(taken)).await
    }

    /// The weights of the session that `takes` names.
    pub(in crate::session) fn taken(&self, takes: impl Fn(&str) -> bool) -> Taken {
        let weights = self.programs.iter().take(1).map(|program| &program.plan.weights);
        let names = weights.flat_map(|weights| {
            let name = |(weight, place)| weights.layout(weight).name_at(place).into_owned();
            weights.in_files().into_iter().map(name)
        });
        names.filter(|name| takes(name)).collect()
    }

    fn import_here<'a>(
        &'a mut self,
        checkpoint: &'a Checkpoint,
        taken: Option<Taken>,
    ) -> CompiledHere<'a, ()> {
        Box::pin(async move {
            self.settle().await?;
            self.check_real("imports")?;
            self.check_usable()?;
            self.copy_now().await?;
            if taken.is_some() {
                self.check_finite()?;
            }
            let (plans, taken) = (self.plans(), taken.as_ref());
            let fits = checkpoint.check(&plans, &self.optimizer_identity, self.ranks() as usize, taken);
            let checked =
                fits.map_err(|reason| SessionError::Import { reason, source: None }).and_then(|()| {
                    for thread in &self.ranks {
                        thread.handover().transfer.own = checkpoint.scatter(&plans, thread.rank(), taken)?;
                    }
                    Ok(())
                });
            let is_whole = self.rendezvous.is_whole();
            if is_whole && checked.is_err() {
                self.ranks.iter().for_each(|thread| thread.handover().forget_weights());
                return checked;
            }
            // Other processes wait for this one's word whatever it thinks of the checkpoint.
            let digest = (!is_whole && checked.is_ok()).then(|| checkpoint.digest_of(taken));
            self.ranks.iter().for_each(|thread| thread.handover().transfer.checkpoint = digest);
            self.refused = checked.err();
            self.thawing = checkpoint.thawed(&plans, taken);
            self.command(Command::Import);
            let outcome = self.finish().await;
            let imported = self.imported();
            outcome.and(imported)
        })
    }

    /// What became of an import that all ranks have replied to. That it was refused is said once.
    pub(in crate::session) fn imported(&mut self) -> Result<(), SessionError> {
        let of_rank = self.refusal().map(|(rank, source)| (format!("{rank}: {source}"), Some(source)));
        let mut told = None;
        for thread in &self.ranks {
            let mut handover = thread.handover();
            handover.forget_weights();
            told = told.or(handover.transfer.refused.take());
        }
        let told = of_rank.or(told.map(|reason| (reason, None)));
        // What this process found says more than what it reported to the others.
        let refused =
            self.refused.take().or(told.map(|(reason, source)| SessionError::Import { reason, source }));
        match refused {
            Some(refused) => {
                self.thawing.clear();
                Err(refused)
            }
            None => {
                self.thawed = std::mem::take(&mut self.thawing);
                if !self.thawed.is_empty() {
                    let weights = listed("`", &self.thawed);
                    tracing::warn!(
                        %weights,
                        "moments and other state of weights that were frozen begin at zero, beside the step count of all \
                         others; let their learning rate warm up (`Session::set_hyperparameters_of`)"
                    );
                }
                self.diverged = None;
                self.skips = Skips::default();
                self.sum = Sum::default();
                Ok(())
            }
        }
    }
}
