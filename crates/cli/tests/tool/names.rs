//! Hostile names on the command line: none may flood or steer a terminal.

use std::process::Command;

use warpweft_testing::terminal::{STEERING, check};

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
