//! The flags of the main job, and the configuration they come to.
//!
//! Law: a flag stands above the configuration file, and what either requests is refused here, before anything
//! starts, if no run could follow it.

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::{Arg, Parser};
use warpweft::config::Config as Settings;
use warpweft::config::{Backward, Capture, Prefetch, Scaling};
use warpweft::format::Format;
use warpweft::model::Mesh;

use crate::forecast;
use crate::outputs::Trace;
use crate::placement::DeviceKind;

/// What holds without `--config`. It is part of the program, which may run where the repository is not.
const SETTINGS: &str = include_str!("train.toml");

/// Texts in one rank's batch, unless `--batch` says so.
pub(crate) const TEXTS: u32 = 6;

/// Trains a small byte-level transformer whose weights are sharded over in-process ranks and travel
/// quantized, and shows what that costs: loss, exposed communication, bytes.
///
/// Ranks are threads of this process; with `--device cuda` each drives a GPU of its own. Started by torchrun,
/// mpirun, srun, or by hand with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and WARPWEFT_SECRET,
/// it is one process of several: each has the GPU of its LOCAL_RANK, or as many as `--ranks` says, and the
/// process of rank 0 reports. Every rank owns a slice of rows of each matrix: FP32 master, Adam moments, and
/// the slice in the chosen format. Before a layer computes, its rows are gathered from all ranks; after its
/// backward the gradient is summed back to their owners. `--depth` says how many calls ahead weights are
/// gathered.
#[derive(Parser, Debug)]
#[command(name = "train", version, mut_args(taking_negative_numbers))]
pub(crate) struct Arguments {
    /// Where the ranks run: GPUs if there are enough of them, else the CPU; or what you say.
    #[arg(long, value_enum, default_value_t = DeviceKind::Auto)]
    pub(crate) device: DeviceKind,
    /// The GPU of each rank of this process, as in 0,1,2,3. Ranks may share one. [default: the first --ranks]
    #[arg(long, value_delimiter = ',', conflicts_with = "ranks", value_parser = gpu)]
    pub(crate) devices: Option<Vec<u32>>,
    /// Ranks in this process, on the CPU up to 64; each runs its own share of the batch. [default: 4, on GPUs one
    /// for each up to 4]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(Mesh::MAX_RANKS)))]
    pub(crate) ranks: Option<u32>,
    /// Replicas of the model, each sharded over its share of all ranks. [default: from --config]
    #[arg(long)]
    pub(crate) replicate: Option<u32>,
    /// Format of all matrices: f32, bf16, nvfp4_2d, fp8_block128_pow2, mxfp8, fp8_tensor_e4m3, …
    /// Rules in the configuration (`[[weights]]`) refine it by name.
    #[arg(long, default_value = "nvfp4_2d")]
    pub(crate) format: Format,
    /// How many calls ahead weights are gathered; 0 gathers on demand. [default: from --config]
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=i64::from(Prefetch::MAX_DEPTH)))]
    pub(crate) depth: Option<u32>,
    /// Of the first steps, try plans in so many (6 to 20) and go on with the fastest. [default: from --config]
    #[arg(long)]
    pub(crate) tune: Option<u32>,
    /// Training steps, at least one.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) steps: u32,
    /// Texts in one rank's batch.
    #[arg(long, value_name = "TEXTS", default_value_t = TEXTS, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) batch: u32,
    /// Batches whose gradients are accumulated for each step of the optimizer, one session step each.
    #[arg(long, value_name = "BATCHES", default_value_t = 1, conflicts_with_all = ["tune", "cluster"],
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) accumulate: u32,
    /// Configuration file. [default: examples/train/train.toml, as built in]
    #[arg(long)]
    pub(crate) config: Option<PathBuf>,
    /// Say at the end what a step was expected to take on this machine, a preset or a file of
    /// `warpweft calibrate`; with `prefetch.policy = "auto"` the planner counts with it. Needs more than ten
    /// steps, and on GPUs --trace FILE, because tasks are timed only then.
    #[arg(long, value_name = "PRESET|FILE")]
    pub(crate) cluster: Option<String>,
    /// Take the scales of per-tensor FP8 weights from the amaxes of earlier steps (quantize.scaling).
    #[arg(long)]
    pub(crate) delayed: bool,
    /// Capture the step once and replay it.
    #[arg(long)]
    pub(crate) capture: bool,
    /// Keep gathered weights for backward instead of gathering them again.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Run the backend under the checking layer.
    #[arg(long)]
    pub(crate) check: bool,
    /// Write a chrome trace of a few steps to this file.
    #[arg(long)]
    pub(crate) trace: Option<PathBuf>,
    /// Seed of weights and batches.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Folder for the loss curve.
    #[arg(long, default_value = "target/train")]
    pub(crate) out: PathBuf,
    /// Write the loss of every step to this file, one a line, with all its digits.
    #[arg(long)]
    pub(crate) losses: Option<PathBuf>,
    /// Keep sharded checkpoints below this folder: `step-<N>` after the last step. A run that is interrupted keeps
    /// those of --save-every. [default: none]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) save: Option<PathBuf>,
    /// Keep one after every so many steps too.
    #[arg(long, value_name = "STEPS", requires = "save", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) save_every: Option<u32>,
    /// Go on from a checkpoint of --save, on any number of ranks; --steps counts those made before.
    #[arg(long, value_name = "FOLDER")]
    pub(crate) resume: Option<PathBuf>,
    /// Print the plan of the training step and stop; no file is written.
    #[arg(long, conflicts_with_all = ["trace", "losses", "save", "resume"])]
    pub(crate) plan: bool,
    /// Text to train on: files, or folders of .md, .rs and .toml files. [default: this repository]
    pub(crate) text: Vec<PathBuf>,
}

/// Lets an option take `-1` for a value and not for another option, so that what is said is which values it takes.
fn taking_negative_numbers(argument: Arg) -> Arg {
    let takes = argument.get_long().is_some() && argument.get_action().takes_values();
    if takes { argument.allow_negative_numbers(true) } else { argument }
}

/// The number of a GPU.
fn gpu(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| format!("`{text}` is no GPU number; list them as in 0,1"))
}

impl Arguments {
    /// The trace that a run with these settings leaves, and what named it.
    pub(crate) fn trace<'a>(&self, settings: &'a Settings) -> Option<Trace<'a>> {
        let option = if self.trace.is_some() { "--trace" } else { "trace.path" };
        settings.trace.enabled.then(|| Trace { option, path: Path::new(&settings.trace.path) })
    }

    /// Says of every key that an option sets which one it is.
    fn name_keys(&self, settings: &mut Settings) {
        let options = [
            ("prefetch.depth", "--depth", self.depth.is_some()),
            ("prefetch.cluster", "--cluster", self.cluster.is_some()),
            ("mesh.dp_replicate", "--replicate", self.replicate.is_some()),
            ("tune.steps", "--tune", self.tune.is_some()),
            ("trace.path", "--trace", self.trace.is_some()),
        ];
        for (key, option, _) in options.into_iter().filter(|(_, _, given)| *given) {
            settings.set_by(key, option);
        }
    }

    /// Every file that is read, with what named it; `text` are those of the corpus.
    pub(crate) fn inputs(&self, text: &[PathBuf]) -> Vec<(&'static str, PathBuf)> {
        let text = text.iter().map(|path| ("the text", path.clone()));
        let cluster = self.cluster.iter().map(|name| ("--cluster", PathBuf::from(name)));
        let config = self.config.iter().map(|path| ("--config", path.clone()));
        text.chain(cluster).chain(config).collect()
    }
}

/// The configuration file with the flags on top.
pub(crate) fn settings(arguments: &Arguments) -> Result<Settings, Box<dyn Error>> {
    let mut settings = match &arguments.config {
        Some(path) => Settings::load(Some(path))?,
        None => Settings::load_toml_str(SETTINGS, "built-in train.toml")?,
    };
    if let Some(depth) = arguments.depth {
        settings.prefetch = settings.prefetch.started_as(Prefetch::depth(depth));
    }
    if let Some(cluster) = &arguments.cluster {
        // A name that is none is refused before anything runs.
        forecast::cluster(cluster)?;
        settings.prefetch.cluster.clone_from(cluster);
    }
    if let Some(replicate) = arguments.replicate {
        settings.mesh.dp_replicate = Some(replicate);
    }
    if let Some(steps) = arguments.tune {
        settings.tune.steps = steps;
    }
    if arguments.capture {
        settings.capture = Capture::Step;
    }
    if arguments.delayed {
        settings.quantize.scaling = Scaling::Delayed;
    }
    if arguments.keep {
        settings.backward = Backward::Keep;
    }
    settings.check |= arguments.check;
    if let Some(path) = &arguments.trace {
        settings.trace.enabled = true;
        // A path with other characters in the place of some would be another file.
        settings.trace.path = path.to_str().map(str::to_owned).ok_or_else(|| {
            let shown = path.display();
            format!(
                "--trace: `{shown}` is not UTF-8, and the configuration takes only text; name another file"
            )
        })?;
    }
    if arguments.plan {
        // Nothing runs, and an older trace stays what it is.
        settings.trace.enabled = false;
    }
    arguments.name_keys(&mut settings);
    settings.validate()?;
    Ok(settings)
}
