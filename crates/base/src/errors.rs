//! Formatting of errors for the end of a program.
//!
//! Law: `Debug` of a public error is its message, followed by what its causes add. What `main` returns is printed
//! by `Debug`, and so is what `unwrap` panics with. A derived one would show names of fields there, and never the
//! part of the message that says what to do. Whoever needs the fields matches on the error. One that holds what
//! need not be an error, `MasterWeightsError` of the formats, prints its message alone.
//!
//! Text of others (out of a file, off the command line or from another process) comes into a message escaped and cut,
//! by what is here alone: a name by [`shown`], a path by [`shown_path`], a sentence by [`shown_text`], a list of names
//! by [`listed`]. A declaration takes no name that [`shown`] would change, so names of a model stand in messages as
//! they are.

use std::error::Error;
use std::fmt::{self, Display, Write};
use std::path::Path;

/// The message of `error`, and after it those of its causes that what is said so far does not contain.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
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
pub fn escaped(text: &str) -> String {
    text.chars().flat_map(escape).collect()
}

/// The longest name that is shown whole, characters.
pub const LONGEST_NAME: usize = 200;

/// The longest sentence or path of others that is shown whole, characters.
const LONGEST_TEXT: usize = 1000;

/// The most names of a list.
pub const MOST_NAMES: usize = 10;

/// A name of others, fit for a terminal: control characters escaped, and cut after [`LONGEST_NAME`].
pub fn shown(name: impl Display) -> String {
    cut(name, LONGEST_NAME)
}

/// What others say, such as a parser of their file or another process, fit for a terminal.
pub fn shown_text(text: impl Display) -> String {
    cut(text, LONGEST_TEXT)
}

/// A path, fit for a terminal. Of a long one the end is shown.
pub fn shown_path(path: &Path) -> String {
    let path = path.to_string_lossy();
    match path.char_indices().rev().nth(LONGEST_TEXT - 1) {
        Some((begin, _)) if begin > 0 => format!("…{}", escaped(&path[begin..])),
        _ => escaped(&path),
    }
}

/// The first names of a list, each between two marks, and how many more there are.
pub fn listed<T: Display>(mark: &str, names: impl IntoIterator<Item = T>) -> String {
    let (mut list, mut count) = (String::new(), 0);
    for name in names {
        if count < MOST_NAMES {
            let comma = if count > 0 { ", " } else { "" };
            list.extend([comma, mark, &shown(name), mark]);
        }
        count += 1;
    }
    match count {
        0 => "none".to_owned(),
        1..=MOST_NAMES => list,
        more => format!("{list} and {} more", more - MOST_NAMES),
    }
}

/// The first `most` characters of a text, escaped; the rest of a longer one is not read.
pub fn cut(text: impl Display, most: usize) -> String {
    let mut cut = Cut { text: String::new(), room: most };
    if write!(cut, "{text}").is_err() {
        cut.text.push('…');
    }
    cut.text
}

/// Takes characters as long as there is room, and refuses more.
struct Cut {
    text: String,
    room: usize,
}

impl Write for Cut {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            self.room = self.room.checked_sub(1).ok_or(fmt::Error)?;
            self.text.extend(escape(character));
        }
        Ok(())
    }
}

/// Escapes what steers a terminal, and nothing that is merely punctuation.
fn escape(character: char) -> impl Iterator<Item = char> {
    let escaped = (!matches!(character, '\'' | '"' | '\\')).then(|| character.escape_debug());
    let plain = escaped.is_none().then_some(character);
    escaped.into_iter().flatten().chain(plain)
}

/// Writes `Debug` of an error so.
#[macro_export]
macro_rules! debug_in_words {
    ($error:ty) => {
        impl std::fmt::Debug for $error {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                out.write_str(&$crate::errors::with_causes(self))
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
        assert_eq!(shown("x".repeat(1 << 20)).chars().count(), LONGEST_NAME + 1);
        assert_eq!(shown("x".repeat(LONGEST_NAME)), "x".repeat(LONGEST_NAME));
        assert_eq!(shown_text("\r".repeat(1 << 20)).chars().count(), 2 * LONGEST_TEXT + 1);
    }

    #[test]
    fn of_a_long_path_its_end_is_shown_and_of_a_long_list_its_begin() {
        let path = format!("/{}run.safetensors", "x/".repeat(1 << 20));
        let shown = shown_path(Path::new(&path));
        assert!(shown.starts_with('…') && shown.ends_with("x/run.safetensors"), "{shown}");
        assert_eq!(shown.chars().count(), LONGEST_TEXT + 1);
        assert_eq!(shown_path(Path::new("a\n/b")), "a\\n/b");
        assert_eq!(listed("", ["a", "b\u{7}"]), "a, b\\u{7}");
        assert_eq!(listed("`", 0..12), "`0`, `1`, `2`, `3`, `4`, `5`, `6`, `7`, `8`, `9` and 2 more");
        assert_eq!(listed::<&str>("", []), "none");
    }
}
