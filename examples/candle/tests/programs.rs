//! What each program prints: the loss of the last step is at most 0.6 of the first.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::Command;

fn losses(program: &str) -> Vec<f32> {
    let run = Command::new(program).output().unwrap();
    let (printed, complaint) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{program}: {complaint}");
    let of_steps = printed.lines().filter(|line| line.starts_with("step"));
    of_steps.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
}

fn learns(program: &str) {
    let losses = losses(program);
    let (first, last) = (losses[0], losses[losses.len() - 1]);
    assert!(last <= 0.6 * first, "{program}: {first} to {last}");
}

#[test]
fn a_few_layers_learn_on_one_device() {
    learns(env!("CARGO_BIN_EXE_alone"));
}

#[test]
fn a_llama_learns_on_one_device() {
    learns(env!("CARGO_BIN_EXE_llama_alone"));
}
