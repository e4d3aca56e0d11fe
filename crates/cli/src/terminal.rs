//! A progress bar on a terminal; nothing where standard error is no terminal.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use warpweft_base::errors::shown;

use super::progress::Progress;

/// Shows how far the work is, and ends it on request.
pub(super) struct Terminal<'a> {
    bar: ProgressBar,
    stop: &'a AtomicBool,
}

impl<'a> Terminal<'a> {
    /// Draws nothing yet. `stop` ends the work once it is set.
    pub(super) fn new(stop: &'a AtomicBool) -> Self {
        Self { bar: ProgressBar::hidden(), stop }
    }
}

impl Progress for Terminal<'_> {
    fn start(&mut self, bytes: u64) {
        let template = "{bar:12} {bytes:>11} of {total_bytes} {bytes_per_sec:>13} {eta:>4} {wide_msg}";
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        self.bar = ProgressBar::new(bytes).with_style(style);
    }

    fn tensor(&mut self, name: &str) {
        self.bar.set_message(shown(name));
    }

    fn advance(&mut self, bytes: u64) -> ControlFlow<()> {
        self.bar.inc(bytes);
        if self.stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn finish(&mut self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
