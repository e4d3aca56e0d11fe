//! Names that others hand in, which are to steer a terminal.
#![cfg(unix)]

use std::process::Command;

/// Steers a terminal.
const STEERING: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}";

/// Is it fit for a terminal?
fn check(said: &str) {
    assert!(said.len() < 8000, "{} bytes: {:?}", said.len(), said.get(..200));
    assert!(!said.chars().any(|character| character.is_control() && character != '\n'), "{said:?}");
}

#[test]
fn names_of_files_on_the_command_line_are_shown_escaped() {
    for arguments in
        [vec!["quantize", "--format", "nvfp4", "IN", "out"], vec!["plan", "IN"], vec!["trace", "IN"]]
    {
        let name = format!("no{STEERING}file");
        let arguments = arguments.into_iter().map(|word| if word == "IN" { name.as_str() } else { word });
        let ran = Command::new(env!("CARGO_BIN_EXE_warpweft")).args(arguments).output().unwrap();
        assert!(!ran.status.success());
        check(&String::from_utf8(ran.stderr).unwrap());
    }
}
