//! Sharded checkpoints: a folder in which every rank has a file of its own.
//!
//! Laws:
//! - **CK-1** A folder is a checkpoint only with its index, which is written last, once every part is on the disk. No
//!   save changes or replaces a file of another, so a checkpoint that is there stays whole whatever fails.
//! - **CK-2** All ranks, in all processes, save or none does, and all import or none does. An import is judged whole
//!   before it changes anything, and who refused is named to all.
//! - **CK-3** No process holds more than what its ranks own: a save has one list of values of each of its ranks in
//!   memory, an import the rows of its ranks and, of each, a block.
//! - **CK-4** What is imported or loaded is what was saved, byte for byte. The index has a digest of itself and of the
//!   header of every part, and a header one of every block of its tensors; whoever reads compares. What changed on the
//!   way is refused by file and tensor, before anything is changed. (A checkpoint of version 1 has no digests.)
//! - **CK-5** What a save left that was killed, or whose ranks could not agree on its end, is removed by the next save
//!   into the folder, if it is provably a save's that can end no more: the index that it began and its parts are files
//!   of the dead (WF-1). What lives, what others put
//!   there and what cannot be proven stays.
//! - **CK-6** A save in the background has the state of the step boundary at which it began, whatever steps do
//!   meanwhile. One is under way at a time, and what became of it is said once. A session that ends waits for it, or
//!   leaves nothing of it.
//!
//! It does not matter how many ranks wrote a checkpoint, in how many replicas, or with which tensor parallelism: it has
//! the first replica's rows, and of every rank its carried buffers. Quantized planes are not in it, because a session
//! makes them again.
//!
//! | file | idea |
//! |---|---|
//! | `save`, `write_part` | a save, and a rank's part on its way into its file |
//! | `index`, `indexed_cut` | the file that makes a checkpoint of parts |
//! | `read_part`, `block_digests` | a part, whose blocks are compared with their digests before anybody sees them |
//! | `rows_of_parts` | a block of a weight from whichever parts have something of it |
//! | `import`, `whole` | into ranks; into one checkpoint, or a file of weights alone |
//! | `plain_weights` | its masters in pieces, for a conversion |
//! | `killed_saves` | what a save left that was killed |
//! | `keep_last` | older checkpoints of a run |
//! | `copy` | a second copy of a checkpoint |
//! | `folder` | where saves and copies may go |

mod block_digests;
mod copy;
mod folder;
mod import;
mod index;
mod indexed_cut;
mod keep_last;
mod killed_saves;
mod plain_weights;
mod read_part;
mod rows_of_parts;
mod save;
mod whole;
mod write_part;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{CheckpointError, OptimizerIdentity};
use index::Index;
use warpweft_plan::layout::Weights;

pub(crate) use import::{Import, Refused};
pub(crate) use save::Save;

/// Bytes that are written at once.
const PIECE: usize = 16 << 20;

/// Bytes after which the disk is waited for, so that nobody waits for all of them at the end.
const UNSETTLED: usize = 16 * PIECE;

/// A checkpoint in a folder, in one file for each rank that saved it, and an index.
///
/// It is for models whose state does not fit into one process, and for saves that are to take as long as the slowest
/// rank's part. [`Session::save_parts`](crate::session::Session::save_parts) writes it, and
/// [`Session::import_parts`](crate::session::Session::import_parts) reads it on any number of ranks: each rank reads
/// the rows that it owns, from the files that have them, and opens no others, but that of rank 0 where scaling is
/// delayed. Where processes are on several hosts, the folder is on a file system that all of them share.
///
/// A folder holds one checkpoint and is never written over; keep one for each saved step, and remove old ones.
/// `checkpoint.json` is the index: without it, or with an empty one, the folder is no checkpoint, but what an
/// interrupted save left. An empty one is in the way of a save; remove it. The part of a rank is
/// `rank-<N>-of-<ranks>-<save>.safetensors`, where `<save>` is the same sixteen hexadecimal digits for all files of a
/// save. Per weight it has `<weight>.master`, `.exp_avg` and `.exp_avg_sq`, f32 `[rows, cols]` of the rank's rows; of
/// what a custom optimizer updates as many lists as it keeps, and of a frozen weight nothing, as the index has
/// a digest of it. The rows
/// of all parts, one after the other in rank order, are the weight. Where tensor parallelism cut it, the index says so
/// (`cut`): of `ranks` parts of its rows or columns, rank `n` has rows of part `n % ranks`, and those of each part, in
/// rank order, are the part. That of rank 0 also has `.delayed_scale` and
/// `.amax_history` where scaling is delayed. Per carried buffer there is `carried.<buffer>.rank<N>`, bytes.
///
/// Every file says of which save and optimizer step it is, and has digests, so a bit that changed is refused by file
/// and tensor. The metadata of a part has `digests`: of every 2^20 bytes of each tensor, in the order of the file, the
/// first eight bytes of SHA-256, as sixteen hexadecimal digits from the last byte to the first. The index has such
/// `digests` of the headers of all parts (what a safetensors file holds between its length and its tensors), and as its
/// last entry the `digest` of all bytes before the comma that precedes that entry. They are against worn disks and torn
/// copies, and no signature. Version 1 had none, and version 2 the masters of frozen weights; such files are read
/// as they are. Version 3 has no weight that is cut, and is still written where none is.
///
/// ```
/// use warpweft::prelude::*;
/// use warpweft::session::block_on;
///
/// async fn start(ranks: u32) -> Result<Session, SessionError> {
///     let mut model = Model::builder();
///     let weight = model.sharded("map", 64, 32, Format::NVFP4_2D)?;
///     let mut program = StepProgram::builder("train", &model.build());
///     let call = program.call("shrink", Phase::Backward).uses_dense(weight);
///     call.gradient(weight).add()?;
///     let shrink = on_cpu(|_, context| {
///         let values = context.dense_named("map")?;
///         Ok(context.gradient_named("map")?.copy_from_slice(&values))
///     });
///     let builder = Session::builder(Config::default(), move |_| shrink).program(program.build_training()?);
///     builder.initialize(warpweft::session::initial::normal(17, 0.02)).start_cpu(ranks).await
/// }
///
/// # let folder = tempfile::tempdir()?;
/// # let runs = folder.path();
/// block_on(async {
///     let mut session = start(4).await?;
///     session.step("train").await?;
///     let files = PartFiles::new(runs.join("step-1"));
///     session.save_parts(&files, &[("seed".into(), "17".into())].into()).await?;
///
///     let mut smaller = start(3).await?;
///     let saved = smaller.import_parts(&files).await?;
///     assert_eq!((saved.optimizer_step, saved.ranks, saved.notes["seed"].as_str()), (1, 4, "17"));
///     assert_eq!(smaller.export().await?.weights, session.export().await?.weights);
///     # Ok::<(), SessionError>(())
/// })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartFiles {
    folder: PathBuf,
    restarts: bool,
    zeros: bool,
    keeps: Option<usize>,
    copy: Option<PathBuf>,
    /// The state whose values are taken for masters.
    state: Option<String>,
}

/// The description of a sharded checkpoint, from its index.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedParts {
    /// Optimizer steps taken.
    pub optimizer_step: u32,
    /// What updated the weights, as in [`Checkpoint::optimizer_identity`](super::Checkpoint::optimizer_identity).
    pub optimizer_identity: Option<OptimizerIdentity>,
    /// Ranks that saved it.
    pub ranks: u32,
    /// Replicas of the model that they held (`mesh.dp_replicate`); `None` where an earlier version saved.
    pub replicas: Option<u32>,
    /// Ranks of their tensor-parallel groups (`mesh.tp`); 1 where there were none.
    pub tensor: u32,
    /// Optimizer instances that kept slices of state (`mesh.optimizer_instances`); 1 where replicas had no slices.
    pub optimizer_instances: u32,
    /// How they shared experts; `None` where experts were sharded as other weights.
    pub experts: Option<SavedExperts>,
    /// Ranks of the blocks in which they summed gradients (`mesh.levels`); none where they summed in rank order.
    pub levels: Vec<u32>,
    /// The weights that shared a scale of the tensor, by their scale groups (`scale_group` in a rule of
    /// `[[weights]]`).
    pub scale_groups: BTreeMap<String, Vec<String>>,
    /// What the user kept beside the weights, as in [`Checkpoint::notes`](super::Checkpoint::notes).
    pub notes: BTreeMap<String, String>,
}

/// The axes of the experts of a sharded checkpoint (`mesh.ep` and `mesh.ep_shard`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedExperts {
    /// Ranks that shared the experts.
    pub ep: u32,
    /// Ranks that each expert was sharded over.
    pub ep_shard: u32,
}

impl SavedExperts {
    /// Those of the experts among these weights; `None` if there are none, or they are sharded as other weights are.
    pub(crate) fn of(weights: &Weights) -> Option<Self> {
        let axes = Self { ep: weights.mesh.expert(), ep_shard: weights.mesh.expert_shards() };
        weights.layouts.iter().any(|layout| layout.shard.expert.is_some()).then_some(axes)
    }
}

impl PartFiles {
    /// Those in `folder`, which need not be there yet.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), restarts: false, zeros: false, keeps: None, copy: None, state: None }
    }

    /// The same files, of which an import begins with an optimizer that took no steps and has no moments; as
    /// [`Checkpoint::restart_optimizer`](super::Checkpoint::restart_optimizer). A save does not heed it.
    #[must_use]
    pub fn restart_optimizer(self) -> Self {
        Self { restarts: true, ..self }
    }

    /// The same files, whose weights are those that a state of the optimizer is, for an import by an optimizer that
    /// begins anew, and for [`PartFiles::load`] and [`PartFiles::save_weights`]; as
    /// [`Checkpoint::weights_of_state`](super::Checkpoint::weights_of_state), which names the errors. A save does not
    /// heed it.
    #[must_use]
    pub fn weights_of_state(self, name: impl Into<String>) -> Self {
        Self { restarts: true, state: Some(name.into()), ..self }
    }

    /// The same files, of which an import lets all carried buffers begin anew; as
    /// [`Carried::Zeros`](super::Carried::Zeros). A save does not heed it.
    #[must_use]
    pub fn carried_zeros(self) -> Self {
        Self { zeros: true, ..self }
    }

    /// The same files, of which a save, once it has become a checkpoint, leaves the last `checkpoints` of its run and
    /// removes older ones: those in folders beside it that are named like it, with a lower number at the end, as
    /// `step-100` is beside `step-200`. At least the new one stays. What is no checkpoint, one with other files in its
    /// folder, and one with a higher number stay as well, and so does what cannot be removed, of which there is a
    /// warning in the log. A save into a folder whose name ends in no number is refused. An import does not heed it.
    #[must_use]
    pub fn keep_last(self, checkpoints: usize) -> Self {
        Self { keeps: Some(checkpoints), ..self }
    }

    /// The same files, of which a save that has become a checkpoint makes a second copy in `folder`, such as one on a
    /// file system that outlives the host. The process of rank 0 makes it on a thread of its own, also of a save for
    /// which training waited, and no call waits for it but the end of the session. A copy that failed is said in the
    /// log at once and by [`Session::close`](crate::session::Session::close); the checkpoint itself stays whole.
    /// [`PartFiles::keep_last`] holds for copies too, and older checkpoints go once the new one is copied. A folder
    /// that has a checkpoint is refused, and so is that of the checkpoint itself. An import does not heed it.
    #[must_use]
    pub fn copied_into(self, folder: impl Into<PathBuf>) -> Self {
        Self { copy: Some(folder.into()), ..self }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Is a checkpoint there, or something in the place of its index, so that no save can go into this folder? Whether
    /// it can be read says [`PartFiles::saved`].
    #[must_use]
    pub fn is_taken(&self) -> bool {
        Index::is_there(&self.folder)
    }

    /// The description of the checkpoint. Reads the index and no part.
    ///
    /// # Errors
    /// [`CheckpointError::Parts`] when there is no checkpoint in the folder, or its index is damaged.
    pub fn saved(&self) -> Result<SavedParts, CheckpointError> {
        let (index, _) = Index::read(&self.folder).map_err(CheckpointError::in_parts)?;
        Ok(SavedParts::of(index))
    }
}

impl SavedParts {
    fn of(index: Index) -> Self {
        let Index {
            optimizer_step,
            optimizer_identity,
            ranks,
            replicas,
            tensor,
            optimizer_instances,
            levels,
            weights,
            notes,
            ..
        } = index;
        let experts = weights
            .iter()
            .find_map(|weight| Some(SavedExperts { ep: weight.expert?.ranks, ep_shard: weight.parts }));
        let tensor = tensor.unwrap_or(1);
        let mut scale_groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for weight in weights {
            if let Some(group) = weight.scale_group {
                scale_groups.entry(group).or_default().push(weight.name);
            }
        }
        Self {
            optimizer_step,
            optimizer_identity,
            ranks,
            replicas,
            tensor,
            experts,
            optimizer_instances: optimizer_instances.unwrap_or(1),
            levels,
            scale_groups,
            notes,
        }
    }
}
