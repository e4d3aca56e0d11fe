//! `println!` for examples that are piped into `head -1` and the like: it is quiet once nobody reads on,
//! where that of std panics.

use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

macro_rules! println {
    () => {
        $crate::print::line(format_args!(""))
    };
    ($($text:tt)*) => {
        $crate::print::line(format_args!($($text)*))
    };
}

pub(crate) use println;

/// Writes one line to stdout, if somebody reads it.
pub(crate) fn line(text: Arguments<'_>) {
    match writeln!(io::stdout().lock(), "{text}") {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => panic!("stdout cannot be written: {error}"),
        _ => {}
    }
}
