//! Printing to stdout and stderr.
//!
//! Law: whoever closes them (`train | head`), or a full disk behind them, ends what is printed and nothing else:
//! training goes on, and its files are written. `println!` and `eprintln!` would panic there. That stdout could
//! not be written is said on stderr at the end, and the exit status shows it; but a reader who closed a pipe
//! has what they wanted.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};
use std::sync::OnceLock;

/// As `println!`, whether or not somebody still listens.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::say::tell(format_args!($($text)*))
    };
}

/// As `eprintln!`, likewise.
macro_rules! complain {
    ($($text:tt)*) => {
        $crate::say::warn(format_args!($($text)*))
    };
}

pub(crate) use {complain, say};

/// The first failure of stdout, of which a process has one.
static FAILURE: OnceLock<String> = OnceLock::new();

/// Writes one line to stdout, if it can be written.
pub(crate) fn tell(text: Arguments<'_>) {
    let mut out = io::stdout().lock();
    match writeln!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => drop(FAILURE.set(error.to_string())),
        _ => {}
    }
}

/// Writes one line to stderr, if it can be written.
pub(crate) fn warn(text: Arguments<'_>) {
    // Nobody is left to report a failure to.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Why not everything that was printed reached stdout, if somebody still waits for it.
pub(crate) fn unsaid() -> Option<&'static str> {
    FAILURE.get().map(String::as_str)
}
