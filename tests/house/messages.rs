//! Error messages: every text in an `#[error(…)]` of the crates, against the list in `messages.txt`.
//!
//! Law: the list knows neither enums nor files, so variants may move and enums may be merged, and no message is lost
//! or changed unseen. Who changes one on purpose writes the list anew, and the difference is there to be read:
//!
//! ```sh
//! WARPWEFT_RECORD_MESSAGES=1 cargo test --test house messages
//! ```

use std::collections::BTreeSet;

use crate::sources::{CRATES, root, sources};

/// The list, one text a line, as it stands in the source.
const LIST: &str = "tests/house/messages.txt";

/// The string literals of an attribute that begins after its opening bracket, as written, without the line breaks
/// that a backslash takes out.
fn literals(attribute: &str) -> Vec<String> {
    let (mut found, mut depth) = (Vec::new(), 1);
    let mut rest = attribute.chars().peekable();
    while let Some(next) = rest.next() {
        match next {
            '(' => depth += 1,
            ')' => depth -= 1,
            '"' => {
                let mut literal = String::new();
                while let Some(next) = rest.next().filter(|next| *next != '"') {
                    match next {
                        '\\' if rest.peek() == Some(&'\n') => {
                            while rest.next_if(|next| next.is_whitespace()).is_some() {}
                        }
                        '\\' => literal.extend([next].into_iter().chain(rest.next())),
                        '\n' => literal.push_str("\\n"),
                        other => literal.push(other),
                    }
                }
                found.push(literal);
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

/// What the errors of all crates say.
fn said() -> BTreeSet<String> {
    let mut files = Vec::new();
    CRATES.iter().for_each(|(_, folder)| sources(&root().join(folder), &mut files));
    let mut said = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let code = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
        said.extend(code.split("#[error(").skip(1).flat_map(literals));
    }
    said.retain(|text| text.chars().any(|c| c.is_alphabetic()));
    said
}

#[test]
fn no_message_of_an_error_is_lost_or_changed_unseen() {
    let (said, path) = (said(), root().join(LIST));
    if std::env::var_os("WARPWEFT_RECORD_MESSAGES").is_some_and(|value| value == "1") {
        let lines: String = said.iter().map(|text| format!("{text}\n")).collect();
        std::fs::write(&path, lines).unwrap();
    }
    let list = std::fs::read_to_string(&path).unwrap();
    let listed: BTreeSet<String> = list.lines().map(str::to_owned).collect();
    assert!(listed.len() > 200, "{} messages", listed.len());
    let lost: Vec<_> = listed.difference(&said).collect();
    let new: Vec<_> = said.difference(&listed).collect();
    assert!(lost.is_empty() && new.is_empty(), "only in {LIST}: {lost:#?}\nonly in the sources: {new:#?}");
}

#[test]
fn the_texts_of_an_attribute_are_read_whole() {
    let attribute = "\n  \"`{}` is \\\n    {what} (\\\"so\\\")\", shown(name), if *all { \"; a) b\" } else { \"\" })]\n \"next\"";
    assert_eq!(literals(attribute), ["`{}` is {what} (\\\"so\\\")", "; a) b", ""]);
}
