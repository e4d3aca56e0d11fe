//! Arguments of `warpweft inspect`.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use clap::Args;

use super::super::terminal::Terminal;
use super::super::{ToolError, inspect_checkpoint};

/// Says what a checkpoint is, ours or an engine's: how its tensors are stored, and what an engine would decode wrongly
///
/// Looks at a safetensors file, a model's folder as the Hugging Face hub has it, or the folder of a sharded
/// checkpoint. Layers that engines fuse (q, k and v; gate and up) need one scale; where theirs differ, engines
/// decode some of them by a wrong number, and the report names them.
#[derive(Debug, Args)]
pub(super) struct Inspect {
    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Compare the masters that a session saved with their digests, which reads all of them
    #[arg(long)]
    digests: bool,

    /// The checkpoint
    #[arg(value_name = "FOLDER|FILE")]
    path: PathBuf,
}

impl Inspect {
    pub(super) fn run(self, stop: &AtomicBool) -> Result<String, ToolError> {
        let found = inspect_checkpoint(&self.path, self.digests, &mut Terminal::new(stop))?;
        if !self.json {
            return Ok(found.to_string());
        }
        let json = serde_json::to_string_pretty(&found);
        let json = json.map_err(|error| ToolError::file("describe", &self.path)(error.into()))?;
        Ok(format!("{json}\n"))
    }
}
