//! Lookups in the table of keys.
//!
//! Unknown keys, validation, errors and printing all follow the table in `rows`; nothing about a single key
//! is known here. A test holds the table against the fields of [`Config`].

mod rows;

use toml::Value;

use self::rows::{ROWS, RULE_ROWS, Row, RuleRow};
use super::{Config, WeightRule};

/// A key with its present value.
pub(super) struct Entry {
    pub(super) path: String,
    pub(super) expected: &'static str,
    /// `None` when not set.
    pub(super) value: Option<Value>,
    pub(super) valid: bool,
}

/// What a path leads to.
pub(super) enum Place {
    /// A value; what it takes.
    Value(&'static str),
    /// A table or list of further keys.
    Table,
    /// Nothing.
    Unknown,
}

pub(super) const RULES: &str = "weights";

/// Every key of a configuration, those of its rules last.
pub(super) fn entries(config: &Config) -> Vec<Entry> {
    let plain = ROWS.iter().map(|row| Entry {
        path: row.path.to_owned(),
        expected: row.expected,
        value: (row.value)(config),
        valid: (row.valid)(config),
    });
    let rules = config.weights.iter().enumerate();
    plain.chain(rules.flat_map(|(number, rule)| entries_of_rule(number, rule))).collect()
}

/// The keys of one rule.
pub(super) fn entries_of_rule(number: usize, rule: &WeightRule) -> Vec<Entry> {
    let entry = |row: &RuleRow| Entry {
        path: format!("{RULES}.{number}.{}", row.field),
        expected: row.expected,
        value: (row.value)(rule),
        valid: (row.valid)(rule),
    };
    RULE_ROWS.iter().map(entry).collect()
}

/// The value a key has when nobody sets it; `None` when it is then not set.
pub(super) fn default_of(path: &str) -> Option<Value> {
    let row = ROWS.iter().find(|row| row.path == path)?;
    (row.value)(&Config::default())
}

/// Whether a key belongs to a rule under `weights`.
pub(super) fn is_of_rule(path: &str) -> bool {
    path.strip_prefix(RULES).is_some_and(|rest| rest.starts_with('.'))
}

/// What a dotted path leads to.
pub(super) fn place(path: &str) -> Place {
    if let Some(row) = ROWS.iter().find(|row| row.path == path) {
        return Place::Value(row.expected);
    }
    let mut segments = path.split('.');
    if segments.next() == Some(RULES) {
        let numbered = segments.next().is_none_or(|number| number.parse::<usize>().is_ok());
        return match (numbered, segments.next(), segments.next()) {
            (true, None, None) => Place::Table,
            (true, Some(field), None) => {
                let row = RULE_ROWS.iter().find(|row| row.field == field);
                row.map_or(Place::Unknown, |row| Place::Value(row.expected))
            }
            _ => Place::Unknown,
        };
    }
    let inside = |row: &Row| row.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('.'));
    if ROWS.iter().any(inside) { Place::Table } else { Place::Unknown }
}

/// What the name of a key does not say, for who reads the effective configuration.
pub(super) fn aside(path: &str) -> Option<&'static str> {
    match path {
        "memory.budget" => Some(
            "of transient bytes per rank; resident bytes and, on GPUs, the receive buffer beside the arena come on top",
        ),
        "checkpoint.snapshot_bytes" => Some("of host memory per rank, for saves in the background"),
        _ => None,
    }
}

/// What a path takes, in words, for any path.
pub(super) fn expected(path: &str) -> String {
    match place(path) {
        Place::Value(expected) => expected.to_owned(),
        Place::Table if path == RULES => {
            let fields = RULE_ROWS.iter().map(|row| row.field).filter(|field| *field != "match");
            let fields: Vec<String> = fields.map(str::to_owned).collect();
            format!("a list of tables, each with `match` and one or more of {}", words(&fields))
        }
        Place::Table | Place::Unknown => format!("a table of {}", words(&children(path))),
    }
}

/// Every key there is, with the number of a rule taken from the path that is to be compared.
pub(super) fn all_like(path: &str) -> Vec<String> {
    let number = path.split('.').nth(1).filter(|number| number.parse::<usize>().is_ok());
    let rule = |row: &RuleRow| format!("{RULES}.{}.{}", number.unwrap_or("0"), row.field);
    let plain = ROWS.iter().map(|row| row.path.to_owned());
    plain.chain([RULES.to_owned()]).chain(RULE_ROWS.iter().map(rule)).collect()
}

/// The names one step below the nearest known table at or above a path.
pub(super) fn children(path: &str) -> Vec<String> {
    let mut table = path;
    while !table.is_empty() && !matches!(place(table), Place::Table) {
        table = table.rsplit_once('.').map_or("", |(parent, _)| parent);
    }
    let mut names: Vec<String> = Vec::new();
    for key in all_like(path) {
        let rest = if table.is_empty() {
            Some(key.as_str())
        } else {
            key.strip_prefix(table).and_then(|rest| rest.strip_prefix('.'))
        };
        let name = rest.and_then(|rest| rest.split('.').next()).map(str::to_owned);
        names.extend(name.filter(|name| !names.contains(name)));
    }
    names
}

/// Names in quotes with commas between.
pub(super) fn words(names: &[String]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::WeightRule;
    use super::*;
    use toml::Table;
    use warpweft_format::Format;
    use warpweft_plan::model::Placement;

    /// Dotted paths of all leaves; a list of numbers is one.
    fn leaves(prefix: &str, value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Table(table) => {
                for (key, value) in table {
                    let dot = if prefix.is_empty() { "" } else { "." };
                    leaves(&format!("{prefix}{dot}{key}"), value, into);
                }
            }
            Value::Array(list) if list.iter().all(Value::is_table) => {
                for (number, value) in list.iter().enumerate() {
                    leaves(&format!("{prefix}.{number}"), value, into);
                }
            }
            _ => into.push(prefix.to_owned()),
        }
    }

    #[test]
    fn the_table_has_a_row_for_every_field_and_reads_its_value() {
        let mut config = Config::default();
        config.memory.budget = Some(crate::config::ByteSize::new(7));
        config.communicators = Some(2);
        (config.mesh.dp_replicate, config.mesh.dp_shard) = (Some(2), Some(2));
        config.checkpoint.snapshot_bytes = Some(crate::config::ByteSize::new(7));
        config.mesh.levels = Some(warpweft_plan::model::Levels::USUAL);
        config.prefetch.bytes = Some(crate::config::ByteSize::new(7));
        config.prefetch.chunk = Some(crate::config::ByteSize::new(7));
        config.kernel_exchange = Some(crate::config::ByteSize::new(7));
        config.prefetch.policy = Some(crate::config::PrefetchPolicy::Auto);
        config.cpu.link.bytes_per_s = Some(1e9);
        config.weights.push(WeightRule {
            pattern: "*".to_owned(),
            format: Some(Format::Bf16),
            placement: Some(Placement::Sharded),
            reuse: Some(warpweft_plan::model::Reuse::Keep),
            weight_decay: Some(0.5),
            lr_scale: Some(2.0),
            whole_matrix: Some(true),
            frozen: Some(true),
            tensor_parallel: Some(warpweft_plan::model::TensorParallel::RowParallel),
            segments: Some(vec![2, 1]),
            expert_parallel: Some(true),
            scale_group: Some("a".to_owned()),
        });
        let table = Table::try_from(&config).unwrap();
        let mut fields = Vec::new();
        leaves("", &Value::Table(table.clone()), &mut fields);
        let mut rows: Vec<String> = entries(&config).into_iter().map(|entry| entry.path).collect();
        rows.sort();
        fields.sort();
        assert_eq!(rows, fields);
        let whole = Value::Table(table);
        for entry in entries(&config) {
            let step = |value, key: &str| match key.parse::<usize>() {
                Ok(number) => Value::get(value, number),
                Err(_) => Value::get(value, key),
            };
            let found = entry.path.split('.').try_fold(&whole, step);
            assert_eq!(entry.value.as_ref(), found, "{}", entry.path);
        }
    }

    #[test]
    fn paths_lead_to_values_tables_or_nothing() {
        for path in ["check", "prefetch.depth", "weights.0.match", "weights.12.placement"] {
            assert!(matches!(place(path), Place::Value(_)), "{path}");
        }
        for path in ["prefetch", "cpu", "cpu.link", "weights", "weights.3"] {
            assert!(matches!(place(path), Place::Table), "{path}");
        }
        for path in ["", "pre", "prefetch.dep", "check.it", "weights.x", "weights.0.match.y", "cpu.lin"] {
            assert!(matches!(place(path), Place::Unknown), "{path}");
        }
    }

    #[test]
    fn the_children_of_a_table_are_told_for_advice() {
        assert_eq!(children("cpu.link.speed"), ["bytes_per_s", "latency_us"]);
        assert_eq!(
            children("weights.4.x"),
            [
                "match",
                "format",
                "placement",
                "reuse",
                "weight_decay",
                "lr_scale",
                "whole_matrix",
                "frozen",
                "tensor_parallel",
                "segments",
                "expert_parallel",
                "scale_group"
            ]
        );
        assert!(children("nonsense").contains(&"prefetch".to_owned()));
    }
}
