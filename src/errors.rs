//! How an error looks where a program ends by it.
//!
//! Law: `Debug` of a public error is its message, followed by what its causes add. What `main` returns is printed
//! by `Debug`, and so is what `unwrap` panics with. A derived one would show names of fields there, and never the
//! part of the message that says what to do. Whoever needs the fields matches on the error. One that holds what
//! need not be an error, [`MasterWeightsError`](crate::format::MasterWeightsError), prints its message alone.

use std::error::Error;

/// The message of `error`, and behind it those of its causes that what is said so far does not contain.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut words = error.to_string();
    for cause in std::iter::successors(error.source(), |&error| error.source()) {
        let cause = cause.to_string();
        if !words.contains(&cause) {
            words = format!("{words}: {cause}");
        }
    }
    words
}

/// Writes `Debug` of an error so.
macro_rules! debug_in_words {
    ($error:ty) => {
        impl std::fmt::Debug for $error {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str(&crate::errors::with_causes(self))
            }
        }
    };
}
