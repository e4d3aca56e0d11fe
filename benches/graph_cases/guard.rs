//! Ends a process that would wait for ever: for a word that nobody will write, or at a barrier.
//!
//! Law: it aborts. An orderly exit waits for the GPUs, whose streams wait for words.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Longer than any replay, recording or check takes.
const PATIENCE: Duration = Duration::from_secs(60);

static SIGNS: AtomicU64 = AtomicU64::new(0);

/// Something was done.
pub(crate) fn alive() {
    SIGNS.fetch_add(1, Ordering::Relaxed);
}

/// From now on, a panic of any thread ends the process, and so does a standstill.
pub(crate) fn stand() {
    let told = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        told(panic);
        std::process::abort();
    }));
    std::thread::spawn(|| {
        let mut seen = SIGNS.load(Ordering::Relaxed);
        loop {
            std::thread::sleep(PATIENCE);
            let now = SIGNS.load(Ordering::Relaxed);
            if now == seen {
                eprintln!("nothing was done for {} s: a rank waits for ever", PATIENCE.as_secs());
                std::process::abort();
            }
            seen = now;
        }
    });
}
