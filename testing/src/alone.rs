//! A runner for tests that need the process for themselves: one after another, in the order they are listed.
//!
//! Each has a thread of its own, as with the harness of the language. Arguments choose tests by part of their
//! name; `--list` lists them.

use std::time::Instant;

/// What a test is called, from its crate on, and what it does.
pub type Test = (&'static str, fn());

/// Lists the tests of a module as `ALL`.
#[macro_export]
macro_rules! alone {
    ($($name:ident),* $(,)?) => {
        pub(crate) const ALL: &[$crate::alone::Test] =
            &[$((concat!(module_path!(), "::", stringify!($name)), $name)),*];
    };
}

/// Runs those that the arguments request, and ends the process with an error if one fails.
pub fn run(tests: &[Test]) {
    let (flags, wanted): (Vec<String>, Vec<String>) =
        std::env::args().skip(1).partition(|word| word.starts_with('-'));
    let lists = flags.iter().any(|flag| flag == "--list");
    let mut failed = Vec::new();
    for (path, test) in tests {
        let name = path.split_once("::").map_or(*path, |(_, name)| name);
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part.as_str())) {
            continue;
        }
        if lists {
            println!("{name}: test");
            continue;
        }
        let begun = Instant::now();
        let passed = std::thread::spawn(*test).join().is_ok();
        println!("test {name} ... {} ({:.1?})", if passed { "ok" } else { "FAILED" }, begun.elapsed());
        if !passed {
            failed.push(name);
        }
    }
    if !failed.is_empty() {
        println!("\nfailed: {}", failed.join(", "));
        std::process::exit(1);
    }
}
