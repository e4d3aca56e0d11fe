//! Why a part of a checkpoint was not kept, or not taken in.
//!
//! Law: whoever keeps parts says what is wrong by its kind, with the file concerned, and what to do in the message.
//! A kind reaches whoever asked where the rank that found it is of the same process. To other processes travels the
//! message alone, which arrives as [`PartError::Told`].

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use warpweft_base::errors::{shown_path, told};
use warpweft_base::id::RankId;
use warpweft_base::whole_file::next_step;

/// Why parts of a checkpoint were not saved or not imported.
///
/// It is what [`PartWriter`](super::PartWriter) and [`PartReader`](super::PartReader) say, and so what
/// [`SessionError::Parts`](crate::session::SessionError::Parts) and, of parts, `SessionError::Import` and
/// [`StoreError::Parts`](crate::checkpoint::StoreError::Parts) have as their source:
///
/// ```
/// use std::io::ErrorKind;
/// use warpweft::checkpoint::PartError;
/// use warpweft::session::SessionError;
///
/// /// Is it worth removing old checkpoints and saving again?
/// fn is_full(error: &SessionError) -> bool {
///     let SessionError::Parts { source: PartError::File { source, .. }, .. } = error else { return false };
///     [ErrorKind::StorageFull, ErrorKind::QuotaExceeded].contains(&source.kind())
/// }
/// # let source = PartError::Told { reason: "cannot write there".to_owned() };
/// # assert!(!is_full(&SessionError::Parts { rank: warpweft::id::RankId::new(1), source, dropped: None }));
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum PartError {
    /// The file system refused.
    #[error("cannot {task} {}: {source}; {}", shown_path(path), task.advice(source))]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What was to be done.
        task: FileTask,
        /// What the system says.
        source: Arc<io::Error>,
    },
    /// The place of a save is taken.
    #[error("{} is there: {}", shown_path(path), told(reason))]
    Taken {
        /// What is there.
        path: PathBuf,
        /// Why it stays, and what to do.
        reason: String,
    },
    /// What makes a checkpoint, or a part of it, is not there.
    #[error("{}: {}", shown_path(path), told(reason))]
    Missing {
        /// The folder or the file.
        path: PathBuf,
        /// What is missing, and what to do.
        reason: String,
    },
    /// A file is not as it was saved.
    #[error("{}: {}", shown_path(path), told(reason))]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A file is sound as far as can be seen, and is of another save, another rank or another optimizer step.
    #[error("{}: {}", shown_path(path), told(reason))]
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
    #[error("{}", told(reason))]
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
        source: Box<PartError>,
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
        source: Box<PartError>,
        /// Why the index could not be removed.
        removal: Arc<io::Error>,
    },
    /// Anything else, as of a [`PartWriter`](super::PartWriter) that keeps parts elsewhere than in files.
    #[error("{}", told(source))]
    Other {
        /// The reason.
        source: Arc<dyn Error + Send + Sync>,
    },
    /// What a rank of another process said. Its kind did not travel.
    #[error("{}", told(reason))]
    Told {
        /// Its message.
        reason: String,
    },
}

warpweft_base::debug_in_words!(PartError);

impl PartError {
    /// A reason of the user's own: an error, or its words.
    pub fn other(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::Other { source: Arc::from(reason.into()) }
    }

    /// What the file system says of a file.
    pub fn file(path: impl Into<PathBuf>, task: FileTask, source: io::Error) -> Self {
        Self::File { path: path.into(), task, source: Arc::new(source) }
    }
}

/// What was to be done with a file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileTask {
    /// To make a folder.
    MakeFolder,
    /// To write a file, or to give it its name.
    Write,
    /// To read a file.
    Read,
}

impl FileTask {
    fn advice(self, source: &io::Error) -> &'static str {
        match self {
            Self::MakeFolder => "name a folder in which this user can write",
            Self::Write | Self::Read => next_step(source),
        }
    }
}

impl fmt::Display for FileTask {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::MakeFolder => "make the folder",
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_keeps_what_the_system_said_and_the_embedders_own_error() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let error = PartError::file("step-7/part", FileTask::Write, full);
        let said = error.to_string();
        assert!(
            said.starts_with("cannot write step-7/part: ") && said.ends_with("on another disk"),
            "{said}"
        );
        let source = error.source().and_then(|source| source.downcast_ref::<Arc<io::Error>>());
        assert_eq!(source.map(|source| source.kind()), Some(io::ErrorKind::StorageFull));
        assert!(
            matches!(&error, PartError::File { source, .. } if source.kind() == io::ErrorKind::StorageFull)
        );

        let own = "x".parse::<u32>().unwrap_err();
        let PartError::Other { source } = PartError::other(own.clone()) else { panic!("it is another") };
        assert_eq!(source.downcast_ref(), Some(&own));
        assert_eq!(PartError::other("no bucket").to_string(), "no bucket");
    }
}
