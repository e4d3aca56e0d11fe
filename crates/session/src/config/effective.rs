//! A configuration as TOML, each value with where it came from.
//!
//! **CF-4** What is printed loads back as the same configuration. Keys that are not set are printed
//! as comments, so that a reader sees all there are. A comment above a line says what its name does not.

use std::fmt::Write;

use super::Config;
use super::keys::{self, Entry};

/// The column at which comments begin, where the value leaves room.
const COMMENT: usize = 44;

impl Config {
    /// All keys with their present values as TOML; a comment on each line says where the value came
    /// from.
    pub fn effective(&self) -> String {
        let mut text = String::from("# effective configuration\n");
        let mut current = String::new();
        for entry in keys::entries(self) {
            let (table, key) = entry.path.rsplit_once('.').unwrap_or(("", &entry.path));
            let of_rule = keys::is_of_rule(&entry.path);
            if of_rule && entry.value.is_none() {
                continue;
            }
            if table != current {
                let header = if of_rule { "[[weights]]".to_owned() } else { format!("[{table}]") };
                push(&mut text, format_args!("\n{header}\n"));
                current = table.to_owned();
            }
            self.push_entry(&mut text, key, &entry);
        }
        text
    }

    /// The changes that make this configuration of the default one, and of the file it was loaded from: keys that are
    /// not as by default, and those that were set over the file. As TOML without tables but those of rules, which come
    /// last.
    #[doc(hidden)]
    pub fn changes(&self) -> String {
        let mut text = String::new();
        let mut rule = String::new();
        for entry in keys::entries(self) {
            let is_as_before =
                entry.value == keys::default_of(&entry.path) && !self.origins.of(&entry).is_over_a_file();
            let Some(value) = entry.value.filter(|_| !is_as_before) else { continue };
            let Some((table, key)) = entry.path.rsplit_once('.').filter(|_| keys::is_of_rule(&entry.path))
            else {
                push(&mut text, format_args!("{} = {value}\n", entry.path));
                continue;
            };
            if rule != table {
                push(&mut text, format_args!("\n[[weights]]\n"));
                rule = table.to_owned();
            }
            push(&mut text, format_args!("{key} = {value}\n"));
        }
        text
    }

    fn push_entry(&self, text: &mut String, key: &str, entry: &Entry) {
        let line = match &entry.value {
            Some(value) => format!("{key} = {value}"),
            None => format!("# {key} is not set"),
        };
        if let Some(aside) = keys::aside(&entry.path) {
            push(text, format_args!("# {aside}\n"));
        }
        let origin = self.origins.of(entry).to_string().replace(char::is_control, "?");
        push(text, format_args!("{line:<COMMENT$} # {origin}\n"));
    }
}

fn push(text: &mut String, piece: std::fmt::Arguments<'_>) {
    // Writing into a `String` cannot fail.
    let _ = text.write_fmt(piece);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Backward, ByteSize, Prefetch, WeightRule};
    use proptest::prelude::*;
    use warpweft_format::Format;
    use warpweft_plan::model::{Placement, Reuse, TensorParallel};

    fn configs() -> impl Strategy<Value = Config> {
        let size = prop::option::of((1u64..).prop_map(ByteSize::new));
        let rule = ("[a-z.*\"\\\\\n]{1,8}", any::<bool>()).prop_map(|(pattern, sharded)| WeightRule {
            pattern,
            format: sharded.then_some(Format::Bf16),
            placement: Some(if sharded { Placement::Sharded } else { Placement::Replicated }),
            reuse: sharded.then_some(Reuse::Keep),
            weight_decay: sharded.then_some(0.1),
            lr_scale: (!sharded).then_some(0.0),
            whole_matrix: sharded.then_some(true),
            frozen: sharded.then_some(false),
            tensor_parallel: sharded.then_some(TensorParallel::AlikeTokens),
            segments: (!sharded).then(|| vec![3, 1]),
            expert_parallel: sharded.then_some(true),
            scale_group: sharded.then(|| "qkv".to_owned()),
        });
        let rate = prop::option::of(1e3..1e12f64);
        let text = ".{1,9}";
        let rules = prop::collection::vec(rule, 0..3);
        (0u32..=64, size, 0.0..1e3f64, rate, text, rules).prop_map(
            |(depth, budget, lr, rate, path, weights)| {
                let mut config = Config { weights, ..Config::default() };
                config.prefetch = match depth % 3 {
                    0 => Prefetch::depth(depth),
                    1 => Prefetch::bytes(ByteSize::new(u64::from(depth))),
                    _ => Prefetch::auto(),
                };
                config.memory.budget = budget;
                config.prefetch.chunk = budget;
                config.kernel_exchange = budget;
                config.optimizer.lr = lr;
                config.cpu.link.bytes_per_s = rate;
                config.trace.path = path;
                config
            },
        )
    }

    fn origin_of<'a>(text: &'a str, line_begins: &str) -> &'a str {
        let line = text.lines().find(|line| line.starts_with(line_begins)).unwrap();
        line.rsplit_once(" # ").unwrap().1
    }

    proptest! {
        #[test]
        fn cf4_what_is_printed_loads_back_as_the_same_configuration(config in configs()) {
            let text = config.effective();
            prop_assert_eq!(Config::from_toml_str(&text, "effective").unwrap(), config, "{}", text);
        }

        /// CF-4
        #[test]
        fn changes_load_back_as_the_same_configuration(config in configs()) {
            let text = config.changes();
            prop_assert_eq!(Config::from_toml_str(&text, "changes").unwrap(), config, "{}", text);
        }
    }

    /// CF-3
    #[test]
    fn changes_are_what_is_not_as_by_default_and_what_was_set_over_a_file() {
        let mut config =
            Config::from_toml_str("communicators = 1\nbackward = \"regather\"", "a file").unwrap();
        config.set_by("mesh.tp", "--mesh");
        assert_eq!(config.changes(), "communicators = 1\nmesh.tp = 1\n");
        assert_eq!(Config::default().changes(), "");
    }

    #[test]
    fn cf3_every_line_says_where_its_value_came_from() {
        let directory = std::env::temp_dir();
        let path = directory.join(format!("warpweft-effective-{}.toml", std::process::id()));
        std::fs::write(&path, "check = true\n[[weights]]\nmatch = 'a'\nformat = 'f32'\n").unwrap();
        let pair = ("WARPWEFT_PREFETCH__DEPTH".to_owned(), "2".to_owned());
        let mut config = Config::load_with(Some(&path), [pair]).unwrap();
        std::fs::remove_file(&path).unwrap();
        config.backward = Backward::Keep;
        config.check = false;
        let text = config.effective();
        let name = path.display();
        assert_eq!(origin_of(&text, "depth"), "environment variable WARPWEFT_PREFETCH__DEPTH");
        assert_eq!(origin_of(&text, "format"), format!("{name}:4"));
        assert_eq!(origin_of(&text, "backward"), "set by the program");
        assert_eq!(origin_of(&text, "check"), "set by the program", "changed after loading");
        assert_eq!(origin_of(&text, "reduce_delay"), "default");
        assert_eq!(origin_of(&text, "# communicators is not set"), "default");
        assert_eq!(origin_of(&text, "# budget is not set"), "default");
        let (above, _) = text.split_once("# budget is not set").unwrap();
        assert!(above.lines().last().unwrap().contains("receive buffer"), "{text}");
    }
}
