//! Arguments, help texts and exit codes of `warpweft`.
//!
//! Law: what the program says goes to standard output, what it complains about to standard error. It exits with 0
//! when it did what it was asked, 1 when it could not, 2 when it was asked wrongly, 130 when it was interrupted.

#[cfg(feature = "cuda")]
mod bench;
mod calibrate;
mod engine;
mod inspect;
mod interrupts;
mod quantize;
mod schedule;
mod tune;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub use self::interrupts::Interrupts;

use self::calibrate::Calibrate;
use self::inspect::Inspect;
use self::quantize::Quantize;
use self::schedule::{Plan, Simulate, Trace};
use self::tune::Tune;
use super::{MeasureError, ToolError, describe_formats};

/// Quantizes checkpoints into the formats that warpweft trains in, bit for bit; plans and simulates training
/// steps.
#[derive(Debug, Parser)]
#[command(name = "warpweft", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Quantize(Quantize),
    Inspect(Inspect),
    /// Explains the formats: element, block, scale, bytes per element, purpose
    Formats,
    Plan(Plan),
    Simulate(Simulate),
    Tune(Tune),
    Trace(Trace),
    Calibrate(Calibrate),
    #[cfg(feature = "cuda")]
    Bench(bench::Bench),
}

impl Arguments {
    fn read(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let matches = taking_negative_numbers(Self::command()).try_get_matches_from(arguments)?;
        Self::from_arg_matches(&matches)
    }
}

/// Lets every option take `-1` for a value and not for another option, so that what is said is which values it takes.
fn taking_negative_numbers(command: clap::Command) -> clap::Command {
    let taking = |argument: clap::Arg| {
        let takes = argument.get_long().is_some() && argument.get_action().takes_values();
        if takes { argument.allow_negative_numbers(true) } else { argument }
    };
    command.mut_args(taking).mut_subcommands(taking_negative_numbers)
}

/// Runs the program. `arguments` begin with its name. Whoever catches interrupts tells `interrupts` of each, at
/// any time; quantizing ends at the next piece of a tensor then, measuring before the next program.
pub fn run(arguments: impl IntoIterator<Item = OsString>, interrupts: &Interrupts) -> ExitCode {
    let arguments = match Arguments::read(arguments) {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version too come this way; there is nobody to tell that printing failed.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let said = match arguments.command {
        Command::Formats => Ok(describe_formats()),
        Command::Quantize(quantize) => match quantize.run(interrupts.watch()) {
            Err(error) => Err(Failure::from(error)),
            Ok(done) if done.lost == 0 => Ok(done.text),
            Ok(done) => {
                print(&done.text);
                Err(Failure::Lost { matrices: done.lost })
            }
        },
        Command::Inspect(inspect) => inspect.run(interrupts.watch()).map_err(Failure::from),
        Command::Plan(plan) => plan.run().map_err(Failure::from),
        Command::Simulate(simulate) => simulate.run().map_err(Failure::from),
        Command::Tune(tune) => tune.run(interrupts).map_err(Failure::from),
        Command::Trace(trace) => trace.run().map_err(Failure::from),
        Command::Calibrate(calibrate) => calibrate.run(interrupts.watch()).map_err(Failure::from),
        #[cfg(feature = "cuda")]
        Command::Bench(bench) => bench.run(interrupts.watch()).map_err(Failure::from),
    };
    match said {
        Ok(text) => print(&text),
        Err(error) => {
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::from(if error.is_interruption() { Interrupts::EXIT_CODE } else { 1 })
        }
    }
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Checkpoint(#[from] ToolError),
    /// The output is there, and what it lost is printed.
    #[error(
        "{matrices} {} values that do not come back; the output was written, and the report says which",
        if *matrices == 1 { "matrix holds" } else { "matrices hold" }
    )]
    Lost { matrices: usize },
    #[error(transparent)]
    Measure(#[from] MeasureError),
}

impl Failure {
    const fn is_interruption(&self) -> bool {
        match self {
            Self::Checkpoint(error) => matches!(error, ToolError::Interrupted),
            Self::Lost { .. } => false,
            Self::Measure(error) => matches!(error, MeasureError::Interrupted(_)),
        }
    }
}

/// Prints what was requested. Whoever stops reading has read enough.
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
mod tests;
