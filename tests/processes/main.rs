//! Worlds of several processes: how they begin, how they end, and that each end names its cause on every process.
//!
//! Real processes: this program starts itself once for each, with what a launcher would set. It is a program of its own, because a
//! harness would run its other tests in the children too. `cargo test --test processes -- PART` runs those whose names have PART.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod child;
mod crew;
mod endings;
#[path = "../port/mod.rs"]
mod port;
mod worlds;

use std::panic::catch_unwind;
use std::time::Instant;

type Test = (&'static str, fn());

fn main() {
    if let Ok(role) = std::env::var(child::ROLE) {
        return child::run(&role);
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let all = [worlds::ALL, endings::ALL].concat();
    let is_wanted = |(name, _): &&Test| wanted.is_empty() || wanted.iter().any(|part| name.contains(part));
    let mut failed = Vec::new();
    for (name, test) in all.iter().filter(is_wanted) {
        let begun = Instant::now();
        let passed = catch_unwind(test).is_ok();
        println!("test {name} ... {} ({:.1?})", if passed { "ok" } else { "FAILED" }, begun.elapsed());
        if !passed {
            failed.push(*name);
        }
    }
    if !failed.is_empty() {
        println!("\nfailed: {}", failed.join(", "));
        std::process::exit(1);
    }
}
