//! What the main job cannot do it refuses before it begins, in one line.

use std::process::Command;

use super::{example, with_rules};

#[test]
fn the_main_job_refuses_what_it_cannot_do_with_one_clear_line() {
    let refusal = |arguments: &[&str]| {
        let output = Command::new(example("train")).args(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refusal(&["--format", "nvfp4_1d"]).contains("activations"));
    assert!(refusal(&["--format", "fp7"]).contains("nvfp4_2d"));
    assert!(refusal(&["--config", "/nowhere/at/all.toml"]).contains("/nowhere/at/all.toml"));
    assert!(refusal(&["--cluster", "h300"]).contains("the presets are h200x4"));
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    // Before anything is trained, or written.
    let small = refusal(&["--device", "cpu", "--ranks", "5", "--cluster", "h200x4", "--out", out]);
    assert!(small.contains("--cluster: ") && small.contains("h200x4"), "{small}");
    assert_eq!(std::fs::read_dir(out).unwrap().count(), 0);
    let own = with_rules(folder.path(), "");
    for flag in ["--losses", "--trace"] {
        let before = std::fs::read(&own).unwrap();
        let said = refusal(&["--device", "cpu", "--ranks", "1", "--out", out, "--config", &own, flag, &own]);
        assert!(said.contains(&format!("both input (--config) and output ({flag})")), "{said}");
        assert!(std::fs::read(&own).unwrap() == before);
    }
    for (flag, value, complaint) in [
        ("--ranks", "0", "0 is not in 1..=65536"),
        ("--depth", "-1", "-1 is not in 0..=64"),
        ("--depth", "65", "65 is not in 0..=64"),
        ("--tune", "-1", "-1 is not in 0"),
        ("--devices", "0,x", "`x` is no GPU number"),
    ] {
        let said = refusal(&[flag, value, "--device", "cpu"]);
        assert!(said.contains(flag) && said.contains(complaint), "{said}");
    }
    for flag in ["--trace", "--losses"] {
        let said = refusal(&["--plan", flag, "file"]);
        assert!(said.contains("--plan") && said.contains(flag), "{said}");
    }
    assert!(refusal(&["--ranks", "65536", "--device", "cpu"]).contains("at most 64 train"));
    assert!(refusal(&["--steps", "0", "--device", "cpu"]).contains("--steps"));
    assert!(refusal(&["--batch", "0", "--device", "cpu"]).contains("0 is not in 1..=1024"));
    let undivided = refusal(&["--ranks", "4", "--replicate", "3", "--device", "cpu"]);
    assert!(undivided.contains("4 ranks cannot hold 3 replicas"), "{undivided}");
    assert!(refusal(&["--device", "cpu", "--devices", "0"]).contains("leave one of them out"));
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let said = refusal(&["--device", "cpu", "--ranks", "1", "--out", file]);
    assert!(said.contains("--out") && said.contains("README.md") && said.contains("name another"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let said = refusal(&["--device", "cpu", folder]);
    assert!(said.contains(&format!("no .md, .rs or .toml file below {folder}")), "{said}");
    let said = refusal(&["--device", "cpu", "--ranks", "1", "--out", folder, "--losses", folder]);
    assert!(said.contains("--losses") && said.contains(folder), "{said}");
    let trace = format!("{folder}/./loss.svg");
    let said = refusal(&["--device", "cpu", "--ranks", "1", "--out", folder, "--trace", &trace]);
    assert!(said.contains("--out and --trace would both write"), "{said}");
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "what was only tried is not left behind");
    for (flag, value, takes) in [("--tune", "5", "from 6 to 20"), ("--replicate", "0", "from 1")] {
        let said = refusal(&[flag, value, "--device", "cpu"]);
        assert!(said.starts_with(&format!("train: {flag}: ")) && said.contains(takes), "{said}");
    }
    assert!(refusal(&["--devices", "0", "--ranks", "1"]).contains("--ranks"));
    let said = refusal(&["--device", "cuda", "--devices", "4000"]);
    let missing = ["libcuda", "libnvrtc", "libcublas", "cuInit", "feature `cuda`"];
    let names_the_cause = missing.iter().any(|name| said.contains(name)) || said.contains("GPU 4000");
    assert!(names_the_cause, "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_trace_whose_name_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join(std::ffi::OsStr::from_bytes(b"t\xff.json"));
    let output = Command::new(example("train")).arg("--trace").arg(trace).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--trace") && said.contains("UTF-8"), "{said}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn the_main_job_says_which_variable_is_missing_where_it_trains_alone() {
    let mut job = Command::new(example("train"));
    let output = job.args(["--plan", "--device", "cpu"]).env("WORLD_SIZE", "2").env_remove("RANK").output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("RANK is not set"), "{said}");
}
