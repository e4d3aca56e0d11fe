//! Errors of converting a checkpoint, and what to do about them.

use std::io;
use std::path::{Path, PathBuf};

use warpweft_base::debug_in_words;
use warpweft_base::errors::{listed as names, shown, shown_path, shown_text};
use warpweft_base::whole_file::next_step;
use warpweft_format::{Format, FormatError};
use warpweft_session::checkpoint::CheckpointError;
use warpweft_session::checkpoint::manifest::KEY;
use warpweft_session::checkpoint::safetensors::Invalid;

use super::formats::quantizing_names;
use super::report::{Copied, CopyReason};

/// An error of converting a checkpoint. The output is as it was before: absent, or the older file.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
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

    /// A model was not converted for inference engines.
    #[error(transparent)]
    Model(#[from] CheckpointError),

    /// The input is no model in plain numbers: quantized, the state of an optimizer, or a file of another kind.
    #[error("`{}` is {what}", shown_path(path))]
    NotWeights {
        /// The input.
        path: PathBuf,
        /// What it is, and what to do.
        what: String,
    },

    /// A pipe or a device where a file is needed, or a folder as the output.
    #[error(
        "`{}` is not a regular file; tensors are read and written in any order, so it must be one",
        shown_path(path)
    )]
    NotAFile {
        /// What it is called.
        path: PathBuf,
    },

    /// The input is not a valid safetensors file.
    #[error("`{}` cannot be read as safetensors: {source}", shown_path(path))]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Invalid,
    },

    /// Input and output are the same file.
    #[error("`{}` is both input and output; name another file for the output", shown_path(path))]
    SameFile {
        /// The output, as given.
        path: PathBuf,
    },

    /// There is a file under the output's name.
    #[error("`{}` exists; remove it, name another file, or replace it with --force", shown_path(path))]
    Exists {
        /// The output.
        path: PathBuf,
    },

    /// The input was quantized by this tool already.
    #[error("`{}` holds weights in {format} already; turn it back with --dequantize first", shown_path(path))]
    AlreadyQuantized {
        /// The input.
        path: PathBuf,
        /// Its format.
        format: Format,
    },

    /// The input was not quantized by this tool.
    #[error("`{}` was not written by `warpweft quantize`: its metadata has no `{KEY}`", shown_path(path))]
    NotQuantized {
        /// The input.
        path: PathBuf,
    },

    /// The metadata about quantized tensors makes no sense.
    #[error(
        "`{}`: the metadata `{KEY}` {}; the file is damaged, or newer than this program",
        shown_path(path),
        shown_text(problem)
    )]
    Manifest {
        /// The input.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },

    /// A checkpoint that a session saved, and that is not whole.
    #[error(
        "`{}` was saved by a session and {}; the file is damaged, or newer than this program",
        shown_path(path),
        shown_text(problem)
    )]
    Saved {
        /// The input.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },

    /// A part of a quantized tensor is absent or of another shape.
    #[error(
        "`{}`: tensor `{}` {}; the file is damaged",
        shown_path(path),
        shown(tensor),
        shown_text(problem)
    )]
    Part {
        /// The input.
        path: PathBuf,
        /// The part: `X.rowwise_data`.
        tensor: String,
        /// What is wrong.
        problem: String,
    },

    /// A pattern that selects nothing.
    #[error("--only `{}` matches no tensor of `{}`{}", shown(pattern), shown_path(path), .example.as_ref().map(|name| format!("; one that can be quantized is `{}`", shown(name))).unwrap_or_default())]
    NothingMatches {
        /// The pattern.
        pattern: String,
        /// The input.
        path: PathBuf,
        /// A tensor that could be selected.
        example: Option<String>,
    },

    /// A format in which nothing is quantized.
    #[error("{format} does not quantize; choose one of {}", quantizing_names())]
    NotQuantizing {
        /// The format.
        format: Format,
    },

    /// Weights in the format cannot be sharded.
    #[error("--shards: {source}")]
    Sharding {
        /// Why.
        source: FormatError,
    },

    /// A selected tensor cannot be quantized, and none was to be left as it is.
    #[error("tensor `{}`: {reason}; without --strict it is copied as it is", shown(tensor))]
    Refused {
        /// The tensor.
        tensor: String,
        /// Why.
        reason: CopyReason,
    },

    /// Selected weights are frozen, of which a session saves digests alone, and none was to be left out.
    #[error(
        "`{}` has digests alone of frozen weights: {}; quantize the files that they came from, or leave --strict out",
        shown_path(path),
        names("`", weights)
    )]
    Frozen {
        /// The input.
        path: PathBuf,
        /// The weights.
        weights: Vec<String>,
    },

    /// No tensor would be converted.
    #[error("nothing in `{}` would be converted{}", shown_path(path), listed(copies))]
    NothingConverted {
        /// The input.
        path: PathBuf,
        /// What there is, and why it would be copied.
        copies: Vec<Copied>,
    },

    /// A value of a tensor is no number, or is infinite.
    #[error(
        "tensor `{}` holds {value} at [{row}, {column}], which no format can stand for; mend the checkpoint, or leave the tensor out: --only names those that are quantized",
        shown(tensor)
    )]
    NotFinite {
        /// The tensor.
        tensor: String,
        /// The row, from 0.
        row: usize,
        /// The column, from 0.
        column: usize,
        /// What stands there.
        value: f32,
    },

    /// A value of a tensor is infinite once it is rounded to the dtype that was requested.
    #[error(
        "tensor `{}` holds {value:e} at [{row}, {column}], which --via rounds to {back}, and {format} has no scale for that; leave --via out, or the tensor: --only names those that are quantized",
        shown(tensor)
    )]
    TooLarge {
        /// The tensor.
        tensor: String,
        /// The row, from 0.
        row: usize,
        /// The column, from 0.
        column: usize,
        /// What stands there.
        value: f32,
        /// What it is rounded to.
        back: f32,
        /// The format.
        format: Format,
    },

    /// The values of a tensor cannot be quantized.
    #[error("tensor `{}`: {source}; leave it out with --only, or choose another format", shown(tensor))]
    Values {
        /// The tensor.
        tensor: String,
        /// Why.
        source: FormatError,
    },

    /// The output would have two tensors of one name.
    #[error("the output would have two tensors `{}`; rename one of them in the input", shown(tensor))]
    NameTaken {
        /// The name.
        tensor: String,
    },

    /// The header of the output would be longer than readers accept.
    #[error(
        "the header of the output would have {bytes} bytes, and readers accept {limit}; select fewer tensors with --only"
    )]
    HeaderTooLarge {
        /// Its bytes.
        bytes: u64,
        /// The most that is read.
        limit: u64,
    },

    /// A tensor does not fit in memory.
    #[error(
        "tensor `{}` needs {bytes} bytes of memory at once, which the system refuses; leave it out with --only",
        shown(tensor)
    )]
    Memory {
        /// The tensor.
        tensor: String,
        /// Bytes requested.
        bytes: u64,
    },

    /// Whoever watches the work ended it.
    #[error("interrupted; no output was written")]
    Interrupted,
}

debug_in_words!(ToolError);

/// The first of some copies, and how many others there are.
fn listed(copies: &[Copied]) -> String {
    const MOST: usize = 4;
    let one = |Copied { name, reason, .. }: &Copied| format!("`{}`: {reason}", shown(name));
    let mut listed: Vec<String> = copies.iter().take(MOST).map(one).collect();
    match copies.len() {
        0 => return ": it has no tensor".to_owned(),
        1..=MOST => {}
        more => listed.push(format!("{} others", more - MOST)),
    }
    format!(": {}", listed.join("; "))
}

impl ToolError {
    /// What the file system said about `path`, as a function for `map_err`.
    pub(super) fn file(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::File { action, path: path.to_owned(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_parser_says_of_a_hostile_file_can_neither_flood_nor_steer_a_terminal() {
        let (path, tensor, problem) = (PathBuf::from("w"), "w".to_owned(), "\u{1b}[2J".repeat(1 << 16));
        for error in [
            ToolError::Manifest { path: path.clone(), problem: problem.clone() },
            ToolError::Saved { path: path.clone(), problem: problem.clone() },
            ToolError::Part { path, tensor, problem },
        ] {
            let said = error.to_string();
            assert!(said.len() < 1 << 14 && !said.contains('\u{1b}'), "{} bytes", said.len());
        }
    }
}
