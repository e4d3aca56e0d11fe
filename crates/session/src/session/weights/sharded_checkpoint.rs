//! Saves sharded checkpoints and resumes from them.
//!
//! Law: both are commands to all ranks at a step boundary, called in every process (CK-2).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::checkpoint::ranks::{PartReader, PartWriter};
use crate::checkpoint::sharded::{Import, Refused, Save};
use crate::checkpoint::{CheckpointError, PartFiles, SavedExperts, SavedParts, Taken};
use crate::exec::{Command, Refusal};
use crate::session::dropped::Asks;
use crate::session::{CompiledHere, Session, SessionError};
use warpweft_plan::layout::WeightLayout;
use warpweft_plan::model::Placement;
use warpweft_plan::plan::StepPlan;
use warpweft_plan::policy::Reduce;

impl Session {
    /// Saves masters, moments, step count, delayed scales and carried buffers: every rank writes what it owns, and
    /// the process of rank 0 then the index. Called in every process, with the same folder, which holds no
    /// checkpoint yet. When it returns in one process, it is whole and on the disk for all; `notes` are those of
    /// the process of rank 0.
    ///
    /// All ranks write at the same time and wait for the slowest, for as long as it takes: a rank that writes says
    /// so again and again, and `deadline_s` ends the wait only for one that writes nothing for that long. So nobody
    /// is in its next step meanwhile, unlike with [`Session::export_to_first`].
    ///
    /// It also saves after a closure panicked, as [`Session::export`] does. If the future is dropped, the save
    /// goes on in the background; if it fails then, whatever is asked next is not done and says so.
    ///
    /// # Errors
    /// [`SessionError::Parts`] in every process with the first rank that could not save and why, by its kind
    /// ([`CheckpointError`]) in the process of that rank: a folder that holds a checkpoint, cannot be written or is not
    /// shared by all hosts. The session is as it was, files of this save are removed, and other files are as they
    /// were. (Parts stay where the disk failed so that the index may be there all the same; the error says so.)
    /// [`SessionError::Diverged`]; [`SessionError::DroppedStep`]; [`SessionError::Poisoned`] after a rank died or
    /// failed otherwise; [`SessionError::VirtualTime`].
    pub async fn save_parts(
        &mut self,
        files: &PartFiles,
        notes: &BTreeMap<String, String>,
    ) -> Result<(), SessionError> {
        self.save_parts_here(files, notes).await
    }

    fn save_parts_here<'a>(
        &'a mut self,
        files: &'a PartFiles,
        notes: &'a BTreeMap<String, String>,
    ) -> CompiledHere<'a, ()> {
        Box::pin(async move {
            self.settle().await?;
            self.check_exports()?;
            let save = Save::new(files, notes.clone(), self.plans(), self.optimizer_identity.clone());
            let writer: Arc<dyn PartWriter> = Arc::new(save);
            // Copies are made in the order of their saves.
            if writer.follows().is_some() {
                self.finish_save_for(Asks::More).await?;
            }
            for thread in &self.ranks {
                thread.handover().part.writer = Some(Arc::clone(&writer));
            }
            self.command(Command::SavePart);
            self.finish().await?;
            self.saved()?;
            self.follow_save(writer);
            Ok(())
        })
    }

    /// What became of a save that all ranks have replied to. That it failed is said once.
    pub(in crate::session) fn saved(&mut self) -> Result<(), SessionError> {
        let refused = |(rank, source)| Err(SessionError::Parts { rank, source, dropped: None });
        self.refusal().map_or(Ok(()), refused)
    }

    /// The first rank that refused what all ranks have replied to: by its kind, where it is of this process.
    pub(in crate::session) fn refusal(&mut self) -> Option<Refusal> {
        let refusals = self.ranks.iter().filter_map(|thread| thread.handover().part.refusal.take());
        // Of one that was reported to several, all say the same.
        refusals
            .reduce(|one, other| if matches!(one.1, CheckpointError::OtherRank { .. }) { other } else { one })
    }

    /// Puts in place what [`Session::save_parts`] saved, on any number of ranks and processes: every rank reads the
    /// rows that it owns and nothing else, but delayed scales from the part of rank 0. Called in every process, with a
    /// folder of the same files. Planes are quantized anew before the next step. A session that waits for weights after
    /// a [`SessionError::Diverged`] goes on from here. Returns what the checkpoint says of itself.
    ///
    /// Carried buffers need as many ranks as saved them, as with [`Session::import`]; see
    /// [`PartFiles::carried_zeros`]. A dropped future takes nothing back, as there.
    ///
    /// # Errors
    /// [`SessionError::Import`] in every process, as of [`Session::import`], and when there is no checkpoint in the
    /// folder, or a part that a rank needs is missing, torn or of another save; its source is then a
    /// [`CheckpointError`]. Nothing is changed then, in no process. [`SessionError::DroppedStep`], a poisoned session,
    /// [`SessionError::VirtualTime`].
    pub async fn import_parts(&mut self, files: &PartFiles) -> Result<SavedParts, SessionError> {
        self.import_parts_here(files, None).await
    }

    /// As [`Session::import_weights`], from parts: the weights of the session that `takes` names, of which every rank
    /// reads its rows. Called in every process, with the same choice.
    ///
    /// # Errors
    /// As [`Session::import_parts`] and [`Session::import_weights`].
    pub async fn import_weights_of_parts(
        &mut self,
        files: &PartFiles,
        takes: impl Fn(&str) -> bool,
    ) -> Result<SavedParts, SessionError> {
        let taken = self.taken(takes);
        self.import_parts_here(files, Some(taken)).await
    }

    fn import_parts_here<'a>(
        &'a mut self,
        files: &'a PartFiles,
        taken: Option<Taken>,
    ) -> CompiledHere<'a, SavedParts> {
        Box::pin(async move {
            self.settle().await?;
            self.check_real("imports")?;
            self.check_usable()?;
            self.copy_now().await?;
            if taken.is_some() {
                self.check_finite()?;
            }
            let judged =
                Import::open(files, self.plans(), self.ranks() as usize, &self.optimizer_identity, taken);
            let mut scaled_otherwise = None;
            let (reader, saved): (Arc<dyn PartReader>, _) = match judged {
                Ok(import) => {
                    let saved = import.saved();
                    scaled_otherwise = import.scaled_otherwise();
                    self.thawing = import.thawed();
                    (Arc::new(import), Ok(saved))
                }
                Err(error) if self.rendezvous.is_whole() => return Err(refused(error)),
                // Other processes wait for this one's word.
                Err(error) => {
                    self.refused = Some(refused(error.clone()));
                    (Arc::new(Refused(error.clone())), Err(refused(error)))
                }
            };
            for thread in &self.ranks {
                thread.handover().part.reader = Some(Arc::clone(&reader));
            }
            self.command(Command::ImportPart);
            let outcome = self.finish().await;
            let imported = self.imported();
            outcome?;
            // What this process found says more than what the others got of it.
            let saved = saved?;
            imported?;
            self.warn_of_other_sums(&saved);
            if let Some(weight) = scaled_otherwise {
                tracing::warn!(
                    saved_scale_groups = ?saved.scale_groups,
                    "`{weight}` shares its scale of the tensor with other weights than in the run that was saved, and is \
                     quantized otherwise; to go on with its bits set scale_group to what was saved"
                );
            }
            Ok(saved)
        })
    }

    /// Says so if as many ranks as saved will not go on with the bits of their run.
    fn warn_of_other_sums(&self, saved: &SavedParts) {
        let Some(plan) = self.programs.first().map(|program| &program.plan) else { return };
        if !sums_otherwise(plan, saved) {
            return;
        }
        let mesh = plan.weights.mesh;
        let experts = SavedExperts::of(&plan.weights);
        let (what, keys) = if saved.tensor != mesh.tensor() {
            (
                "products and gradients are summed over other tensor-parallel ranks",
                "mesh.tp, mesh.dp_replicate and mesh.levels",
            )
        } else if saved.experts != experts {
            (
                "gradients of experts are summed over other ranks",
                "mesh.ep, mesh.ep_shard, mesh.dp_replicate and mesh.levels",
            )
        } else {
            (
                "gradients are summed over other replicas or in other blocks of ranks",
                "optimizer.shard, mesh.dp_replicate, mesh.optimizer_instances and mesh.levels",
            )
        };
        tracing::warn!(
            saved_replicas = ?saved.replicas,
            saved_tp = saved.tensor,
            saved_experts = ?saved.experts,
            saved_optimizer_instances = saved.optimizer_instances,
            saved_levels = ?saved.levels,
            replicas = mesh.replicas(),
            tp = mesh.tensor(),
            ?experts,
            optimizer_instances = plan.weights.instances(),
            levels = ?mesh.levels().blocks(),
            "{what} than in the run that was saved, and round otherwise; to go on with its bits set {keys} to those that \
             were saved"
        );
    }
}

/// Does this plan add gradients in another order than as many ranks that saved? Those of weights that train are added
/// in levels, and those of sharded ones in replicas and optimizer instances too; what NCCL sums has none of these.
fn sums_otherwise(plan: &StepPlan, saved: &SavedParts) -> bool {
    let mesh = plan.weights.mesh;
    if saved.ranks != mesh.ranks() {
        return false;
    }
    if saved.tensor != mesh.tensor() {
        // Products are summed in another order, whichever weights train and however gradients are reduced.
        return true;
    }
    if saved.experts != SavedExperts::of(&plan.weights) {
        // The tokens of other ranks are in one product.
        return true;
    }
    let in_other_levels = |ranks: u32| {
        let below = |blocks: &[u32]| blocks.iter().filter(|block| **block < ranks).count();
        let (saved, own) = (&saved.levels[..], mesh.levels());
        saved[..below(saved)] != own.blocks()[..below(own.blocks())]
    };
    let of_replica = (mesh.ranks() / mesh.replicas()).max(mesh.expert() * mesh.expert_shards());
    let in_other_replicas = saved.replicas.is_some_and(|replicas| replicas != mesh.replicas());
    let in_other_instances = saved.optimizer_instances != plan.weights.instances();
    let is_summed_otherwise = |layout: &WeightLayout| match layout.placement {
        Placement::Sharded => in_other_levels(of_replica) || in_other_replicas || in_other_instances,
        Placement::Replicated => in_other_levels(mesh.ranks()),
    };
    let mut trained = plan.weights.layouts.iter().filter(|layout| !layout.frozen);
    plan.policy.reduce == Reduce::Ordered && trained.any(is_summed_otherwise)
}

/// What an import says that found no checkpoint, or none that fits.
fn refused(error: CheckpointError) -> SessionError {
    SessionError::Import { reason: error.to_string(), source: Some(error) }
}
