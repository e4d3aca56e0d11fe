//! Reads a trace this library wrote: a summary in text, and a picture.
//!
//! `cargo run --example 05_read_a_trace` reads the trace committed under `traces/`;
//! `cargo run --example 05_read_a_trace -- TRACE.json PICTURE.svg` reads yours, such as one from
//! `cargo run --release --example train -- --steps 12 --trace TRACE.json`.

#[path = "shared/print.rs"]
mod print;

use std::error::Error;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use warpweft::trace::{Summary, TimelinePicture, read_trace};

use print::println;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("05_read_a_trace: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("traces/train_depth_1.json");
    let trace = arguments.next().unwrap_or(committed);
    let picture = arguments.next().unwrap_or_else(|| std::env::temp_dir().join("warpweft_trace.svg"));

    let path = trace.display();
    let file = File::open(&trace)
        .map_err(|error| format!("`{path}` cannot be opened ({error}); name a file of `train --trace`"))?;
    let recorded = read_trace(file).map_err(|error| format!("`{path}`: {error}"))?;
    println!("{}", Summary::of(&recorded.timeline));

    // One step says more than all of them.
    let mut timeline = recorded.timeline;
    let first_step = timeline.slices.iter().map(|slice| slice.step).min();
    timeline.slices.retain(|slice| Some(slice.step) == first_step);
    timeline.arrows.clear();
    let name = trace.file_name().unwrap_or_default().to_string_lossy();
    let title = format!("One step, from {name}");
    let drawn = TimelinePicture { title, width: 1400, ..TimelinePicture::default() }.render(&timeline)?;
    std::fs::write(&picture, drawn).map_err(|error| {
        let path = picture.display();
        format!("the picture `{path}` cannot be written ({error}); name a file that you may write")
    })?;
    println!("picture of its first step: {}", picture.display());
    Ok(())
}
