//! Patterns of names: `*` stands for any run of characters, dots included, `?` for any one character, and all else for
//! itself.
//!
//! Law: a pattern is compared with the whole name, in time in proportion to the product of their lengths at worst.

use std::str::Chars;

/// Whether a pattern matches a whole name. It takes no memory.
pub fn pattern_matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.chars(), name.chars());
    // The pattern after the last star, and the part of the name that this star has not taken yet.
    let mut star: Option<(Chars<'_>, Chars<'_>)> = None;
    loop {
        let (mut after, mut rest) = (pattern.clone(), name.clone());
        match (after.next(), rest.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                star = Some((after.clone(), name.clone()));
                pattern = after;
            }
            (Some(own), Some(found)) if own == '?' || own == found => (pattern, name) = (after, rest),
            _ => {
                // No match here. Let the last star take one more character, if there are both.
                let Some((after_star, untaken)) = &mut star else {
                    return false;
                };
                if untaken.next().is_none() {
                    return false;
                }
                (pattern, name) = (after_star.clone(), untaken.clone());
            }
        }
    }
}

/// What each star of a pattern stands for in a name that it matches; every star but the last takes as little as it
/// can.
pub fn captures<'n>(pattern: &str, name: &'n str) -> Option<Vec<&'n str>> {
    let mut taken = Vec::new();
    let (mut pattern, mut rest) = (pattern, name);
    while let Some((before, after)) = pattern.split_once('*') {
        rest = rest.get(after_literal(before, rest)?..)?;
        // The shortest run after which the rest of the pattern still fits.
        let ends = rest.char_indices().map(|(at, _)| at).chain([rest.len()]);
        let end = ends.into_iter().find(|&end| pattern_matches(after, &rest[end..]))?;
        taken.push(&rest[..end]);
        (pattern, rest) = (after, &rest[end..]);
    }
    pattern_matches(pattern, rest).then_some(taken)
}

/// A name whose stars stand for what those of the pattern took, in their order.
pub fn filled(name: &str, taken: &[&str]) -> String {
    let mut taken = taken.iter();
    let parts = name.split_inclusive('*').map(|part| match part.strip_suffix('*') {
        Some(text) => format!("{text}{}", taken.next().copied().unwrap_or_default()),
        None => part.to_owned(),
    });
    parts.collect()
}

/// Where in `name` what a pattern without stars matches at its beginning ends.
fn after_literal(pattern: &str, name: &str) -> Option<usize> {
    let mut characters = name.char_indices();
    for own in pattern.chars() {
        let (_, found) = characters.next()?;
        if own != '?' && own != found {
            return None;
        }
    }
    Some(characters.next().map_or(name.len(), |(at, _)| at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn captures_are_what_stars_stand_for() {
        assert_eq!(captures("blocks.*.mlp.*", "blocks.12.mlp.up.weight"), Some(vec!["12", "up.weight"]));
        assert_eq!(captures("*", ""), Some(vec![""]));
        assert_eq!(captures("a?c.*", "aüc.d"), Some(vec!["d"]));
        assert_eq!(captures("a", "a"), Some(vec![]));
        assert_eq!(captures("a.*.b", "a.b"), None);
        assert_eq!(captures("a.*.b", "a.1.b.2.b"), Some(vec!["1.b.2"]));
    }
}
