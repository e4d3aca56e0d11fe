//! Interrupts: the first ends a command that looks for none, the second any.

use std::path::Path;
use std::process::Command;

use crate::simulate::folder;

/// A program that waits for the text of a pipe, and the pipe's other end: the program is at its command by then.
fn waiting(folder: &Path, line: &str) -> (std::process::Child, std::fs::File) {
    let pipe = folder.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut program = Command::new(env!("CARGO_BIN_EXE_warpweft"));
    program.current_dir(folder).args(line.split(' ')).stderr(std::process::Stdio::null());
    let program = program.spawn().unwrap();
    (program, std::fs::OpenOptions::new().write(true).open(pipe).unwrap())
}

/// Interrupts a program again and again, as many times as are wanted at most, and says with what it ended.
fn interrupted(mut program: std::process::Child, times: usize) -> Option<i32> {
    let pid = program.id().to_string();
    for _ in 0..times {
        assert!(Command::new("sh").args(["-c", &format!("kill -INT {pid}")]).status().unwrap().success());
        for _ in 0..6000 / times {
            if let Some(ended) = program.try_wait().unwrap() {
                return ended.code();
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
    program.kill().unwrap();
    program.wait().unwrap();
    panic!("it did not end");
}

#[test]
fn an_interrupt_ends_a_command_that_looks_for_none() {
    let folder = folder();
    for line in ["trace pipe", "plan pipe", "tune pipe --cluster h200x4 --ranks 4"] {
        let (program, _pipe) = waiting(folder.path(), line);
        assert_eq!(interrupted(program, 1), Some(130), "{line}");
        std::fs::remove_file(folder.path().join("pipe")).unwrap();
    }
}

#[test]
fn a_second_interrupt_ends_a_command_that_is_busy_and_writes_nothing() {
    let folder = folder();
    let (program, _pipe) = waiting(folder.path(), "calibrate ours.toml --device cpu --config pipe");
    assert_eq!(interrupted(program, 60), Some(130));
    assert!(!folder.path().join("ours.toml").exists());
}
