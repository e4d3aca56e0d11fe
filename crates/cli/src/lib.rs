//! The program `warpweft`: quantizes checkpoints and converts them back, plans and simulates steps, draws traces,
//! measures machines.
//!
//! It is a user of the library `warpweft` and no part of it: a trainer needs nothing that is here. `main.rs` is what
//! belongs to a process; all else is in this small library, for the program, its tests, and whoever converts
//! checkpoints from code. No version number promises anything of what is hidden from these pages.
//!
//! ```no_run
//! use std::path::Path;
//! use warpweft_format::Format;
//! use warpweft_cli::{QuantizeOptions, quantize_checkpoint};
//!
//! let (input, output) = (Path::new("model.safetensors"), Path::new("model-nvfp4.safetensors"));
//! let report = quantize_checkpoint(input, output, &QuantizeOptions::new(Format::NVFP4_2D), &mut ())?;
//! println!("{report}");
//! # Ok::<(), warpweft_cli::ToolError>(())
//! ```
//!
//! Laws:
//! - **TL-2** a file under the output's name is whole; whatever fails leaves the name as it was.
//! - **TL-3** memory is in proportion to the header and to the largest tensor, never to the file, nor to a size
//!   that a file merely claims.
//! - **TL-4** the bytes are those of [`warpweft_format`]: nothing is computed here but the error that is reported.
//! - **TL-5** a schedule that is shown is the one a session would run; nothing is planned or timed here.
//!
//! | file | idea |
//! |---|---|
//! | `input`, `output` | safetensors files, read and written tensor by tensor by the library's reader and writer |
//! | `source`, `plan`, `quantize`, `shards` | into a format |
//! | `engines`, `engine_table` | into a folder that inference engines load |
//! | `dequantize` | back to f32 |
//! | `inspect` | what a checkpoint is |
//! | `report`, `table`, `text` | what was done, as data and as people read it |
//! | `formats` | the formats, explained |
//! | `progress`, `terminal` | how far the work is, and how it is stopped |
//! | `schedule` | a model's plan, its simulation, the search for its fastest policy, a trace: as text, pictures and files |
//! | `calibrate` | this machine measured, as a cluster file |
//! | `stack` | a stack of layers measured on GPUs (feature `cuda`) |
//! | `command` | arguments, help, exit codes |
//!
//! Anyone may call [`quantize_checkpoint`] and [`dequantize_checkpoint`]; they know no terminal. Deliberately
//! absent: any other file format.

mod calibrate;
pub mod command;
mod dequantize;
mod engine_table;
mod engines;
mod error;
mod formats;
mod input;
mod inspect;
mod measure_error;
mod options;
mod output;
mod plan;
mod progress;
mod quantize;
mod report;
mod schedule;
mod shards;
mod source;
#[cfg(feature = "cuda")]
mod stack;
mod table;
mod terminal;
mod text;

#[doc(hidden)]
pub use calibrate::{
    CalibrateDevice, CalibrateOptions, Calibration, Check, Compared, FitError, calibrate_machine,
};
pub use dequantize::dequantize_checkpoint;
pub use engines::{EngineInput, quantize_for_engines};
pub use error::ToolError;
pub use formats::describe_formats;
pub use inspect::{Inspection, Mismatch, Stored, inspect_checkpoint};
pub use measure_error::{MeasureError, Measuring};
pub use options::QuantizeOptions;
pub use progress::Progress;
pub use quantize::quantize_checkpoint;
pub use report::{Converted, Copied, CopyReason, Lost, Report};
pub use schedule::{
    LayoutOptions, MeshAxis, MeshChoice, ModelOptions, Outputs, PlanView, SimulateOptions, TracePart,
    TuneOptions, plan_model, rank_layouts, show_trace, simulate_model, tune_model,
};
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub use stack::{
    Ahead, Ending, Measured, Mode, StackFormat, StackOptions, StackReport, StackShape, Unit, bench_stack,
};
