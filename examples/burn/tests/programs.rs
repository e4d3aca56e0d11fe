//! The programs as a reader runs them: each learns, and the sharded ones are the others with a few lines more.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

const ALONE: &str = include_str!("../src/bin/alone.rs");
const SHARDED: &str = include_str!("../src/bin/sharded.rs");
const TEXT_ALONE: &str = include_str!("../src/bin/text_alone.rs");
const TEXT_SHARDED: &str = include_str!("../src/bin/text_sharded.rs");

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
fn a_few_layers_learn_sharded() {
    learns(env!("CARGO_BIN_EXE_sharded"));
}

#[test]
fn a_transformer_learns_on_one_device() {
    learns(env!("CARGO_BIN_EXE_text_alone"));
}

#[test]
fn a_transformer_learns_sharded() {
    learns(env!("CARGO_BIN_EXE_text_sharded"));
}

/// How many lines git would insert to make one program of the other, spaces and `use` left out.
fn inserted(from: &str, to: &str, name: &str) -> usize {
    let file = |kind: &str, text: &str| {
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("use ")).collect();
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{kind}.rs"));
        std::fs::write(&path, lines.join("\n") + "\n").unwrap();
        path
    };
    let (from, to) = (file("from", from), file("to", to));
    let difference =
        Command::new("git").args(["diff", "--no-index", "--numstat", "-w"]).args([from, to]).output();
    let printed = String::from_utf8(difference.unwrap().stdout).unwrap();
    println!("{printed}");
    printed.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn sharding_a_model_inserts_at_most_fifteen_lines() {
    for (name, from, to) in [("small", ALONE, SHARDED), ("text", TEXT_ALONE, TEXT_SHARDED)] {
        let lines = inserted(from, to, name);
        assert!((1..=15).contains(&lines), "{name}: {lines} lines");
    }
}

#[test]
fn the_page_from_burn_begins_with_the_sharded_program() {
    let page = include_str!("../../../docs/from-burn.md");
    let first = page.split("```").nth(1).and_then(|program| program.strip_prefix("rust,no_run\n"));
    assert_eq!(first, Some(SHARDED));
}
