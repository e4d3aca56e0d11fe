//! The numbered example that quantizes a file runs, and prints what its readers expect.

use std::process::Command;

#[test]
fn the_numbered_examples_run() {
    // Where cargo puts examples it built beside this test.
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap().parent().unwrap().join("examples/11_adapters_beside_a_frozen_weight");
    assert!(
        built.exists(),
        "{} is missing: plain `cargo test` builds it, `cargo build --examples` too",
        built.display()
    );
    let output = Command::new(built).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{errors}");
    assert!(text.contains("the frozen weight is what it was"), "{text}");
}
