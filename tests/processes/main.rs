//! Worlds of several processes: how they begin, how they end, and that each end names its cause on every process.
//! And processes that are killed in a save.
//!
//! Real processes: this program starts itself once for each, with what a launcher would set. It is a program
//! of its own, because a harness would run its other tests in the children too.
//! `cargo test --test processes -- PART` runs those whose names have PART.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod child;
mod crew;
mod endings;
mod killed_saves;
mod optimizers;
mod strangers;
mod worlds;

use std::panic::catch_unwind;
use std::time::Instant;

type Test = (&'static str, fn());

fn main() {
    if let Ok(role) = std::env::var(child::ROLE) {
        return child::run(&role);
    }
    if let Ok(role) = std::env::var(killed_saves::ROLE) {
        return killed_saves::run(&role);
    }
    let wanted: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |(name, _): &Test| wanted.is_empty() || wanted.iter().any(|part| name.contains(part));
    let (at_once, after_a_wait): (Vec<Test>, Vec<Test>) = (
        [worlds::ALL, endings::AT_ONCE, optimizers::ALL, killed_saves::ALL]
            .concat()
            .into_iter()
            .filter(wanted)
            .collect(),
        endings::AFTER_A_WAIT.iter().copied().filter(wanted).collect(),
    );
    // Tests that wait take no processor from others, and wait together.
    let failed: Vec<&str> = std::thread::scope(|scope| {
        let waiting: Vec<_> =
            after_a_wait.into_iter().map(|test| scope.spawn(move || failure(test))).collect();
        let mut failed: Vec<_> = at_once.into_iter().filter_map(failure).collect();
        failed.extend(waiting.into_iter().filter_map(|test| test.join().unwrap()));
        failed
    });
    if !failed.is_empty() {
        println!("\nfailed: {}", failed.join(", "));
        std::process::exit(1);
    }
}

/// Runs a test, says how it ended, and returns its name if it failed.
fn failure((name, test): Test) -> Option<&'static str> {
    let begun = Instant::now();
    let passed = catch_unwind(test).is_ok();
    println!("test {name} ... {} ({:.1?})", if passed { "ok" } else { "FAILED" }, begun.elapsed());
    (!passed).then_some(name)
}
