//! Arguments of `warpweft calibrate`.
//!
//! Law: arguments are turned into options here and used elsewhere. No file is replaced without `--force`,
//! also none that appeared meanwhile, nothing but a plain file at all, and none is written unless all of it
//! was measured.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use warpweft_base::errors::shown_path;
use warpweft_base::whole_file::WholeFile;
use warpweft_plan::cluster::{Algorithm, MOST_MEMORY};
use warpweft_plan::model::Math;
use warpweft_plan::policy::{ByteSize, ByteSizeError};
use warpweft_session::config::Speed;

use super::super::{CalibrateDevice, CalibrateOptions, MeasureError, Measuring, calibrate_machine};

/// Measures this machine and writes the cluster file that simulate, plan and tune read
///
/// prefetch.policy = "auto" reads it too. Small sessions are run, as a user's would be, and
/// every number is read from when their tasks ran:
///
///   inside        latency and bytes per second of gathers and reductions, a robust line through a
///                 ladder of sizes
///   hbm           speed of memory as the library's own kernels use it: amax, casts, transposes,
///                 dequantization, Adam
///   flops_per_s   products: on the CPU those of ndarray in f32, on GPUs linear layers, forward and both
///                 gradients. What your closures reach is yours to say: --flops
///   kernel_us     what one more small kernel takes in a call
///   launch_us     what one more small task costs a step; replay_us what a captured step takes beside
///                 its tasks
///   contention    how much longer tasks take beside another lane, read task by task from one run
///   jitter        how late local tasks are, from the quartiles of their times
///
/// Then a step of a decoder-like stack, from which no number was read, is predicted with the new file
/// and measured: the table at the end says how far off the prediction is, op by op.
///
/// One node is measured, all ranks of which are in this process. Leave the machine alone meanwhile.
/// On a CPU take no more ranks than half its cores: ranks that wait for a core are late in ways that
/// no cluster file says.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, after_long_help = EXAMPLES)]
pub(super) struct Calibrate {
    /// The cluster file to write
    #[arg(value_name = "OUT.toml")]
    out: PathBuf,

    /// What is measured: GPUs if there are enough of them, else the CPU; or what you say
    #[arg(long, value_name = "DEVICE", default_value = "auto", conflicts_with = "simulated")]
    device: DeviceName,

    /// Measure a simulated cluster, a preset or a file, and find its numbers again: a test of the instrument
    #[arg(long, value_name = "PRESET|FILE")]
    simulated: Option<String>,

    /// Ranks of the node; on GPUs one for each of the first N
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u32).range(2..=4096))]
    ranks: u32,

    /// What the cluster is called
    #[arg(long, value_name = "NAME", default_value = "measured", value_parser = parse_name)]
    name: String,

    /// The formula that latency and speed of the link are fitted to: parts at once from every peer, or around a ring
    #[arg(long, value_name = "ALGORITHM", default_value = "direct")]
    algorithm: AlgorithmName,

    /// Steps of each program that count
    #[arg(long, value_name = "N", default_value = "12", value_parser = clap::value_parser!(u32).range(3..=10_000))]
    repeats: u32,

    /// The largest gradient that is reduced [default: 4 MiB on a CPU, 256 MiB on GPUs, simulated ones too]
    #[arg(long, value_name = "SIZE", value_parser = parse_largest)]
    largest: Option<ByteSize>,

    /// The configuration whose pacing (cpu.link), transport, reduce, reduce_dtype and deadline are measured; the
    /// environment (WARPWEFT_…) is read as well
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Take the links between nodes, which are not measured, from another cluster
    #[arg(long, value_name = "PRESET|FILE")]
    between: Option<String>,

    /// Operations per second that you know better, as in bf16=715e12; may be repeated
    #[arg(long, value_name = "MATH=SPEED", value_parser = parse_flops)]
    flops: Vec<(Math, f64)>,

    /// Memory of one rank, in place of what the device says
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory: Option<ByteSize>,

    /// Replace OUT.toml if it exists
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DeviceName {
    Auto,
    Cpu,
    Cuda,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AlgorithmName {
    Direct,
    Ring,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  This machine's GPUs, and what a model does on them:
    warpweft calibrate ours.toml --device cuda --ranks 4
    warpweft simulate 8b.toml --cluster ours.toml --ranks 4

  Two ranks on the CPU with the paced link of an example:
    warpweft calibrate paced.toml --device cpu --config examples/train/paced.toml

  Does the instrument find the numbers of a file again?
    warpweft calibrate again.toml --simulated h200x4 --ranks 4";

fn parse_flops(text: &str) -> Result<(Math, f64), String> {
    let wanted = "as in bf16=715e12: f32, bf16, fp8 or fp4, and a number of operations per second";
    let (math, speed) = text.split_once('=').ok_or(wanted)?;
    let math = match math {
        "f32" => Math::F32,
        "bf16" => Math::Bf16,
        "fp8" => Math::Fp8,
        "fp4" => Math::Fp4,
        _ => return Err(wanted.to_owned()),
    };
    let speed: f64 = speed.parse().map_err(|_| wanted)?;
    match Speed::FLOPS.admits(speed) {
        true => Ok((math, speed)),
        false => Err(format!("set it to {}", Speed::FLOPS.words(Some(speed)))),
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    if text.is_empty() { Err("set it to text that is not empty".to_owned()) } else { Ok(text.to_owned()) }
}

fn parse_largest(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|error: ByteSizeError| error.to_string())?;
    if size.bytes() > 0 { Ok(size) } else { Err("set it to a size above zero".to_owned()) }
}

fn parse_memory(text: &str) -> Result<ByteSize, String> {
    let size: ByteSize = text.parse().map_err(|error: ByteSizeError| error.to_string())?;
    match size.bytes() {
        1..=MOST_MEMORY => Ok(size),
        _ => Err(format!("set it to a size above zero, of at most {}", ByteSize::new(MOST_MEMORY))),
    }
}

impl Calibrate {
    pub(super) fn run(self, stop: &AtomicBool) -> Result<String, MeasureError> {
        let replace = self.force;
        // Before minutes of measuring.
        WholeFile::check(&self.out, replace).map_err(cannot_write(&self.out))?;
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{bar:20} {pos} of {len}  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let mut watch = |done: usize, all: usize, what: &str| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
            bar.set_message(what.to_owned());
        };
        let (out, options) = self.options();
        let measured = calibrate_machine(&options, stop, &mut watch);
        bar.finish_and_clear();
        let calibration = measured?;
        WholeFile::write_as(&out, calibration.file.as_bytes(), replace).map_err(cannot_write(&out))?;
        let warnings: String =
            calibration.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect();
        Ok(format!("{calibration}\n{warnings}written: {}\n", shown_path(&out)))
    }

    pub(super) fn options(self) -> (PathBuf, CalibrateOptions) {
        let source = match (&self.simulated, self.device) {
            (Some(cluster), _) => format!("--simulated {}", cluster.escape_debug()),
            (None, device) => format!("--device {device:?}").to_lowercase(),
        };
        let command = self.command(&source);
        let device = match (self.simulated, self.device) {
            (Some(cluster), _) => CalibrateDevice::Simulated(cluster),
            (None, DeviceName::Auto) => CalibrateDevice::Auto,
            (None, DeviceName::Cpu) => CalibrateDevice::Cpu,
            (None, DeviceName::Cuda) => CalibrateDevice::Cuda,
        };
        let options = CalibrateOptions {
            repeats: self.repeats as usize,
            name: self.name,
            algorithm: match self.algorithm {
                AlgorithmName::Direct => Algorithm::Direct,
                AlgorithmName::Ring => Algorithm::Ring,
            },
            largest: self.largest.map(ByteSize::bytes),
            config: self.config,
            between: self.between,
            flops: self.flops,
            memory: self.memory.map(ByteSize::bytes),
            command,
            ..CalibrateOptions::new(device, self.ranks)
        };
        (self.out, options)
    }
}

impl Calibrate {
    /// What was requested, but for the file it is written to.
    fn command(&self, source: &str) -> String {
        let Self { ranks, repeats, name, largest, config, between, flops, memory, .. } = self;
        let mut command = format!("warpweft calibrate {source} --ranks {ranks} --repeats {repeats}");
        let mut add = |option: &str, value: Option<String>| {
            if let Some(value) = value {
                command.push_str(&format!(" --{option} {}", value.escape_debug()));
            }
        };
        add("name", (name != "measured").then(|| name.clone()));
        add("algorithm", matches!(self.algorithm, AlgorithmName::Ring).then(|| "ring".to_owned()));
        add("largest", largest.map(|size| format!("{}B", size.bytes())));
        add("config", config.as_ref().map(|path| path.display().to_string()));
        add("between", between.clone());
        for (math, speed) in flops {
            add("flops", Some(format!("{}={speed:e}", format!("{math:?}").to_lowercase())));
        }
        add("memory", memory.map(|size| format!("{}B", size.bytes())));
        command
    }
}

fn cannot_write(path: &Path) -> impl Fn(io::Error) -> MeasureError {
    move |source| match source.kind() {
        io::ErrorKind::AlreadyExists => {
            MeasureError::Exists { path: path.to_owned(), of: Measuring::Machine }
        }
        _ => MeasureError::File { action: "write", path: path.to_owned(), source },
    }
}
