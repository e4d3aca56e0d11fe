//! The programs as a reader runs them: each learns.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

/// The loss of the last step that a program prints is at most 0.6 of the first.
fn learns(program: &str) {
    let run = Command::new(program).output().unwrap();
    let (printed, complaint) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{program}: {complaint}");
    let of_steps = printed.lines().filter(|line| line.starts_with("step"));
    let losses: Vec<f32> = of_steps.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect();
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    println!("{program}: {first} to {last}");
    assert!(last <= 0.6 * first, "{program}: {first} to {last}");
}

#[test]
fn a_few_layers_learn_on_one_device() {
    learns(env!("CARGO_BIN_EXE_alone"));
}

#[test]
fn a_transformer_learns_on_one_device() {
    learns(env!("CARGO_BIN_EXE_text_alone"));
}
