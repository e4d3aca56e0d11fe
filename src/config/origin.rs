//! Where the value of a key came from (CF-3).

use std::collections::BTreeMap;
use std::fmt;

use toml::Value;

use super::Config;
use super::keys::{self, Entry};

/// Where the value of a key came from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A file.
    File {
        /// The file, as the caller named it.
        name: String,
        /// The line, from 1, where the parser told it.
        line: Option<usize>,
    },
    /// An environment variable.
    Environment {
        /// Its full name.
        variable: String,
    },
    /// The program, after or instead of loading.
    Program,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line: Some(line) } => write!(f, "{name}:{line}"),
            Self::File { name, line: None } => f.write_str(name),
            Self::Environment { variable } => write!(f, "environment variable {variable}"),
            Self::Program => f.write_str("set by the program"),
        }
    }
}

/// The origins of the values of a loaded configuration.
///
/// They describe a configuration and are no part of its value: any two of them compare equal, so
/// that two configurations are equal when they say the same.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    /// By key: where it was set, and to what. A value that has changed since was set by the
    /// program.
    loaded: BTreeMap<String, (Origin, Value)>,
}

impl PartialEq for Origins {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Origins {}

impl Origins {
    /// Remembers where the values of a freshly loaded configuration came from. `find` knows the
    /// keys that a file or the environment set.
    pub(super) fn record(config: &Config, find: impl Fn(&str) -> Option<Origin>) -> Self {
        let set = keys::entries(config).into_iter().filter_map(|entry| {
            let origin = find(&entry.path)?;
            entry.value.map(|value| (entry.path, (origin, value)))
        });
        Self { loaded: set.collect() }
    }

    /// Where the present value of an entry came from. What a rule lacks came from wherever the rule
    /// did.
    pub(super) fn of(&self, entry: &Entry) -> Origin {
        match (self.loaded.get(&entry.path), &entry.value) {
            (Some((origin, loaded)), Some(value)) if same(loaded, value) => origin.clone(),
            (None, value) if keys::is_of_rule(&entry.path) => match value {
                Some(_) => Origin::Program,
                None => self.sibling(&entry.path).unwrap_or(Origin::Program),
            },
            (None, value) if *value == keys::default_of(&entry.path) => Origin::Default,
            _ => Origin::Program,
        }
    }

    fn sibling(&self, path: &str) -> Option<Origin> {
        let (parent, _) = path.rsplit_once('.')?;
        let inside = |key: &String| key.rsplit_once('.').is_some_and(|(other, _)| other == parent);
        let found = self.loaded.iter().find(|(key, _)| inside(key));
        found.map(|(_, (origin, _))| origin.clone())
    }
}

/// Equality in which a NaN equals itself.
fn same(left: &Value, right: &Value) -> bool {
    left == right || left.to_string() == right.to_string()
}
