//! Suggestions for misspelt keys and names.

use super::elsewhere;
use warpweft_base::near::near;

/// The candidate that a name of another framework stands for, or else the closest to a misspelt key; `None` when
/// none is close.
pub(super) fn closest<'a>(key: &str, candidates: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    elsewhere::meant(key, candidates.clone()).or_else(|| near(key, candidates).into_iter().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: [&str; 5] =
        ["prefetch.depth", "memory.budget", "check", "optimizer.beta1", "optimizer.beta2"];

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
    fn a_key_like_no_other_finds_none() {
        assert_eq!(closest("frobnicate", KEYS.into_iter()), None);
        assert_eq!(closest("x", KEYS.into_iter()), None);
    }
}
