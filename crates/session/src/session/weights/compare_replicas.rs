//! Checks that replicas are bit-identical.
//!
//! Law: this only looks. Nothing is mended, because nobody can say which copy is right: that is for whoever imports a
//! checkpoint.

use crate::exec::{Command, Unequal};
use crate::session::{CompiledHere, Session, SessionError};

impl Session {
    /// Compares, bit for bit, what several ranks hold of the same weights: the shards of all replicas, and replicated
    /// weights on all ranks; masters, and the moments or lists of state beside them. Called in every process.
    ///
    /// Training leaves them equal, for ranks sum in one order. Two things may part them, for which nothing else
    /// looks: a [custom optimizer](warpweft_plan::compute::Optimizer) that adds up in no fixed order, and memory that
    /// fails. This copies all of it to the host, at the pace of [`Session::save_parts`], so it is for every so many
    /// steps. Without replicas and replicated weights there is nothing to compare. Quantized planes are compared where
    /// they are all there is, of frozen weights; those of others are made anew in every step.
    ///
    /// # Errors
    /// [`SessionError::ReplicasDiffer`] in every process; the session changes nothing and may go on.
    /// [`SessionError::DroppedStep`], a poisoned session, [`SessionError::VirtualTime`]; where another process
    /// does something else the session is poisoned.
    pub async fn compare_replicas(&mut self) -> Result<(), SessionError> {
        self.compare_replicas_here().await
    }

    fn compare_replicas_here(&mut self) -> CompiledHere<'_, ()> {
        Box::pin(async move {
            self.check_real("compares")?;
            self.settle().await?;
            self.check_usable()?;
            self.command(Command::CompareReplicas);
            self.finish().await?;
            let found = self.ranks.iter().find_map(|thread| thread.handover().part.unequal.take());
            // All programs have the same weights, and without a program there is none that could differ.
            let Some((found, program)) = found.zip(self.programs.first()) else { return Ok(()) };
            let (Unequal { weight, part, first, other }, weights) = (found, &program.plan.weights);
            let layout = weights.layout(weight);
            let list =
                if layout.is_planes_alone() { "quantized plane" } else { part.in_words(weights.state) };
            let weight = layout.name.clone();
            Err(SessionError::ReplicasDiffer { steps: self.steps, weight, part, list, rank: first, other })
        })
    }
}
