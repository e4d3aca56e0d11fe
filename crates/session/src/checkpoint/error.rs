//! Errors of checkpoints and other files of weights.
//!
//! Law: an error says what is wrong by its kind, with the file concerned, and what to do in the message. Text from a
//! foreign file comes into a message escaped and cut. Within a process the caller gets the error with its kind. Between
//! processes only the message travels, and it arrives as [`CheckpointError::OtherRank`].

use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::advice::{FileTask, fitting, found_elsewhere, proposed};
use warpweft_base::errors::{shown, shown_path, shown_text};
use warpweft_base::id::RankId;
use warpweft_format::{FormatError, Shape};

/// An error of saving, loading or importing a checkpoint, or of reading pretrained weights.
///
/// Of a sharded checkpoint it is the source of [`SessionError::Parts`](crate::session::SessionError::Parts) and
/// `SessionError::Import`:
///
/// ```
/// use std::io::ErrorKind;
/// use warpweft::checkpoint::CheckpointError;
/// use warpweft::session::SessionError;
///
/// /// Is it worth removing old checkpoints and saving again?
/// fn is_full(error: &SessionError) -> bool {
///     let SessionError::Parts { source: CheckpointError::File { source, .. }, .. } = error else { return false };
///     [ErrorKind::StorageFull, ErrorKind::QuotaExceeded].contains(&source.kind())
/// }
/// # let source = CheckpointError::OtherRank { reason: "cannot write there".to_owned() };
/// # assert!(!is_full(&SessionError::Parts { rank: warpweft::id::RankId::new(1), source, dropped: None }));
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The file system refused.
    #[error("{}: {source}; {}", task.of(path), task.advice(source))]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What was to be done.
        task: FileTask,
        /// What the system says.
        source: Arc<io::Error>,
    },

    // A checkpoint in one file.
    /// The file is no checkpoint of this library.
    #[error("checkpoint {}: {}; nothing was loaded or saved", shown_path(path), shown_text(reason))]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },

    // A sharded checkpoint.
    /// Of a sharded checkpoint: what is wrong, by its kind.
    #[error("cannot load the sharded checkpoint: {source}; nothing was loaded")]
    Parts {
        /// What is wrong, and what to do.
        source: Box<Self>,
    },
    /// The place of a save is taken.
    #[error("{} is there: {}", shown_path(path), shown_text(reason))]
    Taken {
        /// What is there.
        path: PathBuf,
        /// Why it stays, and what to do.
        reason: String,
    },
    /// What makes a checkpoint, or a part of it, is not there.
    #[error("{}: {}", shown_path(path), shown_text(reason))]
    Missing {
        /// The folder or the file.
        path: PathBuf,
        /// What is missing, and what to do.
        reason: String,
    },
    /// A file is not as it was saved.
    #[error("{}: {}", shown_path(path), shown_text(reason))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A file is valid as far as can be seen, and is of another save, another rank or another optimizer step.
    #[error("{}: {}", shown_path(path), shown_text(reason))]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What it is, what it should be, and what to do.
        reason: String,
    },
    /// A file of a version that this build does not know.
    #[error(
        "{}: it has version {version}, and versions 1 to {known} are known; load it by a newer build",
        shown_path(path)
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// The newest version that is read.
        known: u32,
    },
    /// The checkpoint is whole and does not fit the session, or has values from which no training goes on.
    #[error("{}", shown_text(reason))]
    Unfit {
        /// What does not fit, and what to do.
        reason: String,
    },
    /// A part that was written is not where the rank that completes the save looks for it.
    #[error(
        "the part that {wrote} wrote is not where {looks} looks for it: {source}; name a folder that all hosts share"
    )]
    NotShared {
        /// Whose part it is.
        wrote: RankId,
        /// Who completes the save.
        looks: RankId,
        /// What was found instead.
        source: Box<Self>,
    },
    /// The save failed at its end, and its index may be there all the same, now or after a loss of power. So its parts
    /// stay.
    #[error(
        "{source}; its index {} may be there all the same, since it could not be removed ({removal}), so parts stay: import from the folder to see, or remove it",
        shown_path(path)
    )]
    InDoubt {
        /// The index.
        path: PathBuf,
        /// Why the save failed.
        source: Box<Self>,
        /// Why the index could not be removed.
        removal: Arc<io::Error>,
    },
    /// Anything else, as of who keeps parts elsewhere than in files.
    #[error("{}", shown_text(source))]
    Other {
        /// The reason.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// Whoever watched a conversion ended it.
    #[error("the conversion was stopped; nothing was written")]
    Stopped,
    /// What a rank of another process said. Its kind did not travel.
    #[error("{}", shown_text(reason))]
    OtherRank {
        /// Its message.
        reason: String,
    },

    // Weights from elsewhere.
    /// A folder, or a file of another kind than safetensors.
    #[error("{} is {what}", shown_path(path))]
    NotSafetensors {
        /// The file.
        path: PathBuf,
        /// What it is, and what to do.
        what: String,
    },
    /// A tensor that holds something other than a weight in plain numbers: codes, scales, what an optimizer keeps.
    #[error("tensor `{}` is no weight in plain numbers, for {} is {what}", shown(tensor), shown_path(path))]
    NotWeights {
        /// The tensor.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// What the file is, and what to do.
        what: String,
    },
    /// A file is not a valid safetensors file.
    #[error(
        "{} is not a valid safetensors file: {reason}; fetch it again, with its content and not a pointer of Git LFS in its place",
        shown_path(path)
    )]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// There is no such folder.
    #[error("there is no folder {}; {}", shown_path(folder), found_elsewhere(folder))]
    NoFolder {
        /// What was given for a folder.
        folder: PathBuf,
    },
    /// The index of a model's folder does not say which files it has, or not what they have.
    #[error(
        "{}: {reason}; fetch the whole folder of the model again, or name its files by PretrainedFiles::open",
        shown_path(path)
    )]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A model's folder is not what its `config.json` says, or says what is not read.
    #[error("{}: {}", shown_path(path), shown_text(reason))]
    Engine {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// Two files have a tensor of one name.
    #[error(
        "tensor `{}` is both in {} and in {}; open the files of one model, each once",
        shown(tensor),
        shown_path(first),
        shown_path(second)
    )]
    Twice {
        /// The tensor.
        tensor: String,
        /// The file that was named first.
        first: PathBuf,
        /// The file that was named later.
        second: PathBuf,
    },
    /// No file has a tensor of this name.
    #[error(
        "none of the {files} files has a tensor `{}`, or their index does not list it; {}",
        shown(tensor),
        proposed(near)
    )]
    NoTensor {
        /// The name requested.
        tensor: String,
        /// Files that are open.
        files: usize,
        /// Names near it, the nearest first.
        near: Vec<String>,
    },
    /// A tensor whose elements are no values of weights.
    #[error(
        "tensor `{}` in {} is in {dtype}, and F32, BF16 and F16 are read; convert it to one of these",
        shown(tensor),
        shown_path(path)
    )]
    Dtype {
        /// The tensor.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// Its dtype, as safetensors calls it.
        dtype: String,
    },
    /// A tensor has another shape than the weight.
    #[error(
        "tensor `{}` in {} has the shape {found:?}, and the weight is {expected}; {}",
        shown(tensor),
        shown_path(path),
        fitting(found, *expected)
    )]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// Its shape.
        found: Vec<usize>,
        /// The weight's.
        expected: Shape,
    },
    /// Rows that a tensor does not have.
    #[error("tensor `{}` in {} {reason}; request whole rows within it", shown(tensor), shown_path(path))]
    Rows {
        /// The tensor.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// Its shape, and what was requested.
        reason: String,
    },
    /// A weight of the model, and what is wrong with its tensor.
    #[error("weight `{}`: {source}", shown(weight))]
    Weight {
        /// The weight.
        weight: String,
        /// What is wrong.
        source: Box<Self>,
    },
    /// A tensor is not quantized as the frozen weight needs it.
    #[error(
        "`{}` of {} cannot be the planes of a frozen weight: {reason}; declare the weight in the file's format and shape, quantize the file anew (`warpweft quantize --format`), or begin with its values by `PretrainedFiles::initializer`",
        shown(tensor),
        shown_path(path)
    )]
    Quantized {
        /// The tensor, as it was called before it was quantized.
        tensor: String,
        /// Its file.
        path: PathBuf,
        /// What does not fit.
        reason: String,
    },
    /// Planes that have no place in the weight's layout.
    #[error(transparent)]
    Format {
        /// What is wrong with them.
        #[from]
        source: FormatError,
    },
    /// The initializer was asked for a weight that it was given no tensor for.
    #[error(
        "weight `{}` was given no tensor; name one for it, or let the function that is passed to try_initialize give its masters",
        shown(weight)
    )]
    NoName {
        /// The weight.
        weight: String,
    },
}

warpweft_base::debug_in_words!(CheckpointError);

impl CheckpointError {
    /// A reason of the user's own: an error, or its words.
    pub fn other(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Other { source: Arc::from(reason.into()) }
    }

    /// An error of the file system about a file.
    pub fn file(path: impl Into<PathBuf>, task: FileTask, source: io::Error) -> Self {
        Self::File { path: path.into(), task, source: Arc::new(source) }
    }

    /// What does not fit, and what to do.
    pub(super) fn unfit(reason: impl Into<String>) -> Self {
        Self::Unfit { reason: reason.into() }
    }

    /// What is wrong with a file, and what to do.
    pub(super) fn damaged(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Damaged { path: path.into(), reason: reason.into() }
    }

    /// What is wrong with a sharded checkpoint that was to be loaded.
    pub(super) fn in_parts(self) -> Self {
        Self::Parts { source: Box::new(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_keeps_what_the_system_said_and_the_users_own_error() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error = CheckpointError::file("step-7/part", FileTask::Write, full);
        let said = error.to_string();
        assert!(
            said.starts_with("cannot write step-7/part: ") && said.ends_with("on another disk"),
            "{said}"
        );
        let source = error.source().and_then(|source| source.downcast_ref::<Arc<io::Error>>());
        assert_eq!(source.map(|source| source.kind()), Some(io::ErrorKind::StorageFull));
        assert!(
            matches!(&error, CheckpointError::File { source, .. } if source.kind() == io::ErrorKind::StorageFull)
        );

        let own = "x".parse::<u32>().unwrap_err();
        let CheckpointError::Other { source } = CheckpointError::other(own.clone()) else {
            panic!("it is another")
        };
        assert_eq!(source.downcast_ref(), Some(&own));
        assert_eq!(CheckpointError::other("no bucket").to_string(), "no bucket");
    }
}
