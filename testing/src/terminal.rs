//! Checks that a message cannot flood or steer a terminal.

/// Steers a terminal.
pub const STEERING: &str = "\u{1b}[2J\u{1b}]0;owned\u{7}";

/// Is it fit for a terminal?
pub fn check(said: &str) {
    assert!(said.len() < 8000, "{} bytes: {:?}", said.len(), said.get(..200));
    assert!(!said.chars().any(|character| character.is_control() && character != '\n'), "{said:?}");
}
