//! Runs of the numbered examples and the main job, with the output that their readers expect.

mod ends;
mod examples;
mod main_job;
mod refusals;

use std::path::PathBuf;
use std::process::Command;

/// Where cargo puts examples it built beside this test.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(
        built.exists(),
        "{} is missing: plain `cargo test` builds it, `cargo build --examples` too",
        built.display()
    );
    built
}

fn run(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(example(name)).args(arguments).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {errors}");
    text.into_owned()
}

fn says(name: &str, arguments: &[&str], wanted: &str) {
    let text = run(name, arguments);
    assert!(text.contains(wanted), "{name} does not say {wanted:?}:\n{text}");
}

/// The configuration of the main job, with these rules.
fn with_rules(folder: &std::path::Path, rules: &str) -> String {
    let path = folder.join("rules.toml");
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/train/train.toml");
    std::fs::write(&path, format!("{}\n{rules}", std::fs::read_to_string(own).unwrap())).unwrap();
    path.to_str().unwrap().to_owned()
}
