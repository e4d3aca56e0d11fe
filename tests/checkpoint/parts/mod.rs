//! Sharded checkpoints: every rank writes what it owns, any number of ranks reads it, and nothing half-done is
//! ever taken for a checkpoint.

pub(crate) mod by_hand;
mod carried;
mod cuts;
mod failures;
#[cfg(unix)]
mod flips;
mod other_sums;
mod processes;
mod published;
mod ranks;
mod refusals;
mod round_trips;
mod scale_groups;
mod slices;
mod states;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use warpweft_session::checkpoint::{Checkpoint, WeightState};
use warpweft_session::config::Config;

fn config() -> Config {
    let mut config = Config::default();
    config.prefetch.depth = Some(1);
    config.optimizer.lr = 3e-3;
    config
}

pub(crate) fn replicated(replicas: u32) -> Config {
    let mut config = config();
    config.mesh.dp_replicate = Some(replicas);
    config
}

pub(crate) fn notes(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, note)| ((*name).to_owned(), (*note).to_owned())).collect()
}

/// As an export, without what parts leave out.
pub(crate) fn without_planes(checkpoint: Checkpoint) -> Checkpoint {
    let plain = |weight| WeightState { planes: Vec::new(), tensor_scale: 1.0, ..weight };
    Checkpoint { weights: checkpoint.weights.into_iter().map(plain).collect(), ..checkpoint }
}

/// The files of a folder, sorted.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

/// The part of a rank.
fn part(folder: &Path, rank: usize) -> PathBuf {
    let begins = format!("rank-{rank:05}-");
    let is_it = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&begins);
    files(folder).into_iter().find(is_it).expect("the part of a rank")
}
