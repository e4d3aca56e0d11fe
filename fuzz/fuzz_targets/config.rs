//! Any text as a configuration.

#![no_main]

#[path = "../../crates/cli/tests/tool/hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    hostile::configuration(text);
});
