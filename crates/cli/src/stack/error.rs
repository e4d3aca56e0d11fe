//! Why a stack could not be measured.

use std::io;
use std::path::PathBuf;

use warpweft::backend::cuda::CudaFailure;
use warpweft::config::ConfigError;
use warpweft::linear::LinearError;
use warpweft::model::DeclareError;
use warpweft::session::SessionError;
use warpweft_base::debug_in_words;
use warpweft_base::errors::shown_path;
use warpweft_base::whole_file::next_step;

/// Why a stack could not be measured.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// Fewer GPUs than asked for.
    #[error("{asked} GPUs were asked for and {found} are here; pass --gpus")]
    Gpus {
        /// As asked.
        asked: usize,
        /// As the driver says.
        found: usize,
    },
    /// Gradients written in bf16 that were to travel in f32.
    #[error(
        "gradients written in bf16 travel in bf16, and f32 was asked for; say --gradients f32 with --reduce-dtype f32"
    )]
    Gradients,
    /// Patterns that no variant has.
    #[error(
        "no variant is named like {patterns}; names are format/unit/prefetch/mode/transport/ending, as in bf16/block/depth1/graph/peer/gradients"
    )]
    NothingMatches {
        /// The patterns.
        patterns: String,
    },
    /// There are no GPUs to be measured.
    #[error("GPUs are measured, and none can be found here: {what}; run this where they are")]
    NoGpus {
        /// What is missing.
        what: String,
    },
    /// A CUDA library refused.
    #[error(transparent)]
    Cuda(#[from] CudaFailure),
    /// A layer refused.
    #[error(transparent)]
    Linear(#[from] LinearError),
    /// The sizes do not go together with a format.
    #[error(transparent)]
    Declare(#[from] DeclareError),
    /// The configuration is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A session refused or failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The file system refused.
    #[error("cannot {action} `{}`: {source}; {}", shown_path(path), next_step(source))]
    File {
        /// What was attempted.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is there that nobody said may be replaced.
    #[error(
        "`{}` exists; remove it, name another file or folder, or replace it with --force",
        shown_path(path)
    )]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Some variants could not be measured.
    #[error("{failed} of {all} variants could not be measured; the table says why")]
    Failed {
        /// Those that could not.
        failed: usize,
        /// All.
        all: usize,
    },
    /// Told to stop.
    #[error("interrupted")]
    Interrupted,
}

debug_in_words!(StackError);
