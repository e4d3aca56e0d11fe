//! The main job ends well where nobody listens, a file cannot be written, or somebody interrupts it.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use super::example;

#[test]
fn the_main_job_goes_on_when_nobody_listens() {
    let folder = tempfile::tempdir().unwrap();
    let losses = folder.path().join("losses");
    let (out, file) = (folder.path().to_str().unwrap(), losses.to_str().unwrap());
    let unheard = |arguments: &[&str]| {
        let mut job = Command::new(example("train"));
        let mut job = job.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(job.stdout.take());
        let output = job.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    unheard(&[
        "--device", "cpu", "--ranks", "1", "--batch", "1", "--steps", "2", "--out", out, "--losses", file,
    ]);
    assert_eq!(std::fs::read_to_string(losses).unwrap().lines().count(), 2);
    assert!(folder.path().join("loss.svg").exists());
    unheard(&["--device", "cpu", "--plan"]);
}

#[test]
fn a_trace_that_cannot_be_written_at_the_end_takes_no_result_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut job = Command::new(example("train"));
    job.args(["--device", "cpu", "--ranks", "1", "--batch", "1", "--steps", "8", "--out"]).arg(folder.path());
    job.arg("--losses").arg(path("losses")).arg("--trace").arg(path("trace.json"));
    let mut job = job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(job.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(told.any(|line| line == "settings"), "it ended before it trained");
    // Eight steps and an evaluation later it finds what is no file there.
    std::fs::create_dir(path("trace.json")).unwrap();
    let told: Vec<String> = told.collect();
    let output = job.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("trace.json"), "{said}");
    assert!(told.iter().any(|line| line.contains("held-out text")), "{told:?}");
    assert_eq!(std::fs::read_to_string(path("losses")).unwrap().lines().count(), 8);
    assert!(path("loss.svg").exists());
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_main_job_after_a_step_with_what_was_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut job = Command::new(example("train"));
    job.args(["--device", "cpu", "--ranks", "1", "--batch", "1", "--steps", "1000000", "--out"])
        .arg(folder.path());
    job.arg("--losses").arg(path("losses")).arg("--trace").arg(path("trace.json"));
    let mut job = job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(job.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(told.any(|line| line.starts_with("step   10")), "it ended before it trained");
    let sent = Command::new("kill").args(["-INT", &job.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let told: Vec<String> = told.collect();
    let output = job.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.iter().any(|line| line.starts_with("stopped   by an interrupt after ")), "{told:?}");
    assert!(told.iter().any(|line| line.starts_with("loss ") && !line.contains("held-out")), "{told:?}");
    assert!(std::fs::read_to_string(path("losses")).unwrap().lines().count() >= 10);
    assert!(path("loss.svg").exists() && path("trace.json").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn the_main_job_says_on_stderr_that_stdout_is_full() {
    let full = std::fs::File::create("/dev/full").unwrap();
    let output = Command::new(example("train")).args(["--plan", "--device", "cpu"]).stdout(full).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("stdout could not be written"), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}
