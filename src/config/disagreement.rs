//! What is wrong with two keys together, each of which is sound by itself.

use toml::Value;

use super::keys::Entry;
use super::shown::shown;
use super::{Config, ConfigError, Origin, Prefetch};

impl Config {
    /// The first two keys that do not go together.
    pub(super) fn disagreement(&self, entries: &[Entry]) -> Option<ConfigError> {
        self.prefetched_twice(entries).or_else(|| self.latency_of_no_link(entries))
    }

    fn prefetched_twice(&self, entries: &[Entry]) -> Option<ConfigError> {
        let is_way = |path: &str| {
            path.strip_prefix("prefetch.").is_some_and(|key| Prefetch::ALTERNATIVES.contains(&key))
        };
        let set: Vec<(&Entry, &Value)> = (entries.iter().filter(|entry| is_way(&entry.path)))
            .filter_map(|entry| Some((entry, entry.value.as_ref()?)))
            .collect();
        let &[(first, other), .., (last, value)] = &set[..] else { return None };
        // Who builds it in code did not write the default that stands in the way.
        let advice = if self.origins.of(last) == Origin::Program {
            "build it by `Prefetch::depth`, `Prefetch::bytes` or `Prefetch::auto`, each of which sets that alone"
        } else {
            "remove one of them"
        };
        Some(ConfigError::Together {
            origin: self.origins.of(last),
            key: last.path.clone(),
            problem: format!(
                "is {} and stands beside `{}` = {} ({})",
                shown(value),
                first.path,
                shown(other),
                self.origins.of(first)
            ),
            advice: advice.to_owned(),
        })
    }

    fn latency_of_no_link(&self, entries: &[Entry]) -> Option<ConfigError> {
        if self.cpu.link.bytes_per_s.is_some() || self.cpu.link.latency_us == 0.0 {
            return None;
        }
        let entry = entries.iter().find(|entry| entry.path == "cpu.link.latency_us")?;
        Some(ConfigError::Together {
            origin: self.origins.of(entry),
            key: entry.path.clone(),
            problem: format!(
                "is {} without `cpu.link.bytes_per_s`",
                entry.value.as_ref().map_or_else(String::new, shown)
            ),
            advice: "set that too, for only then a link is paced and has a latency, or remove this"
                .to_owned(),
        })
    }
}
