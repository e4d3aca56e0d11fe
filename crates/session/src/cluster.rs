//! A machine by its numbers ([`Cluster`]), and its file: the keys, and the clusters that come with the library.
//!
//! Law: as for a configuration, CF-1 and CF-2. A preset is read by the same reader as any other file.

use std::path::Path;

use warpweft_base::near::near;
#[doc(inline)]
pub use warpweft_plan::cluster::{
    Algorithm, Charges, Cluster, Contention, Flops, Gpu, Jitter, Link, Links, PRESETS, Prices, Reach, Work,
};

#[doc(hidden)]
pub use warpweft_plan::cluster::MOST_MEMORY;

use crate::config::{ConfigError, Declared, Origin, Rule, Rules, Speed, Takes, agreeing};

/// The preset called `name`, if there is one.
///
/// # Errors
/// What [`Cluster::from_toml`](Declared::from_toml) refuses; the presets that come with the library are accepted.
pub fn preset(name: &str) -> Option<Result<Cluster, ConfigError>> {
    let (_, text) = PRESETS.iter().find(|(known, _)| *known == name)?;
    Some(Cluster::from_toml(text, name))
}

/// The preset called `name`, otherwise the cluster of the file `name`.
///
/// # Errors
/// [`ConfigError::NoCluster`] when there is neither, and what [`Cluster::load`](Declared::load) refuses.
pub fn named(name: &str) -> Result<Cluster, ConfigError> {
    let path = Path::new(name);
    let of_file = || (path.exists() && !path.is_dir()).then(|| Cluster::load(path));
    let missing = || ConfigError::NoCluster { name: name.to_owned(), presets: preset_names(name) };
    preset(name).or_else(of_file).ok_or_else(missing)?
}

/// The same cluster with `ranks` ranks on a node, as an argument of the program says, such as `--ranks-per-node`.
///
/// # Errors
/// [`ConfigError::Invalid`], which names the argument, when a node has fewer GPUs.
pub fn with_ranks_per_node(cluster: Cluster, ranks: u32, argument: &str) -> Result<Cluster, ConfigError> {
    let cluster = Cluster { ranks_per_node: Some(ranks), ..cluster };
    agreeing(cluster, |_| Origin::Argument { name: argument.to_owned() })
}

/// The names of the presets, and the one that was probably meant by `name`.
fn preset_names(name: &str) -> String {
    let names = PRESETS.map(|(name, _)| name);
    let lower = name.to_lowercase();
    match near(&lower, names.into_iter()).first() {
        None => names.join(", "),
        Some(meant) => format!("{}; did you mean `{meant}`?", names.join(", ")),
    }
}

/// From nothing to an hour, so that a step of many tasks stays a time.
const MICROSECONDS: Takes = Takes::Between(0.0, 3.6e9);

/// Speeds. A price is capped as well ([`Prices::of`]).
const MEMORY: Takes = Takes::Speed(Speed::MEMORY);
const FLOPS: Takes = Takes::Speed(Speed::FLOPS);
const LINK: Takes = Takes::Speed(Speed::LINK);

/// How many times as long something takes.
const FACTOR: Takes = Takes::Between(1.0, 1e3);

impl Rules for Cluster {
    const RULES: &'static [Rule] = &[
        needed("name", Takes::Text),
        needed("gpus_per_node", Takes::Count(1, 4096)),
        optional("ranks_per_node", Takes::Count(1, 4096)),
        needed("algorithm", Takes::OneOf(&["ring", "tree", "hierarchical", "direct", "best"])),
        needed("gpu.memory_bytes", Takes::Count(1, MOST_MEMORY)),
        needed("gpu.hbm_bytes_per_s", MEMORY),
        optional("gpu.kernel_us", MICROSECONDS),
        needed("gpu.launch_us", MICROSECONDS),
        needed("gpu.replay_us", MICROSECONDS),
        needed("gpu.flops_per_s.f32", FLOPS),
        needed("gpu.flops_per_s.bf16", FLOPS),
        needed("gpu.flops_per_s.fp8", FLOPS),
        needed("gpu.flops_per_s.fp4", FLOPS),
        needed("inside.latency_us", MICROSECONDS),
        needed("inside.bytes_per_s", LINK),
        optional("inside.message_us", MICROSECONDS),
        Rule { key: "between.latency_us", takes: MICROSECONDS, needed_in: Some("between") },
        Rule { key: "between.bytes_per_s", takes: LINK, needed_in: Some("between") },
        optional("between.message_us", MICROSECONDS),
        optional("contention.compute_beside_collective", FACTOR),
        optional("contention.collective_beside_compute", FACTOR),
        optional("contention.collective_beside_collective", FACTOR),
        optional("contention.compute_beside_quantize", FACTOR),
        optional("contention.quantize_beside_compute", FACTOR),
        optional("jitter.seed", Takes::Count(0, 1 << 62)),
        optional("jitter.mean", Takes::Between(0.0, 1e3)),
        optional("jitter.straggler_share", Takes::Share),
        optional("jitter.straggler_factor", FACTOR),
    ];

    /// A rank is a GPU of its own.
    fn disagreement(&self) -> Option<(&'static str, String, String)> {
        let (ranks, gpus) = (self.ranks_per_node?, self.gpus_per_node);
        let expected = format!("at most `gpus_per_node`, {gpus}, or leave it out to take all of them");
        (ranks > gpus).then(|| ("ranks_per_node", format!("is {ranks}"), expected))
    }
}

const fn needed(key: &'static str, takes: Takes) -> Rule {
    Rule { key, takes, needed_in: Some("") }
}

const fn optional(key: &'static str, takes: Takes) -> Rule {
    Rule { key, takes, needed_in: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_sound_and_named_as_its_file() {
        for (name, _) in PRESETS {
            assert_eq!(preset(name).unwrap().unwrap().name, name);
        }
        assert!(preset("h300").is_none());
    }

    #[test]
    fn a_misspelt_preset_finds_the_one_that_was_meant() {
        for (name, meant) in
            [("H200x4", "h200x4"), ("h100x8_ib", "h100x8-ib"), ("gb200-nvl36", "gb200-nvl72")]
        {
            assert!(preset_names(name).ends_with(&format!("; did you mean `{meant}`?")), "{name}");
        }
        assert!(preset_names("ours.toml").ends_with("gb200-nvl72"));
    }

    /// Lines that give a number and no words about where it comes from.
    fn without_source(text: &str) -> Vec<&str> {
        let numbers = text.lines().filter(|line| {
            let value = line.split_once('=').map_or("", |(_, value)| value.trim_start());
            value.starts_with(|first: char| first.is_ascii_digit() || first == '-' || first == '.')
        });
        let is_bare = |line: &&str| {
            let words = line.split_once('#').map_or("", |(_, words)| words);
            words.chars().filter(|letter| letter.is_alphabetic()).count() < 3
        };
        numbers.filter(is_bare).collect()
    }

    #[test]
    fn every_number_of_a_preset_has_a_source() {
        for (name, text) in PRESETS {
            assert_eq!(without_source(text), [""; 0], "{name}");
            // The check can fail: each comment taken away is missed.
            let numbers = text.lines().filter(|line| line.contains(" = ") && line.contains('#'));
            let mut commented = 0;
            for line in numbers.filter(|line| !line.starts_with('#')) {
                let bare = line.split('#').next().unwrap().trim_end();
                assert_eq!(without_source(&text.replace(line, bare)), [bare], "{name}");
                commented += 1;
            }
            assert!(commented >= 15, "{name}: {commented}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_cluster_file_is_reported_with_its_line() {
        let valid = PRESETS[0].1;
        let line_of = |key| 1 + valid.lines().position(|line| line.starts_with(key)).unwrap();
        let (line, gpus) = (line_of("hbm_bytes_per_s"), line_of("gpus_per_node"));
        for (from, to, complaint) in [
            (
                "hbm_bytes_per_s",
                "hbm_byte_per_s",
                format!(
                    "bad.toml:{line}: unknown key `gpu.hbm_byte_per_s`; did you mean `gpu.hbm_bytes_per_s`?"
                ),
            ),
            (
                "hbm_bytes_per_s = 4.27e12",
                "hbm_bytes_per_s = -1",
                format!(
                    "bad.toml:{line}: `gpu.hbm_bytes_per_s` is -1; set it to a number of bytes per second from 1e6 to 1e30"
                ),
            ),
            (
                "hbm_bytes_per_s = 4.27e12",
                "hbm_bytes_per_s = 4270",
                format!(
                    "bad.toml:{line}: `gpu.hbm_bytes_per_s` is 4270; set it to a number of bytes per second \
                     from 1e6 to 1e30; did you mean 4270e9?"
                ),
            ),
            (
                "hbm_bytes_per_s = 4.27e12",
                "hbm_bytes_per_s = \"fast\"",
                format!("bad.toml:{line}: `gpu.hbm_bytes_per_s` is \"fast\""),
            ),
            ("\"direct\"", "\"star\"", "`algorithm` is \"star\"; set it to one of \"ring\"".to_owned()),
            (
                "gpus_per_node = 4",
                "",
                "`gpus_per_node` is missing; set it to a whole number from 1 to 4096".to_owned(),
            ),
            (
                "gpus_per_node = 4",
                "ranks_per_node = 6\ngpus_per_node = 4",
                format!(
                    "bad.toml:{gpus}: `ranks_per_node` is 6; set it to at most `gpus_per_node`, 4, or leave it out to \
                     take all of them"
                ),
            ),
            (
                "[inside]",
                "[between]\nlatency_us = 1\n[inside]",
                "`between.bytes_per_s` is missing".to_owned(),
            ),
            ("[inside]", "[inside", "bad.toml:".to_owned()),
        ] {
            let text = valid.replace(from, to);
            assert_ne!(text, valid, "{from}");
            let error = Cluster::from_toml(&text, "bad.toml").unwrap_err().to_string();
            assert!(error.contains(&complaint), "{error}\n{complaint}");
        }
    }
}
