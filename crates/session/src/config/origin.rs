//! The origin of a key's value (CF-3).

use std::collections::BTreeMap;
use std::fmt;

use toml::Value;

use super::Config;
use super::keys::{self, Entry};
use warpweft_base::errors::{shown, shown_path};

/// The origin of a key's value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// A file.
    File {
        /// The file, as the caller named it.
        name: String,
        /// The line, from 1, where the parser reported it.
        line: Option<usize>,
    },
    /// An environment variable.
    Environment {
        /// Its full name.
        variable: String,
    },
    /// An argument of the program, which named it ([`Config::set_by`]).
    Argument {
        /// The argument, as the user gives it.
        name: String,
    },
    /// The program, after or instead of loading.
    Program,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line: Some(line) } => write!(f, "{}:{line}", shown_path(name.as_ref())),
            Self::File { name, line: None } => f.write_str(&shown_path(name.as_ref())),
            Self::Environment { variable } => write!(f, "environment variable {}", shown(variable)),
            Self::Argument { name } => f.write_str(name),
            Self::Program => f.write_str("set by the program"),
        }
    }
}

impl Origin {
    /// Does a value that came from here hold in place of one in a file?
    pub(super) fn is_over_a_file(&self) -> bool {
        match self {
            Self::Default | Self::File { .. } => false,
            Self::Environment { .. } | Self::Argument { .. } | Self::Program => true,
        }
    }
}

impl Config {
    /// Says that the present value of `key` was given by an argument of the program, such as `--depth`: messages
    /// and the effective values then name that. A key that there is not, or whose value changes later, is as if
    /// nothing had been said.
    pub fn set_by(&mut self, key: &str, argument: &str) {
        let set = keys::entries(self).into_iter().find(|entry| entry.path == key);
        if let Some(value) = set.and_then(|entry| entry.value) {
            let origin = Origin::Argument { name: argument.to_owned() };
            self.origins.loaded.insert(key.to_owned(), (origin, value));
        }
    }

    /// Keys that were given a value and have none now.
    #[doc(hidden)]
    pub fn taken_away(&self) -> impl Iterator<Item = String> {
        let without = keys::entries(self).into_iter().filter(|entry| entry.value.is_none());
        without.map(|entry| entry.path).filter(|path| self.origins.loaded.contains_key(path))
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

    /// Where some other key of the same table came from.
    fn sibling(&self, path: &str) -> Option<Origin> {
        let (parent, _) = path.rsplit_once('.')?;
        let table = format!("{parent}.");
        let (key, (origin, _)) = self.loaded.range(table.clone()..).next()?;
        key.starts_with(&table).then(|| origin.clone())
    }
}

/// Equality in which a NaN equals itself.
fn same(left: &Value, right: &Value) -> bool {
    left == right || left.to_string() == right.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CF-3
    #[test]
    fn an_argument_is_named_for_the_value_that_it_gave_and_for_no_other() {
        let mut config = Config::default();
        config.tune.steps = 5;
        config.set_by("tune.steps", "--tune");
        config.set_by("no.such.key", "--none");
        let said = config.validate().unwrap_err().to_string();
        assert!(said.starts_with("--tune: `tune.steps` is 5"), "{said}");
        assert!(
            config.effective().lines().any(|line| line.contains("steps = 5") && line.ends_with("# --tune"))
        );
        config.tune.steps = 4;
        let said = config.validate().unwrap_err().to_string();
        assert!(said.starts_with("set by the program: `tune.steps` is 4"), "{said}");
    }
}
