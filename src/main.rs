//! The `warpweft` program. What it does is in [`warpweft::tool`]; here is what belongs to a process.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use warpweft::tool::command;

fn main() -> ExitCode {
    let stop = Arc::new(AtomicBool::new(false));
    let handler = Arc::clone(&stop);
    if let Err(error) = ctrlc::set_handler(move || handler.store(true, Ordering::Relaxed)) {
        eprintln!("warning: an interrupt will leave a temporary file behind: {error}");
    }
    command::run(std::env::args_os(), &stop)
}
