//! The table of keys.
//!
//! Whatever has to be known about a key stands in its row: what it takes in words, how its value is
//! read from a configuration, and which values are valid. Unknown keys, validation, errors and
//! printing all follow this table; a test holds it against the fields of [`Config`].

use serde::Serialize;
use toml::Value;

use super::{Config, WeightRule};

/// A key of the configuration.
struct Row {
    path: &'static str,
    expected: &'static str,
    value: fn(&Config) -> Option<Value>,
    valid: fn(&Config) -> bool,
}

/// A key of every rule under `weights`.
struct RuleRow {
    field: &'static str,
    expected: &'static str,
    value: fn(&WeightRule) -> Option<Value>,
    valid: fn(&WeightRule) -> bool,
}

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

const RULES: &str = "weights";
const FROM_ZERO: &str = "a finite number from 0 on";
const BELOW_ONE: &str = "a number from 0 to below 1 in 32-bit floating point";
const SWITCH: &str = "`true` or `false`";

/// Keys in the order in which they are printed: those without a table first.
const ROWS: &[Row] = &[
    Row {
        path: "communicators",
        expected: "1 or 2",
        value: |c| toml(c.communicators),
        valid: |c| (1..=2).contains(&c.communicators),
    },
    Row {
        path: "backward",
        expected: "\"regather\" or \"keep\"",
        value: |c| toml(c.backward),
        valid: |_| true,
    },
    Row {
        path: "across_micro_batches",
        expected: "\"regather\", \"keep\" or \"fit\" (keep if the budget allows it)",
        value: |c| toml(c.across_micro_batches),
        valid: |_| true,
    },
    Row {
        path: "reduce_every",
        expected: "\"call\", \"micro_batch\" or \"step\"",
        value: |c| toml(c.reduce_every),
        valid: |_| true,
    },
    Row {
        path: "reduce_dtype",
        expected: "\"f32\" or \"bf16\"",
        value: |c| toml(c.reduce_dtype),
        valid: |_| true,
    },
    Row {
        path: "columnwise",
        expected: "\"on_demand\" or \"keep\"",
        value: |c| toml(c.columnwise),
        valid: |_| true,
    },
    Row { path: "reduce", expected: "\"ordered\" or \"nccl\"", value: |c| toml(c.reduce), valid: |_| true },
    Row {
        path: "transport",
        expected: "\"auto\", \"peer\" or \"nccl\"",
        value: |c| toml(c.transport),
        valid: |_| true,
    },
    Row {
        path: "deadline_s",
        expected: "a number of seconds from 0.1 to 86400",
        value: |c| toml(c.deadline_s),
        valid: |c| (0.1..=86_400.0).contains(&c.deadline_s),
    },
    Row { path: "capture", expected: "\"off\" or \"step\"", value: |c| toml(c.capture), valid: |_| true },
    Row { path: "check", expected: SWITCH, value: |c| toml(c.check), valid: |_| true },
    Row {
        path: "prefetch.depth",
        expected: "a whole number from 0 (gather on demand) to 64",
        value: |c| c.prefetch.depth.and_then(toml),
        valid: |c| c.prefetch.depth.is_none_or(|depth| depth <= 64),
    },
    Row {
        path: "prefetch.bytes",
        expected: "a size above zero of gathered planes in flight, such as \"1.2 GiB\", and neither prefetch.depth nor prefetch.policy beside it",
        value: |c| c.prefetch.bytes.and_then(toml),
        valid: |c| c.prefetch.bytes.is_none_or(|size| size.bytes() > 0 && c.prefetch.is_at_most_one()),
    },
    Row {
        path: "prefetch.policy",
        expected: "\"auto\", and neither prefetch.depth nor prefetch.bytes beside it",
        value: |c| c.prefetch.policy.and_then(toml),
        valid: |c| c.prefetch.policy.is_none() || c.prefetch.is_at_most_one(),
    },
    Row {
        path: "prefetch.cluster",
        expected: "the machine that prefetch.policy = \"auto\" counts with: a preset such as \"h100x8-ib\", or a cluster file",
        value: |c| toml(&c.prefetch.cluster),
        valid: |c| !c.prefetch.cluster.is_empty(),
    },
    Row {
        path: "memory.budget",
        expected: "a size above zero such as \"1.2 GiB\", or remove it for no limit",
        value: |c| c.memory.budget.and_then(toml),
        valid: |c| c.memory.budget.is_none_or(|size| size.bytes() > 0),
    },
    Row {
        path: "quantize.via",
        expected: "\"bf16\" or \"none\"",
        value: |c| toml(c.quantize.via),
        valid: |_| true,
    },
    Row {
        path: "quantize.scaling",
        expected: "\"current\" or \"delayed\" (for weights in per-tensor FP8 formats)",
        value: |c| toml(c.quantize.scaling),
        valid: |_| true,
    },
    Row {
        path: "quantize.amax_history",
        expected: "a whole number of steps from 1 to 65536",
        value: |c| toml(c.quantize.amax_history),
        valid: |c| (1..=65536).contains(&c.quantize.amax_history),
    },
    Row {
        path: "quantize.amax_choice",
        expected: "\"largest\" or \"latest\"",
        value: |c| toml(c.quantize.amax_choice),
        valid: |_| true,
    },
    Row {
        path: "optimizer.mode",
        expected: "\"adamw\" (decoupled weight decay) or \"adam\" (weight decay as part of the gradient)",
        value: |c| toml(c.optimizer.mode),
        valid: |_| true,
    },
    Row {
        path: "optimizer.lr",
        expected: FROM_ZERO,
        value: |c| toml(c.optimizer.lr),
        valid: |c| from_zero(c.optimizer.lr),
    },
    Row {
        path: "optimizer.beta1",
        expected: BELOW_ONE,
        value: |c| toml(c.optimizer.beta1),
        valid: |c| below_one(c.optimizer.beta1),
    },
    Row {
        path: "optimizer.beta2",
        expected: BELOW_ONE,
        value: |c| toml(c.optimizer.beta2),
        valid: |c| below_one(c.optimizer.beta2),
    },
    Row {
        path: "optimizer.eps",
        expected: "a finite number above 0 in 32-bit floating point",
        value: |c| toml(c.optimizer.eps),
        valid: |c| from_zero(c.optimizer.eps) && c.optimizer.eps as f32 > 0.0,
    },
    Row {
        path: "optimizer.weight_decay",
        expected: FROM_ZERO,
        value: |c| toml(c.optimizer.weight_decay),
        valid: |c| from_zero(c.optimizer.weight_decay),
    },
    Row {
        path: "optimizer.bias_correction",
        expected: SWITCH,
        value: |c| toml(c.optimizer.bias_correction),
        valid: |_| true,
    },
    Row {
        path: "optimizer.moments",
        expected: "\"f32\" or \"bf16\"",
        value: |c| toml(c.optimizer.moments),
        valid: |_| true,
    },
    Row {
        path: "optimizer.masters",
        expected: "\"f32\" or \"bf16_remainder\" (every sharded weight must be bf16 then)",
        value: |c| toml(c.optimizer.masters),
        valid: |_| true,
    },
    Row {
        path: "optimizer.max_norm",
        expected: "a finite number above 0, or 0 for no clipping",
        value: |c| toml(c.optimizer.max_norm),
        valid: |c| from_zero(c.optimizer.max_norm),
    },
    Row {
        path: "cpu.link.bytes_per_s",
        expected: "a finite number of bytes above 0, or remove it for a link as fast as memory",
        value: |c| c.cpu.link.bytes_per_s.and_then(toml),
        valid: |c| c.cpu.link.bytes_per_s.is_none_or(|rate| rate.is_finite() && rate > 0.0),
    },
    Row {
        path: "cpu.link.latency_us",
        expected: "a finite number of microseconds from 0 on",
        value: |c| toml(c.cpu.link.latency_us),
        valid: |c| from_zero(c.cpu.link.latency_us),
    },
    Row { path: "trace.enabled", expected: SWITCH, value: |c| toml(c.trace.enabled), valid: |_| true },
    Row {
        path: "trace.path",
        expected: "the name of the file to write",
        value: |c| toml(&c.trace.path),
        valid: |c| !c.trace.path.is_empty(),
    },
    Row {
        path: "trace.first_step",
        expected: "a whole number from 0 on",
        value: |c| toml(c.trace.first_step),
        valid: |_| true,
    },
    Row {
        path: "trace.steps",
        expected: "a whole number from 1 on",
        value: |c| toml(c.trace.steps),
        valid: |c| c.trace.steps > 0,
    },
];

const RULE_ROWS: &[RuleRow] = &[
    RuleRow {
        field: "match",
        expected: "a pattern of weight names, in which * stands for anything and ? for any one character",
        value: |rule| toml(&rule.pattern),
        valid: |rule| !rule.pattern.is_empty(),
    },
    RuleRow {
        field: "format",
        expected: "a format such as \"nvfp4\" or \"bf16\" (a rule needs this, `placement` or `reuse`)",
        value: |rule| rule.format.and_then(toml),
        valid: |rule| rule.format.is_some() || rule.placement.is_some() || rule.reuse.is_some(),
    },
    RuleRow {
        field: "placement",
        expected: "\"sharded\" or \"replicated\"",
        value: |rule| Value::try_from(rule).ok()?.get("placement").cloned(),
        valid: |_| true,
    },
    RuleRow {
        field: "reuse",
        expected: "\"regather\" or \"keep\"",
        value: |rule| rule.reuse.and_then(toml),
        valid: |_| true,
    },
];

/// Every key of a configuration, those of its rules last.
pub(super) fn entries(config: &Config) -> Vec<Entry> {
    let plain = ROWS.iter().map(|row| Entry {
        path: row.path.to_owned(),
        expected: row.expected,
        value: (row.value)(config),
        valid: (row.valid)(config),
    });
    let rules = config.weights.iter().enumerate().flat_map(|(number, rule)| {
        RULE_ROWS.iter().map(move |row| Entry {
            path: format!("{RULES}.{number}.{}", row.field),
            expected: row.expected,
            value: (row.value)(rule),
            valid: (row.valid)(rule),
        })
    });
    plain.chain(rules).collect()
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

/// What a path takes, in words, for any path.
pub(super) fn expected(path: &str) -> String {
    match place(path) {
        Place::Value(expected) => expected.to_owned(),
        Place::Table if path == RULES => {
            "a list of tables, each with `match` and with `format`, `placement` or `reuse`".to_owned()
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

fn toml(value: impl Serialize) -> Option<Value> {
    Value::try_from(value).ok()
}

fn from_zero(value: f64) -> bool {
    (value as f32).is_finite() && value >= 0.0
}

fn below_one(value: f64) -> bool {
    value >= 0.0 && (value as f32) < 1.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;
    use crate::model::Placement;
    use toml::Table;

    /// Dotted paths of all leaves.
    fn leaves(prefix: &str, value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Table(table) => {
                for (key, value) in table {
                    let dot = if prefix.is_empty() { "" } else { "." };
                    leaves(&format!("{prefix}{dot}{key}"), value, into);
                }
            }
            Value::Array(list) => {
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
        config.memory.budget = Some(super::super::ByteSize::new(7));
        config.prefetch.bytes = Some(super::super::ByteSize::new(7));
        config.prefetch.policy = Some(super::super::PrefetchPolicy::Auto);
        config.cpu.link.bytes_per_s = Some(1e9);
        config.weights.push(WeightRule {
            pattern: "*".to_owned(),
            format: Some(Format::Bf16),
            placement: Some(Placement::Sharded),
            reuse: Some(crate::model::Reuse::Keep),
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
        assert_eq!(children("weights.4.x"), ["match", "format", "placement", "reuse"]);
        assert!(children("nonsense").contains(&"prefetch".to_owned()));
    }
}
