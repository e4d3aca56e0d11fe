//! Loads a configuration from its sources.
//!
//! Order of work: parse every source, refuse unknown keys (CF-2), lay the environment over the file and read the
//! types, record where values came from (CF-3), validate (CF-1). The first error ends it.

use std::path::Path;

use super::document::{Document, leaves};
use super::elsewhere;
use super::environment::{Environment, PREFIX, variable_for};
use super::keys::{self, Place};
use super::origin::{Origin, Origins};
use super::reading::{Refusal, Wrong, lay_over, read};
use super::suggest::closest;
use super::{Config, ConfigError, Prefetch};
use toml::{Table, Value};
use warpweft_base::whole_file::regular;

impl Config {
    /// Loads a file, if one is named, and the environment of the process over it.
    ///
    /// # Errors
    /// Any [`ConfigError`].
    pub fn load(path: Option<&Path>) -> Result<Self, ConfigError> {
        Self::load_with(path, of_this_process()?)
    }

    /// Loads a text that is part of the program, and the environment of the process over it; `source_name` is
    /// what errors and origins call the text.
    ///
    /// # Errors
    /// Any [`ConfigError`] but those about files.
    pub fn load_toml_str(text: &str, source_name: &str) -> Result<Self, ConfigError> {
        let document = Some(Document::parse(source_name, text)?);
        Sources { document, environment: Environment::collect(of_this_process()?)? }.merge()
    }

    /// Loads a file, if one is named, and the given variables over it, as name and value.
    ///
    /// # Errors
    /// Any [`ConfigError`].
    pub fn load_with(
        path: Option<&Path>,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, ConfigError> {
        let document = match path {
            None => None,
            Some(path) => {
                let text = regular::text(path)
                    .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
                Some(Document::parse(&path.display().to_string(), &text)?)
            }
        };
        Sources { document, environment: Environment::collect(environment)? }.merge()
    }

    /// Reads a configuration from a text alone; `source_name` is what errors call it.
    ///
    /// # Errors
    /// Any [`ConfigError`] but those about files and environment.
    pub fn from_toml_str(text: &str, source_name: &str) -> Result<Self, ConfigError> {
        let document = Some(Document::parse(source_name, text)?);
        Sources { document, environment: Environment::default() }.merge()
    }
}

/// The variables of the process that may be ours, as name and value.
fn of_this_process() -> Result<Vec<(String, String)>, ConfigError> {
    let mut environment = Vec::new();
    for (name, text) in std::env::vars_os() {
        // A name that is not Unicode is not ours: ours are ASCII.
        let Some(name) = name.to_str().filter(|name| name.starts_with(PREFIX)) else {
            continue;
        };
        let variable = name.to_owned();
        match text.into_string() {
            Ok(text) => environment.push((variable, text)),
            Err(_) => return Err(ConfigError::NotUnicode { variable }),
        }
    }
    Ok(environment)
}

/// Does a source choose when gathers start?
fn sets_prefetch(table: &Table) -> bool {
    let prefetch = table.get("prefetch").and_then(Value::as_table);
    prefetch.is_some_and(|prefetch| Prefetch::ALTERNATIVES.iter().any(|key| prefetch.contains_key(*key)))
}

/// All that a configuration is made of, apart from the defaults.
struct Sources {
    document: Option<Document>,
    environment: Environment,
}

impl Sources {
    fn merge(self) -> Result<Config, ConfigError> {
        self.refuse_unknown_keys()?;
        let mut file = self.document.as_ref().map(|document| document.table.clone()).unwrap_or_default();
        let (in_file, in_environment) = (sets_prefetch(&file), sets_prefetch(&self.environment.table));
        if let (true, Some(Value::Table(prefetch))) = (in_environment, file.get_mut("prefetch")) {
            Prefetch::ALTERNATIVES.iter().for_each(|key| drop(prefetch.remove(*key)));
        }
        lay_over(&mut file, &self.environment.table);
        let mut config: Config = read(&file).map_err(|refusal| self.explain(&refusal))?;
        let depth = || file.get("prefetch").and_then(|prefetch| prefetch.get("depth"));
        if (in_file || in_environment) && depth().is_none() {
            // Chosen otherwise, so the default does not hold.
            config.prefetch.depth = None;
        }
        config.origins = Origins::record(&config, |path| {
            let file = || self.document.as_ref().and_then(|document| document.origin(path));
            self.environment.origin(path).or_else(file)
        });
        config.validate()?;
        Ok(config)
    }

    fn refuse_unknown_keys(&self) -> Result<(), ConfigError> {
        let no_key = |path: &String| matches!(keys::place(path), Place::Unknown);
        if let Some(document) = &self.document
            && document.table.get(keys::RULES).is_some_and(Value::is_table)
        {
            return Err(ConfigError::Invalid {
                key: keys::RULES.to_owned(),
                origin: document.origin_near(keys::RULES),
                problem: "is a table, and the rules are a list".to_owned(),
                expected: format!("a list: write [[{}]], in two brackets, above each rule", keys::RULES),
            });
        }
        if let Some(document) = &self.document
            && let Some(path) = document.leaves().into_iter().find(no_key)
        {
            let origin = document.origin_near(&path);
            return Err(unknown(path, origin));
        }
        self.refuse_parts_of_rules()?;
        match leaves(&self.environment.table).into_iter().find(no_key) {
            None => Ok(()),
            Some(path) => {
                let origin = self.environment.origin_near(&path).unwrap_or(Origin::Default);
                Err(unknown(path, origin))
            }
        }
    }

    /// Variables nest tables and not lists, so the rules are one variable or none.
    fn refuse_parts_of_rules(&self) -> Result<(), ConfigError> {
        let rules = self.environment.table.get(keys::RULES);
        if !rules.is_some_and(Value::is_table) {
            return Ok(());
        }
        let within = |path: &String| path.split('.').next() == Some(keys::RULES);
        let first = leaves(&self.environment.table).into_iter().find(within);
        let origin = self.environment.origin_near(first.as_deref().unwrap_or(keys::RULES));
        Err(ConfigError::Invalid {
            key: keys::RULES.to_owned(),
            origin: origin.unwrap_or(Origin::Default),
            problem: "is a list, and no variable sets a part of it".to_owned(),
            expected: format!(
                "all rules in one variable, as in {}='[{{ match = \"blocks.*\", format = \"bf16\" }}]', or in a file",
                variable_for(keys::RULES)
            ),
        })
    }

    /// Where a key was set, or else what is around it.
    fn origin(&self, path: &str) -> Origin {
        let file = || self.document.as_ref().map(|document| document.origin_near(path));
        self.environment.origin(path).or_else(file).unwrap_or(Origin::Default)
    }

    /// What a type refuses, as an error that names key and source.
    fn explain(&self, refusal: &Refusal) -> ConfigError {
        let key = refusal.key();
        let origin = self.origin(&key);
        if let Wrong::Unknown(_) = refusal.wrong {
            return unknown(key, origin);
        }
        let mut problem = refusal.wrong.to_string();
        if let (Wrong::Text(_), Some(reason)) = (&refusal.wrong, self.environment.no_toml(&key)) {
            problem += &format!(", which is no TOML ({reason})");
        }
        ConfigError::Invalid { origin, expected: keys::expected(&key), key, problem }
    }
}

fn unknown(key: String, origin: Origin) -> ConfigError {
    let candidates = keys::all_like(&key);
    let names = || candidates.iter().map(String::as_str);
    let instead = elsewhere::instead(&key, names()).filter(|_| elsewhere::meant(&key, names()).is_none());
    let suggestion = closest(&key, names()).filter(|_| instead.is_none()).map(str::to_owned);
    let advice = match (&suggestion, &origin) {
        (Some(meant), Origin::Environment { .. }) => format!("did you mean {}?", variable_for(meant)),
        (Some(meant), _) => format!("did you mean `{meant}`?"),
        (None, _) if let Some(instead) = instead => format!("remove it: {instead}"),
        (None, _) => format!("remove it; the keys here are {}", keys::words(&keys::children(&key))),
    };
    ConfigError::UnknownKey { key, origin, suggestion, advice }
}

#[cfg(test)]
mod tests;
