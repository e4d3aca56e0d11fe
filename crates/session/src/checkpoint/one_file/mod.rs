//! Checkpoints in one safetensors file.
//!
//! Law: the file is replaced whole or not at all, and a save that returned survives the loss of power
//! (`whole_file`). A save that fails leaves nothing behind, unless what fails is to make the name last. Loading
//! takes memory in proportion to the file, whatever its header says: every tensor is read at most once. Saving takes
//! next to none, for tensors go from the checkpoint to the file (`safetensors/writer.rs`). What they are called is said
//! in `tensors.rs`. What is read is what was saved, by its digests (`digests.rs`); what the file says of itself is
//! judged before (`said.rs`).

mod digests;
mod metadata;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Display;
use std::io;
use std::path::PathBuf;

use async_trait::async_trait;
use safetensors::Dtype;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::listed::once;
pub use digests::Listed;
use metadata::{FROZEN, MORE_STATES, VERSION, WITHOUT_CARRIED};
pub use metadata::{FrozenEntry, KEYS, SAVED, SavedWeights};

use super::safetensors::{Header, Invalid, TensorEntry, TensorFile, TensorFileError, floats, writer};
use super::{
    Carried, CarriedBuffer, Checkpoint, CheckpointError, CheckpointStore, FileTask, OptimizerIdentity,
    StatePart, WeightState, tensors,
};
use warpweft_base::errors::shown;
use warpweft_base::whole_file::WholeFile;
use warpweft_format::{DelayedState, Format, Shape};

/// One safetensors file.
///
/// Per weight: `<weight>.master`, and its lists of optimizer state as `.exp_avg`, `.exp_avg_sq`, `.state2` and so on,
/// in f32 `[rows, cols]`, and the quantized planes as `warpweft quantize` names and shapes them: `.rowwise_data`,
/// `.rowwise_scale` and, where the format stores it, the same columnwise; for NVFP4 `.amax`, the amax that its scales
/// are relative to; for FP8 with one scale per tensor that scale, as `.rowwise_scale`. Where scaling is delayed,
/// `.delayed_scale` in f32 `[1]`, by which the planes were multiplied, and `.amax_history`, f32 `[history]`, the
/// latest first. Per carried buffer and rank: `carried.<buffer>.rank<N>`, bytes; of [`Carried::Zeros`] the metadata
/// says `zeros`. Weights that are frozen are not in the file: the metadata have `frozen_digests`, a JSON object of
/// lists of digest, rows and columns ([`WeightState::frozen`]). Weights without moments are listed as `frozen`, like
/// all weights of a rule of updates that keeps no state; those of which it keeps one list are listed as `one_state`.
/// The metadata say `format: pt`, which readers of the Hugging Face hub's files request. They also hold
/// [`Checkpoint::notes`], a JSON object of strings; as `optimizer_identity` which optimizer the state is of
/// ([`Checkpoint::optimizer_identity`]): `adam`, a JSON object with the `name` of a `custom` one and the names of its
/// `states`, or `unnamed_custom` for one that is not named; and digests, each the first 64 bits of SHA-256, by which a
/// file that changed on the disk or on the way is refused: `digests`, of every tensor's element type, shape and bytes,
/// and `metadata_digest`, of all metadata.
///
/// This is version 4 of the file. Version 3 had the masters of frozen weights. In version 2 digests are of the
/// bytes of tensors alone, or there are none; version 1 had no carried buffers, and loads as a checkpoint without
/// any. Both are read as they are.
///
/// The planes are for whoever serves the model. Loading leaves them out ([`WeightState::planes`] is empty
/// then), for a session makes them again of the masters. So a checkpoint that is loaded and saved without a
/// session between has none in its file, and readers of the planes find only masters and moments there.
///
/// ```no_run
/// use warpweft::prelude::*;
///
/// async fn go_on(session: &mut Session) -> Result<(), Box<dyn std::error::Error>> {
///     let store = FileStore::new("run.safetensors");
///     if std::path::Path::new("run.safetensors").exists() {
///         session.import(&store.load().await?).await?;
///     }
///     session.step("train").await?;
///     let mut checkpoint = session.export().await?;
///     checkpoint.notes.insert("seed".into(), "7".into());
///     Ok(store.save(&checkpoint).await?)
/// }
/// ```
#[derive(Clone, Debug)]
pub struct FileStore {
    path: PathBuf,
}

/// What stands in place of the list of carried buffers for [`Carried::Zeros`].
const ZEROS: &str = "zeros";

/// The tensors of a file by name, with their bytes.
type Tensors<'file> = HashMap<&'file str, (&'file TensorEntry, Vec<u8>)>;

impl FileStore {
    /// A store in the file `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    fn failed(&self, source: io::Error) -> CheckpointError {
        CheckpointError::file(&self.path, FileTask::Keep, source)
    }

    fn content(&self, reason: impl Display) -> CheckpointError {
        CheckpointError::Content { path: self.path.clone(), reason: reason.to_string() }
    }

    /// A list as its text in the metadata.
    fn text(&self, list: &impl Serialize) -> Result<String, CheckpointError> {
        serde_json::to_string(list).map_err(|error| self.content(error))
    }

    /// What stands under a key of the metadata; nothing where there is none.
    fn listed_in<T: DeserializeOwned + Default>(
        &self,
        about: &BTreeMap<String, String>,
        key: &str,
    ) -> Result<T, CheckpointError> {
        let Some(text) = about.get(key) else { return Ok(T::default()) };
        serde_json::from_str(text).map_err(|error| self.content(error))
    }

    /// What the file says of itself is judged before its tensors are read.
    fn read(&self) -> Result<Checkpoint, CheckpointError> {
        let (header, file, _) = TensorFile::open(&self.path).map_err(|error| match error {
            TensorFileError::File(source) => self.failed(source),
            TensorFileError::Invalid(error) => self.content(unread(&error)),
        })?;
        let about = header.metadata();
        let said = SavedWeights::of(about).map_err(|reason| self.content(reason))?;
        let optimizer_step =
            about.get("optimizer_step").ok_or_else(|| self.content("it has no `optimizer_step`"))?;
        let optimizer_step = optimizer_step.parse().map_err(|error| self.content(error))?;
        let whose = |word: &String| {
            let unknown =
                || self.content(format!("its weights were updated by `{}`, which is not known", shown(word)));
            OptimizerIdentity::of_text(word).ok_or_else(unknown)
        };
        let optimizer_identity =
            about.get("optimizer_identity").or_else(|| about.get("updated_by")).map(whose).transpose()?;
        let notes = self.listed_in(about, "notes")?;
        let frozen: HashSet<String> = self.listed_in(about, "frozen")?;
        let one_state: HashSet<String> = self.listed_in(about, "one_state")?;
        let more_states: HashMap<String, u8> = self.listed_in(about, MORE_STATES)?;
        let carried: Option<Vec<(String, usize)>> = match about.get("carried").map(String::as_str) {
            None if about[SAVED] != WITHOUT_CARRIED => return Err(self.content("it has no `carried`")),
            None => Some(Vec::new()),
            Some(ZEROS) => None,
            Some(_) => Some(self.listed_in(about, "carried")?),
        };
        once("carried buffer", carried.iter().flatten().map(|(name, _)| name))
            .map_err(|reason| self.content(reason))?;
        let SavedWeights { weights: names, mut absent, digests } = said;
        let mut tensors = self.tensors(&header, file, &digests)?;
        let mut weights = Vec::new();
        for (name, format) in names {
            let format: Format = format.parse().map_err(|error| self.content(error))?;
            if let Some(entry) = absent.remove(&name) {
                weights.push(self.digest_alone(name, format, entry)?);
                continue;
            }
            let (shape, master) =
                self.values(&mut tensors, &tensors::state_name(&name, StatePart::Master))?;
            let lists = match (frozen.contains(&name), one_state.contains(&name)) {
                (true, _) => 0,
                (false, true) => 1,
                (false, false) => more_states.get(&name).map_or(2, |lists| usize::from(*lists)),
            };
            let mut state = |part| {
                let tensor = tensors::state_name(&name, part);
                match self.values(&mut tensors, &tensor)? {
                    (found, values) if found == shape => Ok(values),
                    (found, _) => {
                        Err(self.content(format!("`{}` is {found} and its master {shape}", shown(&tensor))))
                    }
                }
            };
            let states = StatePart::kept(lists).skip(1).map(&mut state).collect::<Result<_, _>>()?;
            let delayed = self.delayed(&tensors, &name)?;
            let bare = WeightState::bare(name, shape, format);
            weights.push(WeightState { master, states, delayed, ..bare });
        }
        if let Some(name) = absent.keys().min() {
            return Err(
                self.content(format!("it has a digest of `{}`, which is none of its weights", shown(name)))
            );
        }
        let carried = match carried {
            None => Carried::Zeros,
            Some(listed) => Carried::Buffers(self.buffers(&mut tensors, listed)?),
        };
        Ok(Checkpoint { optimizer_step, optimizer_identity, weights, carried, notes })
    }

    /// A frozen weight, whose values are elsewhere.
    fn digest_alone(
        &self,
        name: String,
        format: Format,
        (frozen, rows, cols): FrozenEntry,
    ) -> Result<WeightState, CheckpointError> {
        let shape = Shape { rows, cols };
        format
            .check_shape(shape)
            .map_err(|error| self.content(format!("frozen weight `{}`: {error}", shown(&name))))?;
        Ok(WeightState { frozen: Some(frozen), ..WeightState::bare(name, shape, format) })
    }

    fn buffers(
        &self,
        tensors: &mut Tensors<'_>,
        listed: Vec<(String, usize)>,
    ) -> Result<Vec<CarriedBuffer>, CheckpointError> {
        let buffer = |(name, ranks): (String, usize)| {
            let of_rank = |rank| Ok(self.tensor(tensors, &tensors::carried_name(&name, rank))?.1);
            let ranks = (0..ranks).map(of_rank).collect::<Result<_, CheckpointError>>()?;
            Ok(CarriedBuffer { name, ranks })
        };
        listed.into_iter().map(buffer).collect()
    }

    /// Reads all tensors, in the order of the file, and compares them with their digests.
    fn tensors<'header>(
        &self,
        header: &'header Header,
        mut file: TensorFile,
        digests: &Listed,
    ) -> Result<Tensors<'header>, CheckpointError> {
        let mut tensors = Tensors::new();
        for entry in header.tensors() {
            let bytes = file.read(entry).map_err(|source| self.failed(source))?;
            let mut taken = digests.begin(entry.dtype, &entry.shape);
            taken.more(&bytes);
            digests.compare(&entry.name, taken).map_err(|reason| self.content(reason))?;
            tensors.insert(&entry.name, (entry, bytes));
        }
        digests.are_all(|name| tensors.contains_key(name)).map_err(|reason| self.content(reason))?;
        Ok(tensors)
    }

    /// Takes the values of a matrix out.
    fn values(&self, tensors: &mut Tensors<'_>, name: &str) -> Result<(Shape, Vec<f32>), CheckpointError> {
        let (entry, bytes) = self.tensor(tensors, name)?;
        match (entry.dtype, &entry.shape[..]) {
            (Dtype::F32, [rows, cols]) => {
                Ok((Shape { rows: *rows, cols: *cols }, floats::values(entry.dtype, &bytes)))
            }
            _ => Err(self.content(format!("`{}` is not a matrix of f32", shown(name)))),
        }
    }

    fn tensor<'header>(
        &self,
        tensors: &mut Tensors<'header>,
        name: &str,
    ) -> Result<(&'header TensorEntry, Vec<u8>), CheckpointError> {
        tensors
            .remove(name)
            .ok_or_else(|| self.content(format!("`{0}`: tensor `{0}` not found", shown(name))))
    }

    /// Scale in use and amax history of a weight; both are there, or neither.
    fn delayed(&self, tensors: &Tensors<'_>, name: &str) -> Result<Option<DelayedState>, CheckpointError> {
        let names = tensors::delayed_names(name);
        let [Some(scale), Some(history)] = names.each_ref().map(|name| tensors.get(name.as_str())) else {
            return match names.iter().find(|name| tensors.contains_key(name.as_str())) {
                None => Ok(None),
                Some(one) => Err(self.content(format!(
                    "it has `{}` alone of {}",
                    shown(one),
                    names.each_ref().map(shown).join(" and ")
                ))),
            };
        };
        let kinds = [scale, history].map(|(entry, _)| (entry.dtype, &entry.shape[..]));
        match (kinds, floats::values(Dtype::F32, &scale.1).as_slice()) {
            ([(Dtype::F32, [1]), (Dtype::F32, [_])], [scale]) => {
                Ok(Some(DelayedState { scale: *scale, history: floats::values(Dtype::F32, &history.1) }))
            }
            _ => Err(self.content(format!(
                "{} are not one f32 and a list of them",
                names.each_ref().map(shown).join(" and ")
            ))),
        }
    }

    /// What the file says of itself, of a checkpoint that could be loaded again.
    fn about(&self, checkpoint: &Checkpoint) -> Result<BTreeMap<String, String>, CheckpointError> {
        let names: Vec<(&str, String)> =
            checkpoint.weights.iter().map(|state| (state.name.as_str(), state.format.to_string())).collect();
        let carried = match &checkpoint.carried {
            Carried::Zeros => ZEROS.to_owned(),
            Carried::Buffers(buffers) => {
                once("carried buffer", buffers.iter().map(|buffer| &buffer.name))
                    .map_err(|reason| self.content(reason))?;
                let listed: Vec<(&str, usize)> =
                    buffers.iter().map(|buffer| (buffer.name.as_str(), buffer.ranks.len())).collect();
                self.text(&listed)?
            }
        };
        let mut about = BTreeMap::from([
            // Readers of the Hugging Face hub's files refuse a file that does not say it.
            ("format".to_owned(), "pt".to_owned()),
            (SAVED.to_owned(), VERSION.to_owned()),
            ("optimizer_step".to_owned(), checkpoint.optimizer_step.to_string()),
            ("weights".to_owned(), self.text(&names)?),
            ("carried".to_owned(), carried),
        ]);
        if let Some(by) = &checkpoint.optimizer_identity {
            about.insert("optimizer_identity".to_owned(), by.text().map_err(|error| self.content(error))?);
        }
        if let Some(state) = checkpoint.weights.iter().find(|state| !state.is_whole()) {
            let elements = state.shape.elements();
            return Err(self.content(format!(
                "`{}` does not hold {elements} values of its master, and as many of every list of state",
                shown(&state.name)
            )));
        }
        let trained = || checkpoint.weights.iter().filter(|state| state.frozen.is_none());
        let with = |lists: usize| -> Vec<&str> {
            trained().filter(|state| state.states.len() == lists).map(|state| state.name.as_str()).collect()
        };
        let more = trained().map(|state| (state.name.as_str(), state.states.len()));
        let more: BTreeMap<&str, usize> = more.filter(|(_, lists)| *lists > 2).collect();
        let absent = checkpoint.weights.iter().filter_map(|state| {
            let Shape { rows, cols } = state.shape;
            Some((state.name.as_str(), (state.frozen?, rows, cols)))
        });
        let absent: BTreeMap<&str, FrozenEntry> = absent.collect();
        let lists = [
            ("notes", self.text(&checkpoint.notes)?),
            ("frozen", self.text(&with(0))?),
            ("one_state", self.text(&with(1))?),
            (MORE_STATES, self.text(&more)?),
            (FROZEN, self.text(&absent)?),
        ];
        let lists = lists.into_iter().filter(|(_, text)| !["[]", "{}"].contains(&text.as_str()));
        about.extend(lists.map(|(key, text)| (key.to_owned(), text)));
        Ok(about)
    }
}

#[async_trait]
impl CheckpointStore for FileStore {
    async fn save(&self, checkpoint: &Checkpoint) -> Result<(), CheckpointError> {
        let (mut about, tensors) = (self.about(checkpoint)?, tensors::of(checkpoint));
        once("tensor", tensors.iter().map(|tensor| &tensor.name)).map_err(|reason| self.content(reason))?;
        let failed = |source| self.failed(source);
        digests::seal(&tensors, &mut about).map_err(failed)?;
        let file = WholeFile::begin(&self.path).map_err(failed)?;
        let file = writer::write(tensors, &about, file).map_err(|error| match error {
            TensorFileError::File(source) => failed(source),
            TensorFileError::Invalid(error) => self.content(error),
        })?;
        file.commit().map_err(failed)
    }

    async fn load(&self) -> Result<Checkpoint, CheckpointError> {
        self.read()
    }
}

/// What to say of a file that is not a valid safetensors file.
fn unread(error: &Invalid) -> String {
    if let Invalid::CutOff(_) = error {
        let advice = "is it a copy that was interrupted? Copy it again, or load another checkpoint";
        return format!("{error}; {advice}");
    }
    format!("it is no safetensors file ({error}); load one that `FileStore::save` wrote")
}
