//! Files that declare something other than a configuration: a cluster, a model by its sizes.
//!
//! Law: as for a configuration, CF-1 and CF-2. A file is a list of [`Rule`]s filled in; every value is checked
//! against its rule before any is used, an unknown key is an error with the key that was meant, and every
//! error names file, line and key. There are no environment overrides: such a file describes a thing, not a run.

use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Value;

use super::ConfigError;
use super::document::Document;
use super::suggest::closest;

/// What a key takes.
#[derive(Clone, Copy, Debug)]
pub enum Takes {
    /// A whole number in a range, both ends included.
    Count(u64, u64),
    /// A finite number above 0.
    Positive,
    /// A finite number from 0 on.
    FromZero,
    /// A finite number from 1 on.
    FromOne,
    /// A number from 0 to 1.
    Share,
    /// Text that is not empty.
    Text,
    /// `true` or `false`.
    Switch,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// The name of a format for weights.
    Format,
}

/// One key of a declaring file.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The key, dotted.
    pub key: &'static str,
    /// What it takes.
    pub takes: Takes,
    /// Must the file have it? `Some` names the table it is needed in: a table that is left out as a whole
    /// needs none of its keys. The empty name is the file.
    pub needed_in: Option<&'static str>,
}

/// A file that declares a `Self`.
pub trait Declared: DeserializeOwned {
    /// All keys there are.
    const RULES: &'static [Rule];

    /// What no rule says because it is about several keys: the key at fault, what is wrong with it, and what it takes.
    fn disagreement(&self) -> Option<(&'static str, String, String)> {
        None
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError::Read`], and what [`Declared::from_toml`] refuses.
    fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::from_toml(&text, &path.display().to_string())
    }

    /// Reads a text; `source_name` is what errors call it.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`], [`ConfigError::UnknownKey`], [`ConfigError::Invalid`].
    fn from_toml(text: &str, source_name: &str) -> Result<Self, ConfigError> {
        let document = Document::parse(source_name, text)?;
        if let Some(key) =
            document.leaves().into_iter().find(|leaf| !Self::RULES.iter().any(|r| r.key == leaf))
        {
            return Err(unknown(key, &document, Self::RULES));
        }
        for rule in Self::RULES {
            check(rule, &document)?;
        }
        let read: Self =
            document.table.clone().try_into().map_err(|error: toml::de::Error| ConfigError::Syntax {
                file: source_name.to_owned(),
                line: 1,
                column: 1,
                message: error.message().to_owned(),
            })?;
        match read.disagreement() {
            None => Ok(read),
            Some((key, problem, expected)) => Err(ConfigError::Invalid {
                origin: document.origin_near(key),
                key: key.to_owned(),
                problem,
                expected,
            }),
        }
    }
}

fn unknown(key: String, document: &Document, rules: &[Rule]) -> ConfigError {
    let suggestion = closest(&key, rules.iter().map(|rule| rule.key)).map(str::to_owned);
    let advice = match &suggestion {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => {
            let keys: Vec<String> = rules.iter().map(|rule| format!("`{}`", rule.key)).collect();
            format!("remove it; the keys are {}", keys.join(", "))
        }
    };
    ConfigError::UnknownKey { origin: document.origin_near(&key), key, suggestion, advice }
}

fn check(rule: &Rule, document: &Document) -> Result<(), ConfigError> {
    let problem = match (find(document, rule.key), rule.needed_in) {
        (Some(value), _) if rule.takes.admits(value) => return Ok(()),
        (Some(value), _) => format!("is {value}"),
        (None, Some(table)) if table.is_empty() || find(document, table).is_some() => "is missing".to_owned(),
        (None, _) => return Ok(()),
    };
    Err(ConfigError::Invalid {
        key: rule.key.to_owned(),
        origin: document.origin_near(rule.key),
        problem,
        expected: rule.takes.words(),
    })
}

fn find<'a>(document: &'a Document, key: &str) -> Option<&'a Value> {
    let mut parts = key.split('.');
    let first = document.table.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}

impl Takes {
    fn admits(self, value: &Value) -> bool {
        let number = match value {
            Value::Integer(whole) => Some(*whole as f64),
            Value::Float(number) => Some(*number),
            _ => None,
        }
        .filter(|number| number.is_finite());
        match self {
            Self::Count(least, most) => value
                .as_integer()
                .and_then(|whole| u64::try_from(whole).ok())
                .is_some_and(|whole| (least..=most).contains(&whole)),
            Self::Positive => number.is_some_and(|number| number > 0.0),
            Self::FromZero => number.is_some_and(|number| number >= 0.0),
            Self::FromOne => number.is_some_and(|number| number >= 1.0),
            Self::Share => number.is_some_and(|number| (0.0..=1.0).contains(&number)),
            Self::Switch => value.is_bool(),
            Self::Text => value.as_str().is_some_and(|text| !text.is_empty()),
            Self::OneOf(words) => value.as_str().is_some_and(|text| words.contains(&text)),
            Self::Format => value
                .as_str()
                .and_then(|name| name.parse::<crate::format::Format>().ok())
                .is_some_and(|format| format.check_weight().is_ok()),
        }
    }

    fn words(self) -> String {
        match self {
            Self::Count(least, most) => format!("a whole number from {least} to {most}"),
            Self::Positive => "a finite number above 0".to_owned(),
            Self::FromZero => "a finite number from 0 on".to_owned(),
            Self::FromOne => "a finite number from 1 on".to_owned(),
            Self::Share => "a number from 0 to 1".to_owned(),
            Self::Switch => "`true` or `false`".to_owned(),
            Self::Text => "text that is not empty".to_owned(),
            Self::OneOf(words) => {
                format!("one of {}", words.iter().map(|w| format!("{w:?}")).collect::<Vec<_>>().join(", "))
            }
            Self::Format => {
                "a format for weights, such as \"bf16\" or \"nvfp4_2d\"; `warpweft formats` lists them"
                    .to_owned()
            }
        }
    }
}
