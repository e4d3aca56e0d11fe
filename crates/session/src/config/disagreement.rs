//! Contradictions between two keys, each of which is valid by itself.

use toml::Value;

use super::keys::{self, Entry};
use super::shown::shown;
use super::{
    Config, ConfigError, Masters, Moments, OptimizerConfig, OptimizerShard, Origin, Prefetch, Reduce,
    ReduceDtype, Transport,
};

impl Config {
    /// The first two keys that do not go together.
    pub(super) fn disagreement(&self, entries: &[Entry]) -> Option<ConfigError> {
        let found = self.prefetched_twice(entries).or_else(|| self.latency_of_no_link(entries));
        let found = found.or_else(|| self.custom_optimizer_of_halves(entries));
        let found = found.or_else(|| self.summed_by_nobody(entries));
        let found = found.or_else(|| self.nccl_in_mxfp8(entries));
        let found = found.or_else(|| self.instances_of_whole_state());
        found.or_else(|| self.moments_that_stand_still(entries))
    }

    /// A key that is valid, and whose value cannot be followed where it is to be used: what is wrong with it
    /// there, and what to do about it.
    pub(crate) fn unsupported(&self, key: &str, problem: &str, advice: &str) -> ConfigError {
        let entry = keys::entries(self).into_iter().find(|entry| entry.path == key);
        let value = entry.as_ref().and_then(|entry| entry.value.as_ref());
        ConfigError::Together {
            key: key.to_owned(),
            origin: entry.as_ref().map_or(Origin::Program, |entry| self.origins.of(entry)),
            problem: format!("is {}, {problem}", value.map_or_else(|| "not set".to_owned(), shown)),
            advice: advice.to_owned(),
        }
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

    /// Peers bring every contribution undivided, and the library of collectives sums on the way.
    fn summed_by_nobody(&self, entries: &[Entry]) -> Option<ConfigError> {
        if (self.transport, self.reduce) != (Transport::Peer, Reduce::Nccl) {
            return None;
        }
        let entry = entries.iter().find(|entry| entry.path == "reduce")?;
        Some(ConfigError::Together {
            origin: self.origins.of(entry),
            key: entry.path.clone(),
            problem: "is \"nccl\", and `transport` is \"peer\"".to_owned(),
            advice: "set it to \"ordered\", or `transport` to \"nccl\" or \"auto\"".to_owned(),
        })
    }

    /// NCCL adds values, and MXFP8 is codes with block scales.
    fn nccl_in_mxfp8(&self, entries: &[Entry]) -> Option<ConfigError> {
        if (self.reduce, self.reduce_dtype) != (Reduce::Nccl, ReduceDtype::Mxfp8) {
            return None;
        }
        let entry = entries.iter().find(|entry| entry.path == "reduce_dtype")?;
        Some(ConfigError::Together {
            origin: self.origins.of(entry),
            key: entry.path.clone(),
            problem: "is \"mxfp8\", which NCCL cannot sum, and `reduce` is \"nccl\"".to_owned(),
            advice: "set it to \"bf16\" or \"f32\", or `reduce` to \"ordered\"".to_owned(),
        })
    }

    /// Where each replica keeps all state there is nothing to keep once in an instance.
    fn instances_of_whole_state(&self) -> Option<ConfigError> {
        let is_whole = self.optimizer.shard != OptimizerShard::Replicas;
        (is_whole && self.mesh.optimizer_instances > 1).then(|| {
            let (key, problem) = ("mesh.optimizer_instances", "and `optimizer.shard` is \"dp_shard\"");
            self.unsupported(key, problem, "set `optimizer.shard` to \"replicas\", or remove it")
        })
    }

    /// A custom optimizer gets masters and states as f32.
    fn custom_optimizer_of_halves(&self, entries: &[Entry]) -> Option<ConfigError> {
        let OptimizerConfig { custom_states, moments, masters, .. } = self.optimizer;
        custom_states?;
        let key = match (moments, masters) {
            (Moments::F32, Masters::F32) => return None,
            (Moments::Bf16, _) => "optimizer.moments",
            (_, Masters::Bf16Remainder) => "optimizer.masters",
        };
        let entry = entries.iter().find(|entry| entry.path == key)?;
        Some(ConfigError::Together {
            origin: self.origins.of(entry),
            key: entry.path.clone(),
            problem: format!(
                "is {}, and a custom optimizer updates the weights",
                entry.value.as_ref().map(shown).unwrap_or_default()
            ),
            advice: "a custom optimizer updates f32 values: set it to \"f32\", or train by Adam".to_owned(),
        })
    }

    fn moments_that_stand_still(&self, entries: &[Entry]) -> Option<ConfigError> {
        let OptimizerConfig { moments, beta1, beta2, .. } = self.optimizer;
        if !stands_still(moments, beta1.max(beta2)) {
            return None;
        }
        let (beta, other) = match beta1 > beta2 {
            true => ("optimizer.beta1", beta2),
            false => ("optimizer.beta2", beta1),
        };
        // Where both are too slow, a change of one does not do.
        let slow = if stands_still(moments, other) { "both decays".to_owned() } else { format!("`{beta}`") };
        let entry = entries.iter().find(|entry| entry.path == "optimizer.moments")?;
        Some(ConfigError::Together {
            origin: self.origins.of(entry),
            key: entry.path.clone(),
            problem: format!(
                "is \"bf16\", which rounds away what a moment changes by in a step where `{beta}` is {}",
                beta1.max(beta2)
            ),
            advice: format!("set {slow} to 0.996 or less, as 0.95, or keep the moments in \"f32\""),
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

/// A moment changes by up to `1 − β` of itself in a step. What is less than half a place of bf16, which is up to
/// 2⁻⁸ of a value, is rounded away: it neither falls nor gets up to the squares of its gradients.
pub(crate) fn stands_still(moments: Moments, beta: f64) -> bool {
    moments == Moments::Bf16 && 1.0 - beta < 1.0 / 256.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_in_bf16_are_refused_where_a_decay_is_too_slow_for_them() {
        let with = |beta1, beta2| {
            let mut config = Config::default();
            (config.optimizer.moments, config.optimizer.beta1, config.optimizer.beta2) =
                (Moments::Bf16, beta1, beta2);
            config.validate()
        };
        for beta2 in [0.95, 0.99, 0.996] {
            assert!(with(0.9, beta2).is_ok(), "{beta2}");
        }
        for (beta1, beta2, key) in [(0.9, 0.999, "beta2"), (0.999, 0.9, "beta1")] {
            let said = with(beta1, beta2).unwrap_err().to_string();
            assert!(said.contains(&format!("`optimizer.{key}` is 0.999")), "{said}");
            assert!(said.contains("to 0.996 or less"), "{said}");
        }
    }

    #[test]
    fn gradients_in_mxfp8_are_refused_where_collectives_sum() {
        let with = |reduce_dtype, reduce| Config { reduce_dtype, reduce, ..Config::default() }.validate();
        assert!(with(ReduceDtype::Bf16, Reduce::Nccl).is_ok());
        assert!(with(ReduceDtype::Mxfp8, Reduce::Ordered).is_ok());
        let said = with(ReduceDtype::Mxfp8, Reduce::Nccl).unwrap_err().to_string();
        assert!(
            said.contains("`reduce_dtype` is \"mxfp8\"") && said.contains("`reduce` to \"ordered\""),
            "{said}"
        );
    }

    #[test]
    fn optimizer_instances_are_refused_where_every_replica_keeps_all_state() {
        let mut config = Config::default();
        config.mesh.optimizer_instances = 2;
        let said = config.validate().unwrap_err().to_string();
        assert!(said.contains("`mesh.optimizer_instances` is 2, and `optimizer.shard` is"), "{said}");
        config.optimizer.shard = OptimizerShard::Replicas;
        assert!(config.validate().is_ok());
    }

    #[test]
    fn a_custom_optimizer_is_refused_where_masters_or_moments_are_not_f32() {
        let with = |moments, masters| {
            let mut config = Config::default();
            config.optimizer.custom_states = Some(1);
            (config.optimizer.moments, config.optimizer.masters) = (moments, masters);
            config.validate()
        };
        assert!(with(Moments::F32, Masters::F32).is_ok());
        for (moments, masters, words) in [
            (Moments::Bf16, Masters::F32, "`optimizer.moments` is \"bf16\""),
            (Moments::F32, Masters::Bf16Remainder, "`optimizer.masters` is \"bf16_remainder\""),
        ] {
            let said = with(moments, masters).unwrap_err().to_string();
            assert!(
                said.contains(words) && said.contains("a custom optimizer updates the weights"),
                "{said}"
            );
        }
    }

    /// What the limit is for: with a decay this slow a moment of zero gradients never falls.
    #[test]
    fn a_moment_in_bf16_falls_at_the_limit_and_stands_still_beyond_it() {
        let falls = |beta: f32| {
            let values = (0x3F80_u16..0x4000).map(half::bf16::from_bits);
            values.into_iter().all(|value| half::bf16::from_f32(beta * value.to_f32()) < value)
        };
        assert!(falls(0.996) && falls(1.0 - 1.0 / 256.0));
        assert!(!falls(0.997) && !falls(0.999));
    }
}
