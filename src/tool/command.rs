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
    QuantizeOptions, Report, ToolError, dequantize_checkpoint, describe_formats, formats, quantize_checkpoint,
};
use crate::format::{Format, FormatError, Via};

/// Quantizes checkpoints into the formats that warpweft trains in, bit for bit.
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
}

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
        Command::Quantize(quantize) => quantize.run(stop).map(|report| report.to_string()),
    };
    match said {
        Ok(text) => print(&text),
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(if matches!(error, ToolError::Interrupted) { 130 } else { 1 })
        }
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
        let examples: Vec<&str> =
            EXAMPLES.lines().map(str::trim).filter(|line| line.starts_with("warpweft ")).collect();
        assert_eq!(examples.len(), 4);
        for example in examples {
            parse(&example.replace('\'', "")).unwrap_or_else(|error| panic!("{error}"));
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
