//! Any bytes as a checkpoint, through every reader of checkpoints.

#![no_main]

#[path = "../../crates/cli/tests/tool/hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let folder = tempfile::tempdir().expect("a temporary folder");
    hostile::checkpoint(bytes, folder.path());
    // A length that fits the header is found by chance once in a long while, so it is given too.
    if let Some(end) = bytes.iter().rposition(|&byte| byte == b'}').filter(|&end| end >= 8) {
        let length = (end as u64 - 7).to_le_bytes();
        hostile::checkpoint(&[&length, &bytes[8..]].concat(), folder.path());
    }
});
