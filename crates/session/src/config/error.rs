//! Configuration errors, and what to do about them.

use std::io;
use std::path::PathBuf;

use super::origin::Origin;
use warpweft_base::errors::{shown, shown_path, shown_text};
use warpweft_plan::model::DeclareError;

/// An error of a configuration. Nothing of it was used.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file, a configuration or one that declares a model or a cluster, cannot be read.
    #[error("cannot read `{}`: {source}; {}", shown_path(path), to_read(source))]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// No cluster of that name for a planner, a simulation or a tool to count with.
    #[error(
        "cluster `{}` is neither a file, as `warpweft calibrate` writes them, nor a preset; the presets are {presets}",
        shown(name)
    )]
    NoCluster {
        /// What was requested.
        name: String,
        /// The presets there are, and the one that was probably meant.
        presets: String,
    },

    /// The file is not TOML.
    #[error("{}:{line}:{column}: {}; correct the TOML there", shown_path(file.as_ref()), shown_text(message))]
    Syntax {
        /// The file, as the caller named it.
        file: String,
        /// The line, from 1.
        line: usize,
        /// The column in characters, from 1.
        column: usize,
        /// What the parser said.
        message: String,
    },

    /// A key that does not exist.
    #[error("{origin}: unknown key `{}`; {advice}", shown(key))]
    UnknownKey {
        /// The key, dotted.
        key: String,
        /// Where it stands.
        origin: Origin,
        /// The key that was probably meant, if one is close.
        suggestion: Option<String>,
        /// That key, or the keys there are.
        advice: String,
    },

    /// A value that its key does not take.
    #[error("{origin}: `{}` {}; set it to {expected}", shown(key), shown_text(problem))]
    Invalid {
        /// The key, dotted.
        key: String,
        /// Where its value came from.
        origin: Origin,
        /// What is wrong with it.
        problem: String,
        /// What the key takes.
        expected: String,
    },

    /// A value that does not go together with another key's.
    #[error("{origin}: `{}` {}; {advice}", shown(key), shown_text(problem))]
    Together {
        /// The key, dotted.
        key: String,
        /// Where its value came from.
        origin: Origin,
        /// What is wrong, with the other key.
        problem: String,
        /// What to do about it.
        advice: String,
    },

    /// A model or program that a file lists and that cannot be.
    #[error("{origin}: `{}`: {source}", shown(key))]
    Declaration {
        /// The key, dotted; items of lists by number, from 0.
        key: String,
        /// Where it stands.
        origin: Origin,
        /// What is wrong with it.
        source: Box<DeclareError>,
    },

    /// A weight that cannot be what the rules want.
    #[error("the rules under `weights` request what cannot be: {0}")]
    Weights(#[source] DeclareError),

    /// A tuner was given a hysteresis that is no share.
    #[error("hysteresis is {value}; take a share from 0 to below 1, such as 0.01")]
    Hysteresis {
        /// What was requested.
        value: f64,
    },

    /// Two environment variables set the same key.
    #[error(
        "environment variables {} and {} set the same key `{}`; unset one of them",
        shown(first),
        shown(second),
        shown(key)
    )]
    SetTwice {
        /// The key, dotted.
        key: String,
        /// One variable.
        first: String,
        /// The other.
        second: String,
    },

    /// An environment variable of ours is not Unicode.
    #[error("environment variable {} is not valid Unicode; set it to text or unset it", shown(variable))]
    NotUnicode {
        /// The variable.
        variable: String,
    },
}

warpweft_base::debug_in_words!(ConfigError);

/// What to do about what the system says of a file that is to be read.
fn to_read(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::InvalidData => "save it as UTF-8",
        _ => "name a TOML file that can be read",
    }
}
