//! Why a machine could not be measured.

use std::io;
use std::path::PathBuf;

use warpweft::config::ConfigError;
use warpweft::model::DeclareError;
use warpweft::session::SessionError;
use warpweft_base::debug_in_words;
use warpweft_base::errors::{shown, shown_path};
use warpweft_base::whole_file::next_step;

use super::fit::FitError;

/// Why a machine could not be measured. No file was written.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// What was measured gives no number.
    #[error("{what}: {source}")]
    Fit {
        /// The number wanted.
        what: &'static str,
        /// Why there is none.
        source: FitError,
    },
    /// Too few ranks to communicate.
    #[error("{ranks} ranks have nothing to send each other; measure at least 2")]
    Ranks {
        /// Ranks asked for.
        ranks: u32,
    },
    /// Fewer GPUs than ranks.
    #[error(
        "{ranks} ranks need {ranks} GPUs, and this machine shows {found}; lower --ranks, or use --device cpu"
    )]
    Gpus {
        /// Ranks asked for.
        ranks: u32,
        /// GPUs there are.
        found: usize,
    },
    /// More ranks than a node of the simulated cluster has.
    #[error(
        "one node is measured, and one of `{}` has {found} GPUs, not {ranks}; lower --ranks",
        shown(cluster)
    )]
    Node {
        /// The cluster.
        cluster: String,
        /// Ranks asked for.
        ranks: u32,
        /// GPUs of a node.
        found: u32,
    },
    /// This program was built without GPUs.
    #[error(
        "this program was built without the feature `cuda`; use --device cpu, or build it with that feature"
    )]
    NoCuda,
    /// A GPU could not be asked.
    #[error("{0}; use --device cpu to measure the CPU backend")]
    Cuda(String),
    /// The backend did not time a step's tasks.
    #[error("the steps of `{program}` came without times of their tasks, so nothing can be read from them")]
    Untimed {
        /// The program.
        program: String,
    },
    /// The cluster has no links between nodes to take over.
    #[error(
        "`{name}` has no table `between`, so there is nothing to take over from it; name another cluster"
    )]
    NoLinksBetween {
        /// The cluster.
        name: String,
    },
    /// A configuration, or a cluster file, declares what cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A program was refused.
    #[error(transparent)]
    Declare(#[from] DeclareError),
    /// A session failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The file system refused.
    #[error("cannot {action} `{}`: {source}; {}", shown_path(path), next_step(source))]
    File {
        /// What was attempted.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is there that nobody said may be replaced.
    #[error("`{}` exists; remove it, name another file, or replace it with --force", shown_path(path))]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Whoever watches the work ended it.
    #[error("interrupted; no file was written")]
    Interrupted,
}

debug_in_words!(CalibrateError);

impl CalibrateError {
    /// A fit that failed, as a function for `map_err`.
    pub(super) fn of(what: &'static str) -> impl Fn(FitError) -> Self {
        move |source| Self::Fit { what, source }
    }
}
