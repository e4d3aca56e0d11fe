//! The program as a reader runs it: it fails if it does not train as candle alone does.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

#[test]
fn layers_of_candle_train_in_every_format_as_by_candle_alone() {
    let run = Command::new(env!("CARGO_BIN_EXE_candle-on-a-gpu")).output().unwrap();
    println!("{}", String::from_utf8_lossy(&run.stdout));
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}
