//! How an error looks where a program ends by it.
//!
//! Law: `Debug` of a public error is its message, followed by what its causes add. What `main` returns is printed
//! by `Debug`, and so is what `unwrap` panics with. A derived one would show names of fields there, and never the
//! part of the message that says what to do. Whoever needs the fields matches on the error. One that holds what
//! need not be an error, [`MasterWeightsError`](crate::format::MasterWeightsError), prints its message alone.
//! Names out of files of others are escaped and cut before they come into a message ([`shown`]).

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

/// Text from a file, fit for a terminal: control characters escaped.
pub(crate) fn escaped(text: &str) -> String {
    text.chars().flat_map(escape).collect()
}

/// A name from a file, fit for a terminal: control characters escaped, and cut where nobody reads on.
pub(crate) fn shown(name: &str) -> String {
    const LONGEST: usize = 120;
    let mut short: String = name.chars().take(LONGEST).flat_map(escape).collect();
    if name.chars().nth(LONGEST).is_some() {
        short.push('…');
    }
    short
}

/// Escapes what steers a terminal, and nothing that is merely punctuation.
fn escape(character: char) -> impl Iterator<Item = char> {
    let escaped = (!matches!(character, '\'' | '"' | '\\')).then(|| character.escape_debug());
    let plain = escaped.is_none().then_some(character);
    escaped.into_iter().flatten().chain(plain)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hostile_name_can_neither_flood_nor_steer_a_terminal() {
        assert_eq!(shown("blocks.0.up 'ü' \"x\""), "blocks.0.up 'ü' \"x\"");
        assert_eq!(shown("\u{1b}[2J\n"), "\\u{1b}[2J\\n");
        assert_eq!(shown(&"x".repeat(1 << 20)).chars().count(), 121);
    }
}
