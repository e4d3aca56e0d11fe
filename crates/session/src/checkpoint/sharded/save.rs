//! Saves a sharded checkpoint: parts on their way into a folder.
//!
//! Law: every rank writes its own file, from its memory, one list of values at a time. The index comes last, when
//! every part was seen in the folder by the process that writes it; so a folder that hosts do not share is found out.
//! A save that fails removes its own files; but where its index may be there, parts stay, and where its ranks could not
//! agree on its end, they stay for the next save to remove. It touches no files of
//! others, but those that a killed save left, which provably can end no more (CK-5).

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use safetensors::tensor::Dtype;

use super::index::{self, Index, IndexedBuffer, IndexedWeight};
use super::indexed_cut::{IndexedCut, IndexedExpert};
use super::read_part::Part;
use super::{PIECE, PartFiles, UNSETTLED, block_digests, write_part};
use super::{copy, folder, keep_last, killed_saves};
use crate::checkpoint::ranks::{PartWriter, RankState, SaveId};
use crate::checkpoint::safetensors::TensorFileError;
use crate::checkpoint::safetensors::tensor::Tensor;
use crate::checkpoint::{CheckpointError, FileTask, OptimizerIdentity, StatePart, tensors};
use warpweft_base::digest::Digest;
use warpweft_base::errors::shown_path;
use warpweft_base::id::{CarriedId, RankId, WeightId};
use warpweft_base::whole_file::{Held, WholeFile, regular, remove};
use warpweft_plan::plan::{StepPlan, carried};

/// One save.
#[derive(Debug)]
pub(crate) struct Save {
    folder: PathBuf,
    notes: BTreeMap<String, String>,
    programs: Vec<Arc<StepPlan>>,
    optimizer_identity: OptimizerIdentity,
    /// How many checkpoints of the run are kept, if not all.
    keeps: Option<usize>,
    /// Where a second copy of it goes.
    copy: Option<PathBuf>,
    unfinished: Mutex<SaveFiles>,
}

/// What says that the save has not ended (CK-5), as long as it lives.
#[derive(Debug, Default)]
struct SaveFiles {
    /// In the process of rank 0, from before any part is written.
    index: Option<WholeFile>,
    /// Of the parts of this process, until their ranks know the end.
    parts: HashMap<RankId, Held>,
}

impl Save {
    pub(crate) fn new(
        files: &PartFiles,
        notes: BTreeMap<String, String>,
        programs: Vec<Arc<StepPlan>>,
        optimizer_identity: OptimizerIdentity,
    ) -> Self {
        let (folder, keeps, copy) = (files.folder.clone(), files.keeps, files.copy.clone());
        Self { folder, notes, programs, optimizer_identity, keeps, copy, unfinished: Mutex::default() }
    }

    /// Begins the index, which is none before it has its name.
    fn begin_index(&self) -> Result<(), CheckpointError> {
        killed_saves::remove(&self.folder);
        let path = Index::path(&self.folder);
        let file = WholeFile::begin(&path).map_err(|source| failed(&path, source))?;
        self.unfinished().index = Some(file);
        Ok(())
    }

    fn unfinished(&self) -> MutexGuard<'_, SaveFiles> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self) -> Result<&StepPlan, CheckpointError> {
        let none = || CheckpointError::other("the session has no program");
        self.programs.first().map(AsRef::as_ref).ok_or_else(none)
    }

    fn ranks(&self) -> Result<u32, CheckpointError> {
        Ok(self.plan()?.weights.mesh.ranks())
    }

    /// What `state` has, as the tensors of its part.
    fn tensors<'a>(&'a self, state: &'a dyn RankState) -> Result<Vec<Tensor<'a>>, CheckpointError> {
        let (rank, weights) = (state.rank(), &self.plan()?.weights);
        let mut tensors = Vec::new();
        for (number, layout) in weights.layouts.iter().enumerate() {
            let weight = WeightId::at(number);
            // Unless replicas have slices, ranks of the first have all, and come first. Of a frozen weight the
            // index has a digest.
            if layout.frozen || rank.number() >= layout.shard.owners() {
                continue;
            }
            let (rows, cols) = (layout.shard.rows_of(rank).rows, layout.shard.shape.cols);
            let parts = StatePart::kept(weights.lists_of(layout));
            for part in parts.filter(|_| rows > 0) {
                let (name, fetch) =
                    (tensors::state_name(&layout.name_at(rank), part), move || state.rows(weight, part));
                tensors.push(Tensor::later(name, Dtype::F32, vec![rows, cols], fetch));
            }
            if rank == layout.place_of(rank)
                && let Some(delayed) = state.delayed(weight).map_err(CheckpointError::other)?
            {
                let [scale, history] = tensors::delayed_names(&layout.name_at(rank));
                let length = delayed.history.len();
                tensors.push(Tensor::later(scale, Dtype::F32, vec![1], move || Ok(vec![delayed.scale])));
                let fetch = move || Ok(delayed.history.clone());
                tensors.push(Tensor::later(history, Dtype::F32, vec![length], fetch));
            }
        }
        for (place, (name, region)) in carried(&self.programs).into_iter().enumerate() {
            let name = tensors::carried_name(name, rank.index());
            let fetch = move || state.carried(CarriedId::at(place));
            tensors.push(Tensor::later(name, Dtype::U8, vec![region.bytes], fetch));
        }
        Ok(tensors)
    }

    /// The index, once every part was seen.
    fn checked(
        &self,
        save: SaveId,
        parts: &[u64],
        state: &dyn RankState,
    ) -> Result<Vec<u8>, CheckpointError> {
        let described = self.index(save, parts, state)?;
        all_wrote(parts.len(), described.ranks)?;
        for rank in (0..described.ranks).map(RankId::new) {
            let path = described.part(&self.folder, rank);
            Part::open(path, &described, rank).map_err(|error| match error {
                CheckpointError::Missing { .. } => {
                    CheckpointError::NotShared { wrote: rank, looks: state.rank(), source: Box::new(error) }
                }
                error => error,
            })?;
            state.alive().map_err(CheckpointError::other)?;
        }
        let path = Index::path(&self.folder);
        let text = described.text().map_err(|error| failed(&path, error.into()))?;
        if text.len() as u64 > index::MOST_BYTES {
            return Err(failed(&path, io::Error::new(io::ErrorKind::FileTooLarge, index::TOO_LARGE)));
        }
        Ok(text)
    }

    /// The index of parts whose headers have these digests.
    fn index(&self, save: SaveId, parts: &[u64], state: &dyn RankState) -> Result<Index, CheckpointError> {
        let weights = &self.plan()?.weights;
        let indexed = weights.in_files().into_iter().map(|(weight, place)| {
            let layout = weights.layout(weight);
            IndexedWeight {
                name: layout.name_at(place).into_owned(),
                format: layout.format,
                rows: layout.shard.whole().rows,
                cols: layout.shard.whole().cols,
                parts: layout.shard.ranks,
                rows_per_part: layout.shard.rows_per_rank,
                cut: IndexedCut::of(&layout.shard),
                expert: layout.shard.expert.map(|ranks| IndexedExpert { ranks, place: place.number() }),
                slices: layout.shard.slices,
                lists: weights.lists_of(layout) as u8,
                delayed: weights.delayed(layout.bucket).is_some(),
                scale_group: weights.scale_group_at(weight, place),
                frozen: state.frozen(weight),
            }
        });
        let buffers = carried(&self.programs).into_iter();
        Ok(Index {
            optimizer_step: state.optimizer_step().map_err(CheckpointError::other)?,
            optimizer_identity: Some(self.optimizer_identity.clone()),
            replicas: Some(weights.mesh.replicas()),
            tensor: Some(weights.mesh.tensor()).filter(|ranks| *ranks > 1),
            optimizer_instances: Some(weights.instances()).filter(|instances| *instances > 1),
            levels: weights.mesh.levels().blocks().to_vec(),
            weights: indexed.collect(),
            carried: buffers
                .map(|(name, region)| IndexedBuffer { name: name.to_owned(), bytes: region.bytes })
                .collect(),
            notes: self.notes.clone(),
            digests: block_digests::text(parts),
            ..self.bare(save)?
        })
    }

    /// An index without weights, of the version that this save needs.
    fn bare(&self, save: SaveId) -> Result<Index, CheckpointError> {
        let weights = &self.plan()?.weights;
        let warpweft_parts = index::version_of(weights.layouts.iter().map(|layout| &layout.shard));
        Ok(Index { warpweft_parts, ..Index::bare(save, weights.mesh.ranks()) })
    }
}

impl PartWriter for Save {
    fn begin(&self, rank: RankId) -> Result<u64, CheckpointError> {
        folder::check_free(&self.folder)?;
        let mut unnumbered = [Some(&self.folder), self.copy.as_ref()].into_iter().flatten();
        if let Some(folder) =
            unnumbered.find(|folder| self.keeps.is_some() && !keep_last::is_numbered(folder))
        {
            return Err(CheckpointError::other(format!(
                "{} does not end in a number, by which older checkpoints are known (keep_last); name it by its step, as \
                 step-100",
                shown_path(folder)
            )));
        }
        folder::make(&self.folder)?;
        if rank == RankId::new(0) {
            if let Some(copy) = &self.copy {
                copy::begin(&self.folder, copy)?;
            }
            self.begin_index()?;
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // The standard library's keys, which are random and others for every call: clocks may stand still.
        let random = RandomState::new().build_hasher().finish();
        let mut digest = Digest::default();
        digest.add(&random.to_le_bytes());
        digest.add(&now.as_nanos().to_le_bytes());
        digest.add(&std::process::id().to_le_bytes());
        digest.add(&rank.number().to_le_bytes());
        Ok(digest.short())
    }

    fn write(&self, save: SaveId, state: &dyn RankState) -> Result<u64, CheckpointError> {
        let (rank, optimizer_step) = (state.rank(), state.optimizer_step().map_err(CheckpointError::other)?);
        let index = Index { optimizer_step, ..self.bare(save)? };
        let path = index.part(&self.folder, rank);
        // Of a name with the save in it no other save left anything.
        let file = WholeFile::begin_new(&path).map_err(|source| failed(&path, source))?;
        let mut steady = Steady { file, state, unsettled: 0 };
        let tensors = self.tensors(state)?;
        let digest =
            write_part::write(&tensors, index.about(rank), &mut steady).map_err(|error| match error {
                TensorFileError::File(source) => failed(&path, source),
                TensorFileError::Invalid(error) => {
                    CheckpointError::other(format!("{} cannot be written: {error}", shown_path(&path)))
                }
            })?;
        let held = steady.file.commit_held().map_err(|source| failed(&path, source))?;
        self.unfinished().parts.extend(held.map(|held| (rank, held)));
        Ok(digest)
    }

    fn complete(&self, save: SaveId, parts: &[u64], state: &dyn RankState) -> Result<(), CheckpointError> {
        let path = Index::path(&self.folder);
        let text = self.checked(save, parts, state)?;
        let begun = self.unfinished().index.take();
        let put = || {
            let mut file = begun.map_or_else(|| WholeFile::begin(&path), Ok)?;
            file.write_all(&text)?;
            file.commit_as(false)
        };
        put().map_err(|source| {
            let is_taken = source.kind() == io::ErrorKind::AlreadyExists;
            let reason = if is_taken { folder::taken(&path) } else { failed(&path, source) };
            // Also one that is taken, by this save itself: a file system may do a thing twice that it did not notice.
            taken_back(&path, &text, reason)
        })?;
        // What is still to be copied stays until it is.
        if let Some(keep) = self.keeps.filter(|_| self.copy.is_none()) {
            keep_last::remove_older(&self.folder, keep, &|| state.alive());
        }
        Ok(())
    }

    fn follows(&self) -> Option<String> {
        self.copy
            .as_ref()
            .map(|copy| format!("into {}, a copy of {},", shown_path(copy), shown_path(&self.folder)))
    }

    fn follow(&self) -> Result<(), CheckpointError> {
        let Some(to) = &self.copy else { return Ok(()) };
        let copied = copy::copy(&self.folder, to);
        if let Some(keep) = self.keeps {
            [&self.folder, to]
                .into_iter()
                .for_each(|folder| keep_last::remove_older(folder, keep, &|| Ok(())));
        }
        copied
    }

    fn keep(&self, _: SaveId, rank: RankId) {
        let held = self.unfinished().parts.remove(&rank);
        held.into_iter().for_each(Held::end);
    }

    fn withdraw(&self, save: SaveId, rank: RankId) {
        let removed =
            self.ranks().map(|ranks| std::fs::remove_file(index::part(&self.folder, save, rank, ranks)));
        // The reason of the save is on its way; the next save tries again.
        if matches!(removed, Ok(Ok(()))) {
            self.keep(save, rank);
        }
    }
}

/// Are there as many parts as ranks?
fn all_wrote(parts: usize, ranks: u32) -> Result<(), CheckpointError> {
    if parts == ranks as usize {
        return Ok(());
    }
    Err(CheckpointError::other(format!("{parts} ranks wrote parts of a checkpoint of {ranks}")))
}

/// Removes the index of a save that failed at its end, where it has its name already: with its parts withdrawn, it
/// would be no checkpoint.
fn taken_back(index: &Path, text: &[u8], reason: CheckpointError) -> CheckpointError {
    let gone = match regular::read(index, index::MOST_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Of another save.
        Ok(found) if found != text => Ok(()),
        Ok(_) => remove(index),
        Err(error) => Err(error),
    };
    match gone {
        Ok(()) => reason,
        Err(error) => CheckpointError::InDoubt {
            path: index.to_owned(),
            source: Box::new(reason),
            removal: Arc::new(error),
        },
    }
}

fn failed(path: &Path, source: io::Error) -> CheckpointError {
    CheckpointError::file(path, FileTask::Write, source)
}

/// A file that is written in pieces, between which the rank tells that it lives and the disk catches up.
struct Steady<'a> {
    file: WholeFile,
    state: &'a dyn RankState,
    unsettled: usize,
}

impl Write for Steady<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(&bytes[..bytes.len().min(PIECE)])?;
        self.unsettled += written;
        if self.unsettled >= UNSETTLED {
            self.file.settle()?;
            self.unsettled = 0;
        }
        self.state.alive()?;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// For the header, which is written once more at the end.
impl Seek for Steady<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;
    /// CK-1: no load would take an index that lacks ranks.
    #[test]
    fn no_index_is_made_of_fewer_parts_than_there_are_ranks() {
        assert!(all_wrote(2, 2).is_ok());
        for parts in [0, 3] {
            let error = all_wrote(parts, 2).unwrap_err();
            assert_eq!(error.to_string(), format!("{parts} ranks wrote parts of a checkpoint of 2"));
        }
    }

    /// CK-1.
    #[test]
    fn parts_may_go_once_the_index_of_their_save_is_surely_gone() {
        let folder = tempfile::tempdir().unwrap();
        let index = Index::path(folder.path());
        let why = || CheckpointError::other("the disk");
        let is_refused = |told| matches!(told, CheckpointError::Other { .. });
        assert!(is_refused(taken_back(&index, b"mine", why())));
        std::fs::write(&index, "of another").unwrap();
        assert!(is_refused(taken_back(&index, b"mine", why())));
        assert_eq!(std::fs::read(&index).unwrap(), b"of another");
        std::fs::write(&index, "mine").unwrap();
        assert!(is_refused(taken_back(&index, b"mine", why())));
        assert!(!index.exists());
        // A file that nobody can remove, and one that nobody can read.
        let stays = Path::new("/proc/version");
        for (index, text) in [(stays, std::fs::read(stays).unwrap()), (folder.path(), Vec::new())] {
            let error = taken_back(index, &text, why());
            let said = error.to_string();
            assert!(said.starts_with("the disk; its index ") && said.contains(" may be there"), "{said}");
            assert!(matches!(error, CheckpointError::InDoubt { .. }), "{said}");
        }
        assert!(stays.exists());
    }
}
