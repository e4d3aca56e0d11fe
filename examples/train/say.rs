//! What people are told on stdout and stderr.
//!
//! Law: whoever closes them (`train | head`), or a full disk behind them, ends what is told and nothing else:
//! training goes on, and its files are written. `println!` and `eprintln!` would panic there.

use std::fmt::Arguments;
use std::io::Write;

/// As `println!`, whether or not somebody still listens.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::say::line(std::io::stdout().lock(), format_args!($($text)*))
    };
}

/// As `eprintln!`, likewise.
macro_rules! complain {
    ($($text:tt)*) => {
        $crate::say::line(std::io::stderr().lock(), format_args!($($text)*))
    };
}

pub(crate) use {complain, say};

/// Writes one line, if it can be written.
pub(crate) fn line(mut stream: impl Write, text: Arguments<'_>) {
    // Nobody is left to be told of a failure.
    let _ = writeln!(stream, "{text}");
}
