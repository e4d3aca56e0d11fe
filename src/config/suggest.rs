//! The key that was meant, or the name.

use super::elsewhere;

/// The candidate that a name of another framework stands for, or else the closest to a misspelt key; `None` when
/// none is close.
pub(super) fn closest<'a>(key: &str, candidates: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    elsewhere::meant(key, candidates.clone()).or_else(|| near(key, candidates).into_iter().next())
}

/// The candidates close to a misspelt key or name, the closest first.
///
/// A candidate is close when about a third of the key at most has to change, or when it ends in the
/// same word: `depth` finds `prefetch.depth`.
pub(crate) fn near<'a>(key: &str, candidates: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let word = |path: &str| path.rsplit('.').next().unwrap_or_default().to_owned();
    let own = word(key);
    let cost = |candidate: &str| distance(key, candidate).min(1 + distance(&own, &word(candidate)));
    let allowed = 1 + own.chars().count() / 3;
    let ranked = candidates.map(|candidate| (cost(candidate), candidate));
    let mut close: Vec<_> = ranked.filter(|&(cost, _)| cost <= allowed).collect();
    close.sort_unstable();
    close.into_iter().map(|(_, candidate)| candidate).collect()
}

/// How many letters have to be inserted, removed or replaced to turn one text into the other
/// (Levenshtein).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (above, own) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (left, &other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(own != other);
            diagonal = row[left + 1];
            row[left + 1] = replaced.min(diagonal + 1).min(row[left] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 5] =
        ["prefetch.depth", "memory.budget", "check", "optimizer.beta1", "optimizer.beta2"];

    #[test]
    fn distances_are_counted_in_letters() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("über", "uber"), 1);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn a_misspelt_key_finds_the_key_that_was_meant() {
        let found = |key| closest(key, KEYS.into_iter());
        assert_eq!(found("prefetch.dept"), Some("prefetch.depth"));
        assert_eq!(found("depth"), Some("prefetch.depth"));
        assert_eq!(found("prefetsh.depth"), Some("prefetch.depth"));
        assert_eq!(found("memory.budgte"), Some("memory.budget"));
        assert_eq!(found("chekc"), Some("check"));
    }

    #[test]
    fn all_keys_that_are_close_are_told_the_closest_first() {
        assert_eq!(near("optimizer.beta3", KEYS.into_iter()), ["optimizer.beta1", "optimizer.beta2"]);
        assert_eq!(near("optimizer.beta2", KEYS.into_iter()), ["optimizer.beta2", "optimizer.beta1"]);
    }

    #[test]
    fn a_key_like_no_other_finds_none() {
        assert_eq!(closest("frobnicate", KEYS.into_iter()), None);
        assert_eq!(closest("x", KEYS.into_iter()), None);
    }
}
