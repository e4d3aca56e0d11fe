//! Files that declare something other than a configuration: a cluster, a model by its sizes.
//!
//! Law: as for a configuration, CF-1 and CF-2. A file is a list of [`Rule`]s filled in; every value is
//! checked against its rule before any is used, an unknown key is an error with the key that was meant, and
//! every error names file, line and key. In the key of a rule `#` stands for the number of an item of a list,
//! from 0. There are no environment overrides: such a file describes a thing, not a run.

use std::path::Path;

use serde::de::DeserializeOwned;
use toml::Value;

use super::ConfigError;
use super::Origin;
use super::document::Document;
use super::reading::{Refusal, read};
use super::shown::shown;
use super::speed::Speed;
use super::suggest::closest;
use warpweft_base::whole_file::regular;

/// Largest number that an item of a list may be repeated for.
const MOST_NUMBERED: u64 = 65_535;

/// The type of a key's value.
#[derive(Clone, Copy, Debug)]
pub enum Takes {
    /// A whole number in a range, both ends included.
    Count(u64, u64),
    /// A number in a range, both ends included.
    Between(f64, f64),
    /// Something per second.
    Speed(Speed),
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
    /// A list of texts, none of them empty.
    Names,
    /// The first and the last of some whole numbers.
    FirstAndLast,
    /// A list of tables, whose keys have rules of their own.
    Tables,
}

/// One key of a declaring file.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The key, dotted; `#` is the number of any item of a list.
    pub key: &'static str,
    /// What it takes.
    pub takes: Takes,
    /// Must the file have it? `Some` names the table it is needed in: a table that is left out as a whole
    /// needs none of its keys. The empty name is the file, `list.#` every item there is.
    pub needed_in: Option<&'static str>,
}

/// The keys of a file that declares a `Self`, and what each takes.
pub trait Rules {
    /// All keys there are.
    const RULES: &'static [Rule];

    /// What no rule says because it is about several keys: the key at fault, what is wrong with it, and what
    /// it takes.
    fn disagreement(&self) -> Option<(&'static str, String, String)> {
        None
    }
}

/// A value that a TOML file declares: a [`Cluster`](crate::cluster::Cluster), a
/// [`Decoder`](warpweft_plan::model::Decoder), a [`CallList`](super::CallList).
pub trait Declared: Sized {
    /// Reads a text; `source_name` is what errors call it.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`], [`ConfigError::UnknownKey`], [`ConfigError::Invalid`].
    fn from_toml(text: &str, source_name: &str) -> Result<Self, ConfigError>;

    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError::Read`], and what [`Declared::from_toml`] refuses.
    fn load(path: &Path) -> Result<Self, ConfigError> {
        let text =
            regular::text(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::from_toml(&text, &path.display().to_string())
    }
}

impl<T: Rules + DeserializeOwned> Declared for T {
    fn from_toml(text: &str, source_name: &str) -> Result<Self, ConfigError> {
        let document = Document::parse(source_name, text)?;
        // Before their keys, which seem unknown where a list is written as one table.
        for rule in Self::RULES.iter().filter(|rule| matches!(rule.takes, Takes::Tables)) {
            check(&Rule { needed_in: None, ..*rule }, &document)?;
        }
        if let Some(key) =
            document.leaves().into_iter().find(|leaf| !Self::RULES.iter().any(|rule| is_like(rule.key, leaf)))
        {
            return Err(unknown(key, &document, Self::RULES));
        }
        for rule in Self::RULES {
            check(rule, &document)?;
        }
        let declared: Self =
            read(&document.table).map_err(|refusal| refused(&refusal, &document, Self::RULES))?;
        agreeing(declared, |key| document.origin_near(key))
    }
}

/// What is declared, if its keys go together; `origin` says where the value of one came from.
pub(crate) fn agreeing<T: Rules>(declared: T, origin: impl FnOnce(&str) -> Origin) -> Result<T, ConfigError> {
    match declared.disagreement() {
        None => Ok(declared),
        Some((key, problem, expected)) => {
            Err(ConfigError::Invalid { origin: origin(key), key: key.to_owned(), problem, expected })
        }
    }
}

/// Does `#` of a rule's key stand for the numbers of a leaf's, and is the rest the same?
fn is_like(rule: &str, leaf: &str) -> bool {
    let same = |(one, other): (&str, &str)| one == other || (one == "#" && other.parse::<usize>().is_ok());
    rule.split('.').count() == leaf.split('.').count() && rule.split('.').zip(leaf.split('.')).all(same)
}

fn unknown(key: String, document: &Document, rules: &[Rule]) -> ConfigError {
    // Items of lists are compared, and named, with the numbers of the key that is to be replaced.
    let candidates: Vec<String> = rules.iter().map(|rule| with_numbers_of(&key, rule.key)).collect();
    let suggestion = closest(&key, candidates.iter().map(String::as_str)).map(str::to_owned);
    let advice = match &suggestion {
        Some(meant) => format!("did you mean `{meant}`?"),
        None => {
            let keys: Vec<String> = rules.iter().map(|rule| format!("`{}`", rule.key)).collect();
            format!("remove it; the keys are {}", keys.join(", "))
        }
    };
    ConfigError::UnknownKey { origin: document.origin_near(&key), key, suggestion, advice }
}

/// What a type refuses though the rule of its key admits it.
fn refused(refusal: &Refusal, document: &Document, rules: &[Rule]) -> ConfigError {
    let key = refusal.key();
    let rule = rules.iter().find(|rule| is_like(rule.key, &key));
    ConfigError::Invalid {
        origin: document.origin_near(&key),
        problem: refusal.wrong.to_string(),
        expected: rule
            .map_or_else(|| "another value".to_owned(), |rule| rule.takes.words(find(document, &key))),
        key,
    }
}

/// A rule's key with the numbers of a leaf's in place of its `#`.
fn with_numbers_of(leaf: &str, rule: &str) -> String {
    let mut numbers = leaf.split('.').filter(|part| part.parse::<usize>().is_ok());
    let parts = rule.split('.').map(|part| if part == "#" { numbers.next().unwrap_or("0") } else { part });
    parts.collect::<Vec<_>>().join(".")
}

fn check(rule: &Rule, document: &Document) -> Result<(), ConfigError> {
    keys_of(document, rule.key).into_iter().try_for_each(|key| check_one(rule, key, document))
}

fn check_one(rule: &Rule, key: String, document: &Document) -> Result<(), ConfigError> {
    let is_needed = rule
        .needed_in
        .is_some_and(|table| table.is_empty() || table.contains('#') || find(document, table).is_some());
    let found = find(document, &key);
    let problem = match found {
        Some(value) if rule.takes.admits(value) => return Ok(()),
        Some(Value::Table(_)) => "is a table".to_owned(),
        Some(value) => format!("is {}", shown(value)),
        None if is_needed => "is missing".to_owned(),
        None => return Ok(()),
    };
    Err(ConfigError::Invalid {
        origin: document.origin_near(&key),
        key,
        problem,
        expected: rule.takes.words(found),
    })
}

/// The key of a rule for every item that the document has: one key for a rule without `#`.
fn keys_of(document: &Document, key: &str) -> Vec<String> {
    let Some((list, rest)) = key.split_once(".#") else { return vec![key.to_owned()] };
    let items = find(document, list).and_then(Value::as_array).map_or(0, Vec::len);
    (0..items).flat_map(|item| keys_of(document, &format!("{list}.{item}{rest}"))).collect()
}

fn find<'a>(document: &'a Document, key: &str) -> Option<&'a Value> {
    let mut parts = key.split('.');
    let first = document.table.get(parts.next()?)?;
    parts.try_fold(first, |value, part| match value {
        Value::Array(items) => items.get(part.parse::<usize>().ok()?),
        _ => value.get(part),
    })
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(whole) => Some(*whole as f64),
        Value::Float(number) => Some(*number),
        _ => None,
    }
}

impl Takes {
    fn admits(self, value: &Value) -> bool {
        let number = number(value).filter(|number| number.is_finite());
        match self {
            Self::Count(least, most) => value
                .as_integer()
                .and_then(|whole| u64::try_from(whole).ok())
                .is_some_and(|whole| (least..=most).contains(&whole)),
            Self::Between(least, most) => number.is_some_and(|number| (least..=most).contains(&number)),
            Self::Speed(speed) => number.is_some_and(|number| speed.admits(number)),
            Self::Share => number.is_some_and(|number| (0.0..=1.0).contains(&number)),
            Self::Switch => value.is_bool(),
            Self::Text => value.as_str().is_some_and(|text| !text.is_empty()),
            Self::OneOf(words) => value.as_str().is_some_and(|text| words.contains(&text)),
            Self::Format => value
                .as_str()
                .and_then(|name| name.parse::<warpweft_format::Format>().ok())
                .is_some_and(|format| format.check_weight().is_ok()),
            Self::Names => value.as_array().is_some_and(|names| {
                names.iter().all(|name| name.as_str().is_some_and(|name| !name.is_empty()))
            }),
            Self::FirstAndLast => value.as_array().is_some_and(|ends| {
                ends.len() == 2 && ends.iter().all(|end| Self::Count(0, MOST_NUMBERED).admits(end))
            }),
            Self::Tables => value.as_array().is_some_and(|items| items.iter().all(Value::is_table)),
        }
    }

    fn words(self, found: Option<&Value>) -> String {
        match self {
            Self::Count(least, most) => format!("a whole number from {least} to {most}"),
            Self::Between(least, most) => format!("a number from {least} to {most:e}"),
            Self::Speed(speed) => speed.words(found.and_then(number)),
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
            Self::Names => "a list of names, such as [\"x\", \"y\"]".to_owned(),
            Self::FirstAndLast => format!("two whole numbers from 0 to {MOST_NUMBERED}, such as [0, 31]"),
            Self::Tables => {
                "a list of tables, each under its own [[heading]], in two brackets, or in braces".to_owned()
            }
        }
    }
}
