//! The message of a panic.
//!
//! Law: whoever catches a panic keeps its words; an error that says only that something died helps
//! nobody.

use std::any::Any;

/// As [`last_words`], of a panic that is caught where another would cost more than an error: what it carries is
/// left to the end of the process, because dropping it may panic too.
pub fn kept_words(panic: Box<dyn Any + Send>) -> String {
    let words = last_words(panic.as_ref());
    std::mem::forget(panic);
    words
}

/// The message of a panic, as `catch_unwind` or a thread's join hands it over.
pub fn last_words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without words".to_owned())
}
