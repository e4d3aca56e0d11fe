//! Arguments, help texts and exit codes of `warpweft`.
//!
//! Law: what the program says goes to standard output, what it complains about to standard error. It exits with 0
//! when it did what it was asked, 1 when it could not, 2 when it was asked wrongly, 130 when it was interrupted.

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::terminal::Terminal;
use super::{
    PlanView, QuantizeOptions, Report, ScheduleError, SimulateOptions, ToolError, dequantize_checkpoint,
    describe_formats, formats, plan_model, quantize_checkpoint, show_trace, simulate_model,
};
use crate::format::{Format, FormatError, Via};

/// Quantizes checkpoints into the formats that warpweft trains in, bit for bit; plans and simulates training steps.
#[derive(Debug, Parser)]
#[command(name = "warpweft", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Quantize(Quantize),
    /// Explains the formats: element, block, scale, bytes per element, purpose
    Formats,
    Plan(Plan),
    Simulate(Simulate),
    Trace(Trace),
}

/// Plans one training step of a decoder and says what it needs: tasks, memory, bytes on the wire
///
/// MODEL.toml declares the decoder by its sizes:
///
///   name = "8b"              what it is called
///   layers = 32              blocks of attention and MLP
///   hidden = 4096            width of the residual stream
///   ffn = 14336              width of gate and up, each
///   heads = 32               query heads
///   kv_heads = 8             key and value heads; as many as heads when left out
///   vocabulary = 128256      rows of embedding and head
///   tokens = 8192            tokens of one rank in one step
///   sequence = 8192          tokens that attend to each other; all of them when left out
///   math = "fp8"             what products are computed in: f32, bf16, fp8, fp4
///   format = "nvfp4_2d"      format of the blocks' matrices; `warpweft formats` explains them
///   embedding_format = "bf16"  that of embedding and head; bf16 when left out
///   experts = 64             experts of every MLP, each of width ffn; 1 when left out
///   experts_per_token = 6    experts that a token passes through; 1 when left out
///   tied = true              the head is the embedding; false when left out
///   replays = 1              how often the last block runs again; 0 when left out
///
/// Each block is four calls (qkv, attention, up, down), forward and backward. Rules that give single weights
/// another format, and everything else that can be chosen, are in the configuration (--config).
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, after_long_help = PLAN_EXAMPLES)]
struct Plan {
    #[command(flatten)]
    model: ModelArguments,

    /// Ranks that the weights are sharded over
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    ranks: u32,

    /// Print every task in issue order: lane, bytes received, what it waits for
    #[arg(long, conflicts_with = "dot")]
    tasks: bool,

    /// Print the plan as Graphviz source; render it with `dot -Tsvg`
    #[arg(long)]
    dot: bool,
}

/// Runs training steps of a decoder in virtual time, on a cluster that need not exist
///
/// The plan is the one a session would run, issued by the same actors with the same messages; only time and
/// memory are counted instead of spent. MODEL.toml is as for `warpweft plan --help`. The cluster is a preset
///
///   h200x4        one host of four H200, bytes pulled by copy engines; measured
///   h100x8-ib     hosts of eight H100, one InfiniBand port per GPU
///   gb200-nvl72   racks of 72 GB200 in one NVLink domain
///
/// or a file like them (src/cluster/presets shows every key, and where its number comes from).
///
/// step      mean time of a step on the slowest rank, after one step that is not counted
/// exposed   a collective runs and the compute lane runs nothing, as a share of the step
/// skew      a collective waits for its last rank; needs jitter or stragglers in the cluster
/// idle      neither computes nor communicates: the optimizer, casts, launches
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, after_long_help = SIMULATE_EXAMPLES)]
struct Simulate {
    #[command(flatten)]
    model: ModelArguments,

    /// A preset or a file
    #[arg(long, value_name = "PRESET|FILE")]
    cluster: String,

    /// Ranks that the weights are sharded over; node after node
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    ranks: u32,

    /// Steps to take the mean of; they differ where the cluster has jitter
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1000))]
    steps: u32,

    /// Write rank 0's last step as a chrome trace, for Perfetto; replaces the file
    #[arg(long, value_name = "OUT.json")]
    trace: Option<PathBuf>,

    /// Draw rank 0's last step; replaces the file
    #[arg(long, value_name = "OUT.svg")]
    picture: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ModelArguments {
    /// The decoder, declared by its sizes
    #[arg(value_name = "MODEL.toml")]
    model: PathBuf,

    /// The configuration to plan with; the environment (WARPWEFT_…) is read as well
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Uses ahead of which a gather may start, over the configuration's prefetch.depth; 0 is on demand
    #[arg(long, value_name = "D", value_parser = clap::value_parser!(u32).range(0..=64))]
    depth: Option<u32>,
}

/// Sums up a trace that warpweft wrote, and draws one step of it
///
/// Traces come from `warpweft simulate --trace`, from sessions with `trace.enabled`, and from the example
/// `train --trace`. The summary says per rank where step time went, and per lane how busy it was; the picture has a
/// row per lane, with exposed communication shaded.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
struct Trace {
    /// The trace
    #[arg(value_name = "TRACE.json")]
    trace: PathBuf,

    /// Draw a step; replaces the file
    #[arg(long, value_name = "OUT.svg")]
    picture: Option<PathBuf>,

    /// The step to draw, by its number in the session; the first of the trace when left out
    #[arg(long, value_name = "N", requires = "picture")]
    step: Option<u64>,
}

const PLAN_EXAMPLES: &str = "\
Examples:
  What an 8B decoder needs on 64 ranks:
    warpweft plan 8b.toml --ranks 64

  The order of everything, and the picture of it:
    warpweft plan 8b.toml --tasks
    warpweft plan 8b.toml --dot > plan.dot";

const SIMULATE_EXAMPLES: &str = "\
Examples:
  What prefetching gains:
    warpweft simulate 8b.toml --cluster h200x4 --ranks 4 --depth 0
    warpweft simulate 8b.toml --cluster h200x4 --ranks 4 --depth 2 --picture depth2.svg

  Four thousand ranks of a cluster of your own:
    warpweft simulate 8b.toml --cluster ours.toml --ranks 4096 --trace step.json";

/// Quantizes the matrices of a safetensors checkpoint, or turns them back to f32
///
/// Every tensor of two dimensions in F32, BF16 or F16 is quantized in both orientations; all other tensors are
/// copied. Tensor X of shape [M, K] becomes:
///
///   X.rowwise_data      codes, blocks along the rows: what forward reads
///   X.rowwise_scale     their decode scales, padded as a GEMM wants them
///   X.columnwise_data   codes, blocks along the columns: what backward reads
///   X.columnwise_scale  their decode scales
///   X.amax              largest magnitude of X
///
/// The metadata gains `warpweft_quantized`, which names the format and the tensors as they were. Tensors are read
/// one by one, so the file may be larger than memory. The output appears whole or not at all.
#[derive(Debug, Args)]
#[command(verbatim_doc_comment, after_long_help = EXAMPLES)]
struct Quantize {
    /// The format to quantize into; `warpweft formats` explains them
    #[arg(long, value_name = "FORMAT", value_parser = parse_format, long_help = format_help())]
    #[arg(required_unless_present = "dequantize")]
    format: Option<Format>,

    /// Go back: turn a file that this command wrote into f32, from the rowwise parts
    #[arg(long, conflicts_with_all = ["format", "only", "strict", "via", "shards"])]
    dequantize: bool,

    /// Quantize only tensors whose whole name matches; `*` is any text, `?` any character. May be repeated
    #[arg(long, value_name = "PATTERN")]
    only: Vec<String>,

    /// Fail when the format refuses the shape of a matrix, instead of copying it
    #[arg(long)]
    strict: bool,

    /// Round the values first, as a model kept in that dtype does
    #[arg(long, value_name = "DTYPE", default_value = "none")]
    via: Rounding,

    /// Quantize as N ranks do that own flat shards (ZeRO), cut at any element; the bytes are the same
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    shards: Option<u16>,

    /// Replace OUT if it exists, once the new file is whole
    #[arg(long)]
    force: bool,

    /// The checkpoint to read
    #[arg(value_name = "IN.safetensors")]
    input: PathBuf,

    /// The checkpoint to write
    #[arg(value_name = "OUT.safetensors")]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Rounding {
    /// The values as they are
    None,
    /// bfloat16, nearest even
    Bf16,
}

const EXAMPLES: &str = "\
Examples:
  All matrices into NVFP4:
    warpweft quantize --format nvfp4_2d model.safetensors model-nvfp4.safetensors

  Only the MLPs, into block FP8, and no matrix left out:
    warpweft quantize --format fp8_block128_pow2 --only 'blocks.*.mlp.*' --strict in.safetensors out.safetensors

  Back to f32:
    warpweft quantize --dequantize model-nvfp4.safetensors back.safetensors

  The bytes that eight training ranks would make together:
    warpweft quantize --format mxfp8 --via bf16 --shards 8 in.safetensors out.safetensors";

fn format_help() -> String {
    format!(
        "\
The format to quantize into: its name, its block, bytes per element of both orientations, and what it
is for. A matrix whose shape it cannot take is copied, and listed with the shape that it could take.

{}
`warpweft formats` tells more.",
        formats::list()
    )
}

fn parse_format(name: &str) -> Result<Format, String> {
    match name.parse() {
        Ok(format @ (Format::F32 | Format::Bf16)) => Err(ToolError::NotQuantizing { format }.to_string()),
        Ok(format) => Ok(format),
        Err(FormatError::UnknownName { .. }) => {
            Err(format!("there is no such format; choose one of {}", formats::quantizing_names()))
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Runs the program. `arguments` begin with its name; `stop` ends it at the next piece of a tensor, and may be set at
/// any time.
pub fn run(arguments: impl IntoIterator<Item = OsString>, stop: &AtomicBool) -> ExitCode {
    let arguments = match Arguments::try_parse_from(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version too come this way; there is nobody to tell that printing failed.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let said = match arguments.command {
        Command::Formats => Ok(describe_formats()),
        Command::Quantize(quantize) => {
            quantize.run(stop).map(|report| report.to_string()).map_err(Failure::from)
        }
        Command::Plan(plan) => plan.run().map_err(Failure::from),
        Command::Simulate(simulate) => simulate.run().map_err(Failure::from),
        Command::Trace(Trace { trace, picture, step }) => {
            show_trace(&trace, picture.as_deref(), step).map_err(Failure::from)
        }
    };
    match said {
        Ok(text) => print(&text),
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(if matches!(error, Failure::Checkpoint(ToolError::Interrupted)) { 130 } else { 1 })
        }
    }
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Checkpoint(#[from] ToolError),
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

impl Plan {
    fn run(self) -> Result<String, ScheduleError> {
        let ModelArguments { model, config, depth } = self.model;
        let view = match (self.tasks, self.dot) {
            (_, true) => PlanView::Dot,
            (true, false) => PlanView::Tasks,
            (false, false) => PlanView::Totals,
        };
        plan_model(&model, config.as_deref(), depth, self.ranks, view)
    }
}

impl Simulate {
    fn run(self) -> Result<String, ScheduleError> {
        let ModelArguments { model, config, depth } = self.model;
        simulate_model(&SimulateOptions {
            model,
            config,
            depth,
            cluster: self.cluster,
            ranks: self.ranks,
            steps: self.steps,
            trace: self.trace,
            picture: self.picture,
        })
    }
}

impl Quantize {
    fn run(self, stop: &AtomicBool) -> Result<Report, ToolError> {
        let mut terminal = Terminal::new(stop);
        let Some(format) = self.format else {
            return dequantize_checkpoint(&self.input, &self.output, self.force, &mut terminal);
        };
        let options = QuantizeOptions {
            format,
            via: match self.via {
                Rounding::None => Via::None,
                Rounding::Bf16 => Via::Bf16,
            },
            only: self.only,
            strict: self.strict,
            shards: self.shards.and_then(|ranks| NonZeroUsize::new(ranks.into())),
            replace: self.force,
        };
        quantize_checkpoint(&self.input, &self.output, &options, &mut terminal)
    }
}

/// Prints what was asked for. Whoever stops reading has read enough.
fn print(text: &str) -> ExitCode {
    let mut output = io::stdout().lock();
    match output.write_all(text.as_bytes()).and_then(|()| output.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            let _ = writeln!(io::stderr(), "error: cannot write to standard output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_arguments_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_help_of_quantize_explains_every_format_it_takes() {
        let help = parse("warpweft quantize --help").unwrap_err().to_string();
        for name in formats::quantizing_names().split(", ") {
            assert!(help.contains(name), "{name}: {help}");
        }
        assert!(help.contains("X.columnwise_scale") && help.contains("Examples:"), "{help}");
    }

    #[test]
    fn the_examples_of_the_help_parse() {
        let all = [EXAMPLES, PLAN_EXAMPLES, SIMULATE_EXAMPLES].join("\n");
        let examples: Vec<&str> =
            all.lines().map(str::trim).filter(|line| line.starts_with("warpweft ")).collect();
        assert_eq!(examples.len(), 10);
        for example in examples {
            let typed = example.replace('\'', "");
            let typed = typed.split(" > ").next().unwrap();
            parse(typed).unwrap_or_else(|error| panic!("{error}"));
        }
    }

    #[test]
    fn the_help_of_simulate_names_every_preset() {
        let help = parse("warpweft simulate --help").unwrap_err().to_string();
        for (name, _) in crate::cluster::PRESETS {
            assert!(help.contains(name), "{name}: {help}");
        }
        let help = parse("warpweft plan --help").unwrap_err().to_string();
        for rule in <crate::model::Decoder as crate::config::Declared>::RULES {
            assert!(help.contains(&format!("\n  {} = ", rule.key)), "{}: {help}", rule.key);
        }
    }

    #[test]
    fn what_makes_no_sense_together_is_refused() {
        for (line, complaint) in [
            ("warpweft quantize in out", "--format <FORMAT>"),
            ("warpweft quantize --format nvfp4 --dequantize in out", "cannot be used with"),
            ("warpweft quantize --dequantize --only x in out", "cannot be used with"),
            ("warpweft quantize --format fp3 in out", "choose one of nvfp4_2d, "),
            ("warpweft quantize --format bf16 in out", "bf16 does not quantize; choose one of nvfp4_2d, "),
            ("warpweft quantize --format fp8_tensor_e4m3_eps-1 in out", "epsilon -1"),
            ("warpweft quantize --format nvfp4 --shards 0 in out", "0 is not in 1..=1024"),
            ("warpweft quantize --format nvfp4 in", "OUT.safetensors"),
            ("warpweft plan m.toml --dot --tasks", "cannot be used with"),
            ("warpweft simulate m.toml --ranks 4", "--cluster"),
            ("warpweft simulate m.toml --cluster h200x4 --ranks 0", "0 is not in 1..=1000000"),
            ("warpweft simulate m.toml --cluster h200x4 --ranks 4 --depth 65", "65 is not in 0..=64"),
            ("warpweft trace t.json --step 3", "--picture"),
        ] {
            let message = parse(line).unwrap_err().to_string();
            assert!(message.contains(complaint), "{line}: {message}");
        }
    }

    #[test]
    fn a_repeated_pattern_adds_to_the_selection() {
        let Command::Quantize(quantize) =
            parse("warpweft quantize --format nvfp4 --only a* --only b in out").unwrap().command
        else {
            panic!("another command");
        };
        assert_eq!(quantize.only, ["a*", "b"]);
    }
}
