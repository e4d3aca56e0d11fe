//! Environment variables as a layer of the configuration.
//!
//! The variables are handed in: nothing here reads the environment of the process, so tests need not change
//! it. Only names that begin with [`PREFIX`] are read, without those that tell processes of each other.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::document::below;
use super::error::ConfigError;
use super::keys;
use super::origin::Origin;
use warpweft_backend::rendezvous;

/// What the names of all our variables begin with.
pub(super) const PREFIX: &str = "WARPWEFT_";

/// The variables that are ours, parsed.
#[derive(Default)]
pub(super) struct Environment {
    pub(super) table: Table,
    /// By the path that it sets.
    variables: BTreeMap<String, String>,
    /// Of values that begin as a list or a table and are taken as text: what is wrong with them as TOML.
    no_toml: BTreeMap<String, String>,
}

impl Environment {
    /// Takes the variables that are ours, and nests them.
    ///
    /// # Errors
    /// [`ConfigError::SetTwice`] when two of them meet in one key.
    pub(super) fn collect(pairs: impl IntoIterator<Item = (String, String)>) -> Result<Self, ConfigError> {
        let is_ours = |name: &str| name.starts_with(PREFIX) && !rendezvous::VARIABLES.contains(&name);
        let own = pairs.into_iter().filter(|(name, _)| is_ours(name));
        // In the order of their names, so that the same variables give the same error.
        let sorted: BTreeMap<String, String> = own.collect();
        let mut environment = Self::default();
        for (name, text) in sorted {
            environment.set(name, &text)?;
        }
        Ok(environment)
    }

    /// The variable that set a key, if one did.
    pub(super) fn origin(&self, path: &str) -> Option<Origin> {
        let mut steps = path.split('.');
        let mut value = self.table.get(steps.next()?)?;
        // A list takes the place of another, so what is missing in it is missing in the variable.
        while !value.is_array()
            && let Some(key) = steps.next()
        {
            value = value.get(key)?;
        }
        self.origin_near(path)
    }

    /// Why the value of a key was taken as text, though it begins as a list or a table.
    pub(super) fn no_toml(&self, path: &str) -> Option<&str> {
        self.no_toml.get(path).map(String::as_str)
    }

    /// The variable that sets a path or the nearest table around it.
    pub(super) fn origin_near(&self, path: &str) -> Option<Origin> {
        let mut path = path;
        loop {
            if let Some(variable) = self.variables.get(path) {
                return Some(Origin::Environment { variable: variable.clone() });
            }
            path = path.rsplit_once('.')?.0;
        }
    }

    fn set(&mut self, variable: String, text: &str) -> Result<(), ConfigError> {
        let name = variable.strip_prefix(PREFIX).unwrap_or(&variable).to_ascii_lowercase();
        let keys: Vec<&str> = name.split("__").collect();
        let path = keys.iter().fold(String::new(), |path, key| below(&path, key));
        let (last, tables) = keys.split_last().unwrap_or((&"", &[]));
        let mut table = Some(&mut self.table);
        for key in tables {
            let inner = table.and_then(|table| {
                table.entry(*key).or_insert_with(|| Value::Table(Table::new())).as_table_mut()
            });
            table = inner;
        }
        let free = table.filter(|table| !table.contains_key(*last));
        let Some(table) = free else {
            return Err(self.set_twice(path, variable));
        };
        table.insert((*last).to_owned(), value(&path, text));
        let reason = parsed(text).err().filter(|_| text.trim_start().starts_with(['[', '{']));
        self.no_toml.extend(reason.map(|reason| (path.clone(), reason.message().replace('\n', " "))));
        self.variables.insert(path, variable);
        Ok(())
    }

    fn set_twice(&self, key: String, second: String) -> ConfigError {
        let related = |other: &String| {
            let (short, long) = if other.len() < key.len() { (other, &key) } else { (&key, other) };
            long.strip_prefix(short.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let first = self.variables.iter().find(|(path, _)| related(path));
        let first = first.map_or_else(String::new, |(_, variable)| variable.clone());
        ConfigError::SetTwice { key, first, second }
    }
}

/// The name of the variable that sets a key.
pub(super) fn variable_for(path: &str) -> String {
    format!("{PREFIX}{}", path.replace('.', "__").to_ascii_uppercase())
}

/// A value as TOML; as text where it is no TOML, a date, or no text though the key takes text.
fn value(path: &str, text: &str) -> Value {
    let as_text = || Value::String(text.to_owned());
    let takes_text = matches!(keys::default_of(path), Some(Value::String(_)));
    match parsed(text) {
        Ok(Value::Datetime(_)) | Err(_) => as_text(),
        Ok(value) if takes_text && !value.is_str() => as_text(),
        Ok(value) => value,
    }
}

fn parsed(text: &str) -> Result<Value, toml::de::Error> {
    text.trim().parse()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn collected(pairs: &[(&str, &str)]) -> Result<Environment, ConfigError> {
        Environment::collect(pairs.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())))
    }

    #[test]
    fn double_underscores_nest_and_other_variables_are_not_ours() {
        let found = collected(&[("WARPWEFT_CPU__LINK__LATENCY_US", "2.5"), ("PATH", "/bin")]).unwrap();
        assert_eq!(found.table.to_string(), "[cpu.link]\nlatency_us = 2.5\n");
        let variable = "WARPWEFT_CPU__LINK__LATENCY_US".to_owned();
        assert_eq!(variable_for("cpu.link.latency_us"), variable);
        assert_eq!(found.origin("cpu.link.latency_us"), Some(Origin::Environment { variable }));
        assert_eq!(found.origin("cpu.link.bytes_per_s"), None);
    }

    #[test]
    fn what_a_launch_tells_a_process_is_no_key() {
        for name in rendezvous::VARIABLES {
            assert!(name.starts_with(PREFIX));
            assert!(collected(&[(name, "1")]).unwrap().table.is_empty(), "{name}");
        }
    }

    #[test]
    fn a_value_is_toml_or_else_text() {
        assert_eq!(value("prefetch.depth", " 2 "), Value::Integer(2));
        assert_eq!(value("check", "true"), Value::Boolean(true));
        assert_eq!(value("memory.budget", "1.2 GiB"), Value::String("1.2 GiB".to_owned()));
        assert_eq!(value("memory.budget", "4096"), Value::Integer(4096));
        assert_eq!(value("trace.path", "123"), Value::String("123".to_owned()));
        assert_eq!(value("reduce", "\"nccl\""), Value::String("nccl".to_owned()));
        assert_eq!(value("check", "1979-05-27"), Value::String("1979-05-27".to_owned()));
        assert_eq!(value("prefetch.depth", "2\nx = 1"), Value::String("2\nx = 1".to_owned()));
    }

    #[test]
    fn variables_that_meet_in_one_key_are_refused() {
        for pair in [["WARPWEFT_CHECK", "WARPWEFT_check"], ["WARPWEFT_PREFETCH", "WARPWEFT_PREFETCH__DEPTH"]]
        {
            let error = collected(&pair.map(|name| (name, "1"))).err().unwrap().to_string();
            assert!(pair.iter().all(|name| error.contains(name)), "{error}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_variables_never_panic(name in "[A-Za-z_.]{0,20}", text in "(?s).{0,20}") {
            let _ = collected(&[(&format!("{PREFIX}{name}"), &text), ("WARPWEFT_A__B", "1")]);
        }
    }
}
