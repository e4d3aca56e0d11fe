//! The process of the `warpweft` program. All else is in [`warpweft_cli`].

use std::process::ExitCode;
use std::sync::Arc;

use warpweft_cli::command::{self, Interrupts};

fn main() -> ExitCode {
    let interrupts = Arc::new(Interrupts::default());
    let handler = Arc::clone(&interrupts);
    let caught = ctrlc::set_handler(move || {
        if handler.came() {
            std::process::exit(Interrupts::EXIT_CODE.into());
        }
    });
    if let Err(error) = caught {
        eprintln!("warning: an interrupt will leave a temporary file behind: {error}");
    }
    command::run(std::env::args_os(), &interrupts)
}
