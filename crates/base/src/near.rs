//! Spelling suggestions: the key or the name that was meant.
//!
//! Law: what is close is said here once, for keys of configurations, names of weights and names of files alike.

use crate::errors::LONGEST_NAME;

/// The candidates close to a misspelt key or name, the closest first.
///
/// A candidate is close when about a third of the key at most has to change, or when it ends in the
/// same word: `depth` finds `prefetch.depth`. Of equally close ones those of the same table come first.
pub fn near<'a>(key: &str, candidates: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    fn word(path: &str) -> &str {
        path.rsplit('.').next().unwrap_or_default()
    }
    fn table(path: &str) -> &str {
        path.strip_suffix(word(path)).unwrap_or_default()
    }
    // Nobody misspells what is longer than any name.
    if key.chars().nth(LONGEST_NAME).is_some() {
        return Vec::new();
    }
    let own = word(key);
    let allowed = 1 + own.chars().count() / 3;
    let ranked = candidates.filter_map(|candidate| {
        let whole = distance(key, candidate, allowed);
        let last = distance(own, word(candidate), allowed - 1).map(|cost| cost + 1);
        Some((whole.into_iter().chain(last).min()?, table(candidate) != table(key), candidate))
    });
    let mut close: Vec<_> = ranked.collect();
    close.sort_unstable();
    close.into_iter().map(|(_, _, candidate)| candidate).collect()
}

/// How many letters have to be inserted, removed or replaced to turn one text into the other
/// (Levenshtein), if no more than `most`.
fn distance(from: &str, to: &str, most: usize) -> Option<usize> {
    let length = from.chars().count();
    let to: Vec<char> = to.chars().take(length + most + 1).collect();
    if to.len().abs_diff(length) > most {
        return None;
    }
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (above, own) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (left, &other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(own != other);
            diagonal = row[left + 1];
            row[left + 1] = replaced.min(diagonal + 1).min(row[left] + 1);
        }
        if row.iter().min() > Some(&most) {
            return None;
        }
    }
    Some(row[to.len()]).filter(|distance| *distance <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_counted_in_letters() {
        assert_eq!(distance("", "abc", 3), Some(3));
        assert_eq!(distance("kitten", "sitting", 9), Some(3));
        assert_eq!(distance("kitten", "sitting", 2), None);
        assert_eq!(distance("über", "uber", 1), Some(1));
        assert_eq!(distance("same", "same", 0), Some(0));
        assert_eq!(distance("same", &"same".repeat(1 << 20), 5), None);
    }

    #[test]
    fn all_keys_that_are_close_are_told_the_closest_first() {
        const KEYS: [&str; 5] =
            ["prefetch.depth", "memory.budget", "check", "optimizer.beta1", "optimizer.beta2"];
        assert_eq!(near("optimizer.beta3", KEYS.into_iter()), ["optimizer.beta1", "optimizer.beta2"]);
        assert_eq!(near("optimizer.beta2", KEYS.into_iter()), ["optimizer.beta2", "optimizer.beta1"]);
    }
}
