//! Arguments of `warpweft bench`.
//!
//! Law: arguments are turned into options here and used elsewhere. No file is replaced without `--force`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use clap::{Args, Subcommand, ValueEnum};
use warpweft_backend::Transport;
use warpweft_base::whole_file::WholeFile;
use warpweft_format::ElementType;
use warpweft_plan::policy::ReduceDtype;

use super::super::stack::{
    Ahead, Ending, Mode, StackFormat, StackOptions, StackShape, Unit, bench_stack, trace_files,
};
use super::super::{MeasureError, Measuring};

/// Measures this machine's GPUs at work
#[derive(Debug, Args)]
pub(super) struct Bench {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Stack(Stack),
}

/// A decoder-shaped stack of linear layers, sharded over the GPUs, against its own products alone
///
/// A block holds qkv [3H, H], proj [H, H], fc1 [F, H] and fc2 [H, F]:
///
///   middle = x + proj(qkv(x)[.., ..H])
///   output = middle + fc2(gelu(fc1(middle)))
///
/// The loss is the sum of the last output; a step is forward and backward. First the stack is
/// measured resident: whole weights on every GPU, no session, no communication, task by task and as
/// one CUDA graph. Then every variant, whose weights are sharded, gathered before each use and
/// gathered again in backward. Then the resident stack again: GPUs that work slow down as they get
/// warm, so compare rows only where it took about as long as before; more --warm steps help. A
/// variant is named
///
///   format/unit/prefetch/mode/transport/ending        as in  bf16/block/depth1/graph/peer/gradients
///
///   format      bf16; fp8_block (FP8 products where the GPU has them); nvfp4 (on the wire, products
///               in bf16)
///   unit        what a call computes with, and a gather brings. weight: one weight. block: the four
///               of a block; they are one collective, and so are their gradients. The products, and
///               their order, are the same
///   prefetch    depth0 on demand, depthN gathers N units ahead, auto lets the planner choose. By
///               weights depth3 has at most one block in flight, depth7 at most two; by blocks depth1
///               has at most two. Gradients are reduced as many calls later, but no fewer than the
///               configuration's reduce_delay, unless --reduce-delay says how many; auto finds the number
///               itself, whatever either says
///   mode        eager issues every task in every step, graph replays a capture
///   transport   peer pushes by copy engines, nccl uses NCCL
///   ending      gradients ends with reduced gradients in f32 main grads; training goes on with the
///               optimizer (at a learning rate of 0, so that all steps compute the same) and
///               quantizes the weights anew
///
/// What a list names twice is measured once.
///
/// step       from the command to the last rank's answer, devices idle before it; median
/// ×          over the resident stack's step of the same mode
/// predicted  the variant's step simulated on --cluster, and by how much it is off; where it cannot be
///            simulated, a note says why
/// host       until everything is enqueued, on the slowest rank
/// traced     the step of a session of its own whose tasks are timed on the devices, and what that costs;
///            only with --traces
/// exposed    a collective runs and the compute lane runs nothing; of that session
/// wire       bytes that a rank receives in a step
/// arena      memory of a rank; transient: planes, gradients and activations among it
/// loss, norm relative to the resident stack's; bf16 agrees to rounding, other formats to their own
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, after_long_help = STACK_EXAMPLES)]
struct Stack {
    /// Width of the residual stream, H
    #[arg(long, value_name = "H", default_value = "4096", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    hidden: u32,

    /// Width between fc1 and fc2, F
    #[arg(long, value_name = "F", default_value = "16384", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    ffn: u32,

    /// Blocks
    #[arg(long, value_name = "N", default_value = "16", value_parser = clap::value_parser!(u32).range(1..=4096))]
    layers: u32,

    /// Tokens of one GPU in a step
    #[arg(long, value_name = "N", default_value = "8192", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    tokens: u32,

    /// The first N GPUs
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u16).range(1..=1024))]
    gpus: u16,

    /// Steps whose median is taken
    #[arg(long, value_name = "N", default_value = "10", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,

    /// Steps before them that are not counted; captures are made among them
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(3..=100_000))]
    warm: u32,

    /// Formats of the weights
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "bf16,fp8_block,nvfp4")]
    formats: Vec<FormatName>,

    /// What one call computes with and one gather brings
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "weight,block")]
    unit: Vec<UnitName>,

    /// How many units ahead gathers start, 0 to 7, or auto
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "0,1,2,7,auto", value_parser = parse_ahead)]
    depths: Vec<Ahead>,

    /// Issued in every step, or captured once
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "eager,graph")]
    modes: Vec<ModeName>,

    /// How bytes travel
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "peer,nccl")]
    transports: Vec<TransportName>,

    /// Without optimizer, with it
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "gradients,training")]
    endings: Vec<EndingName>,

    /// Only variants whose whole name matches; `*` is any text, `?` any character. May be repeated
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,

    /// In what products write weight gradients, sharded and resident. bf16: rounded by the product itself, into the memory they
    /// travel from, as PyTorch's are; to mxfp8 by a task. f32: rounded by a task, if they travel in bf16 or mxfp8
    #[arg(long, value_name = "DTYPE", default_value = "bf16")]
    gradients: DtypeName,

    /// In what gradients travel; those written in bf16 travel in no more bits, so f32 needs --gradients f32. PyTorch's script reduces in bf16
    #[arg(long, value_name = "DTYPE", default_value = "bf16")]
    reduce_dtype: WireName,

    /// How many calls after its own a gradient is reduced, 1 to 16, at any depth; auto finds its own. More evens out
    /// late sums, and costs a call's gradients of memory each
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=16))]
    reduce_delay: Option<u32>,

    /// The configuration that variants change; the environment (WARPWEFT_…) is read as well
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// A preset or a file that `warpweft calibrate` wrote: what `auto` counts with, and steps are predicted with
    #[arg(long, value_name = "NAME|FILE")]
    cluster: Option<String>,

    /// Run every variant once more with all tasks timed, each ending in a session of its own, and write a
    /// chrome trace of the first two steps that count into this folder, as
    /// format-unit-prefetch-mode-transport-ending.json. What times them: WARPWEFT_TRACE__DEVICE=auto, cupti
    /// or events
    #[arg(long, value_name = "FOLDER")]
    traces: Option<PathBuf>,

    /// Write all rows as JSON
    #[arg(long, value_name = "OUT.json")]
    json: Option<PathBuf>,

    /// Replace OUT.json and traces that exist
    #[arg(long)]
    force: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum FormatName {
    Bf16,
    #[value(name = "fp8_block")]
    Fp8Block,
    Nvfp4,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum UnitName {
    Weight,
    Block,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ModeName {
    Eager,
    Graph,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TransportName {
    Peer,
    Nccl,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EndingName {
    Gradients,
    Training,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DtypeName {
    F32,
    Bf16,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum WireName {
    F32,
    Bf16,
    Mxfp8,
}

pub(super) const STACK_EXAMPLES: &str = "\
Examples:
  The whole table for four GPUs, which takes a while:
    warpweft bench stack --gpus 4 --json stack.json

  How deep to prefetch, in bf16, captured:
    warpweft bench stack --formats bf16 --modes graph --transports peer --endings gradients

  What gathering small layers by blocks saves, against weight by weight:
    warpweft bench stack --hidden 1024 --ffn 4096 --layers 24 --tokens 4096 \\
      --formats bf16 --depths 1,2,7 --transports peer

  What writing gradients in bf16 saves, against f32 that is rounded:
    warpweft bench stack --formats bf16 --depths 2 --modes graph --gradients f32

  One variant, with a trace to look at:
    warpweft bench stack --only 'fp8_block/weight/depth2/graph/peer/training' --traces traces";

/// Most units ahead: of weights, two blocks in flight.
const DEEPEST: u32 = 7;

fn parse_ahead(text: &str) -> Result<Ahead, String> {
    match text.parse() {
        Ok(depth @ 0..=DEEPEST) => Ok(Ahead::Depth(depth)),
        _ if text == "auto" => Ok(Ahead::Auto),
        _ => Err(format!("a number of units from 0 to {DEEPEST}, or auto")),
    }
}

fn cannot_write(path: &Path) -> impl Fn(io::Error) -> MeasureError {
    move |source| match source.kind() {
        io::ErrorKind::AlreadyExists => MeasureError::Exists { path: path.to_owned(), of: Measuring::Stack },
        _ => MeasureError::File { action: "write", path: path.to_owned(), source },
    }
}

/// Refuses files that could not be written in the end, and those that nobody said may be replaced.
fn check_outputs(json: Option<&Path>, options: &StackOptions, replace: bool) -> Result<(), MeasureError> {
    if let Some(file) = options.traces.as_ref().filter(|path| path.exists() && !path.is_dir()) {
        let source = io::ErrorKind::NotADirectory.into();
        return Err(MeasureError::File { action: "write traces to", path: file.clone(), source });
    }
    // A folder that is not there yet has no files.
    let traced = options.traces.as_ref().is_some_and(|folder| folder.is_dir());
    let traces = if traced { trace_files(options) } else { Vec::new() };
    for path in json.into_iter().chain(traces.iter().map(PathBuf::as_path)) {
        WholeFile::check(path, replace).map_err(cannot_write(path))?;
    }
    Ok(())
}

impl Bench {
    pub(super) fn run(self, stop: &AtomicBool) -> Result<String, MeasureError> {
        let What::Stack(stack) = self.what;
        stack.run(stop)
    }
}

impl Stack {
    fn run(self, stop: &AtomicBool) -> Result<String, MeasureError> {
        let replace = self.force;
        let (json, options) = self.options();
        // Before minutes of measuring.
        check_outputs(json.as_deref(), &options, replace)?;
        let mut say = |line: &str| {
            let _ = writeln!(io::stderr(), "{line}");
        };
        let report = bench_stack(&options, stop, &mut say)?;
        let written = json.map_or(Ok(()), |path| {
            let cannot = cannot_write(&path);
            let mut text = serde_json::to_string_pretty(&report).map_err(|error| cannot(error.into()))?;
            text.push('\n');
            WholeFile::write_as(&path, text.as_bytes(), replace).map_err(cannot)
        });
        if let Err(error) = written.and_then(|()| report.check()) {
            let _ = write!(io::stdout(), "{report}");
            return Err(error);
        }
        Ok(report.to_string())
    }

    fn options(self) -> (Option<PathBuf>, StackOptions) {
        let of_format = |name| match name {
            FormatName::Bf16 => StackFormat::Bf16,
            FormatName::Fp8Block => StackFormat::Fp8Block,
            FormatName::Nvfp4 => StackFormat::Nvfp4,
        };
        let of_unit = |name| match name {
            UnitName::Weight => Unit::Weight,
            UnitName::Block => Unit::Block,
        };
        let of_mode = |name| match name {
            ModeName::Eager => Mode::Eager,
            ModeName::Graph => Mode::Graph,
        };
        let of_transport = |name| match name {
            TransportName::Peer => Transport::Peer,
            TransportName::Nccl => Transport::Nccl,
        };
        let of_ending = |name| match name {
            EndingName::Gradients => Ending::Gradients,
            EndingName::Training => Ending::Training,
        };
        let options = StackOptions {
            shape: StackShape {
                hidden: self.hidden as usize,
                ffn: self.ffn as usize,
                layers: self.layers as usize,
                tokens: self.tokens as usize,
            },
            gpus: self.gpus.into(),
            steps: self.steps as usize,
            warm: self.warm as usize,
            formats: self.formats.into_iter().map(of_format).collect(),
            units: self.unit.into_iter().map(of_unit).collect(),
            ahead: self.depths,
            modes: self.modes.into_iter().map(of_mode).collect(),
            transports: self.transports.into_iter().map(of_transport).collect(),
            endings: self.endings.into_iter().map(of_ending).collect(),
            only: self.only,
            gradients: match self.gradients {
                DtypeName::F32 => ElementType::F32,
                DtypeName::Bf16 => ElementType::Bf16,
            },
            reduce_dtype: match self.reduce_dtype {
                WireName::F32 => ReduceDtype::F32,
                WireName::Bf16 => ReduceDtype::Bf16,
                WireName::Mxfp8 => ReduceDtype::Mxfp8,
            },
            reduce_delay: self.reduce_delay,
            config: self.config,
            cluster: self.cluster,
            traces: self.traces,
        };
        (self.json, options)
    }
}

#[cfg(test)]
mod tests;
