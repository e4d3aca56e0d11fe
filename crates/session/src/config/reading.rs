//! Converts a value of TOML to a type.
//!
//! Law: what a file or a variable says becomes a type here and nowhere else, whatever the type. One deserializer over
//! one kind of value means that a user's build compiles every type for one of them. What serde refuses is kept in
//! parts, with the keys that lead to it; words are made of it by who knows the sources.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use toml::map::Iter;
use toml::{Table, Value};

/// Reads a table as a `T`.
pub(super) fn read<T: DeserializeOwned>(table: &Table) -> Result<T, Refusal> {
    T::deserialize(Entries::of(table))
}

/// Puts what `over` says in place of what `table` says, table by table; a list takes the place of another.
pub(super) fn lay_over(table: &mut Table, over: &Table) {
    for (key, value) in over {
        match (table.get_mut(key), value) {
            (Some(Value::Table(under)), Value::Table(over)) => lay_over(under, over),
            _ => drop(table.insert(key.clone(), value.clone())),
        }
    }
}

/// What a type does not take.
#[derive(Debug)]
pub(super) struct Refusal {
    /// The keys that lead to it, the innermost first.
    keys: Vec<String>,
    pub(super) wrong: Wrong,
}

/// What is wrong with a value.
#[derive(Debug)]
pub(super) enum Wrong {
    /// It is text where none is taken.
    Text(String),
    /// It is another kind of value, or out of range: what it is, in words.
    Found(String),
    /// It is none of the words.
    Word(String),
    /// A key of it is missing.
    Missing(&'static str),
    /// A key of it is unknown.
    Unknown(String),
    /// Its type says why.
    Other(String),
}

impl Refusal {
    /// The key at fault.
    pub(super) fn key(&self) -> String {
        let mut keys: Vec<&str> = self.keys.iter().rev().map(String::as_str).collect();
        match &self.wrong {
            Wrong::Missing(field) => keys.push(field),
            Wrong::Unknown(field) => keys.push(field),
            _ => {}
        }
        keys.join(".")
    }

    #[cold]
    fn at(mut self, key: impl ToString) -> Self {
        self.keys.push(key.to_string());
        self
    }

    fn new(wrong: Wrong) -> Self {
        Self { keys: Vec::new(), wrong }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` {}", self.key(), self.wrong)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "is the text {text:?}"),
            Self::Found(found) => write!(f, "is {found}"),
            Self::Word(word) => write!(f, "is {word:?}"),
            Self::Missing(_) => f.write_str("is missing"),
            Self::Unknown(_) => f.write_str("is unknown"),
            Self::Other(reason) => write!(f, "is not understood: {reason}"),
        }
    }
}

impl std::error::Error for Refusal {}

/// A value as a person would name it.
fn found(value: Unexpected<'_>) -> String {
    match value {
        Unexpected::Str(text) => format!("the text {text:?}"),
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(value) => value.to_string(),
        Unexpected::Signed(value) => value.to_string(),
        Unexpected::Float(value) => format!("{value:?}"),
        Unexpected::Map => "a table".to_owned(),
        Unexpected::Seq => "a list".to_owned(),
        other => other.to_string(),
    }
}

impl de::Error for Refusal {
    fn custom<T: fmt::Display>(reason: T) -> Self {
        Self::new(Wrong::Other(reason.to_string()))
    }

    fn invalid_type(value: Unexpected<'_>, _: &dyn Expected) -> Self {
        Self::new(match value {
            Unexpected::Str(text) => Wrong::Text(text.to_owned()),
            value => Wrong::Found(found(value)),
        })
    }

    fn invalid_value(value: Unexpected<'_>, _: &dyn Expected) -> Self {
        Self::new(Wrong::Found(found(value)))
    }

    fn unknown_variant(word: &str, _: &'static [&'static str]) -> Self {
        Self::new(Wrong::Word(word.to_owned()))
    }

    fn unknown_field(field: &str, _: &'static [&'static str]) -> Self {
        Self::new(Wrong::Unknown(field.to_owned()))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(Wrong::Missing(field))
    }
}

/// What a type says of a value of another kind than it takes.
#[cold]
fn unfit(value: &Value) -> Refusal {
    Refusal::new(match value {
        Value::String(text) => Wrong::Text(text.clone()),
        Value::Integer(number) => Wrong::Found(number.to_string()),
        Value::Float(number) => Wrong::Found(format!("{number:?}")),
        Value::Boolean(value) => Wrong::Found(value.to_string()),
        Value::Datetime(date) => Wrong::Found(format!("the date {date}")),
        Value::Array(_) => Wrong::Found("a list".to_owned()),
        Value::Table(_) => Wrong::Found("a table".to_owned()),
    })
}

/// One value. What a type requests decides which kinds of value it accepts, so that no more is compiled for it.
struct Given<'v>(&'v Value);

/// Methods that all do the same.
macro_rules! deserialize {
    ($how:ident: $($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
            self.$how(visitor)
        }
    )*};
}

impl Given<'_> {
    fn scalar<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.0 {
            Value::String(text) => visitor.visit_str(text),
            Value::Integer(number) => visitor.visit_i64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Boolean(value) => visitor.visit_bool(*value),
            other => Err(unfit(other)),
        }
    }

    fn list<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.0 {
            Value::Array(items) => visitor.visit_seq(Items(items.iter().enumerate())),
            other => Err(unfit(other)),
        }
    }

    fn table<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.0 {
            Value::Table(table) => visitor.visit_map(Entries::of(table)),
            other => Err(unfit(other)),
        }
    }
}

impl<'de> Deserializer<'de> for Given<'_> {
    type Error = Refusal;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        match self.0 {
            Value::Array(_) => self.list(visitor),
            Value::Table(_) => self.table(visitor),
            _ => self.scalar(visitor),
        }
    }

    deserialize! { scalar:
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128 deserialize_f32
        deserialize_f64 deserialize_char deserialize_str deserialize_string deserialize_identifier
    }
    deserialize! { list: deserialize_seq }
    deserialize! { table: deserialize_map }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Refusal> {
        self.list(visitor)
    }

    /// A list is no table, though serde would take its items for the fields in their order.
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        self.table(visitor)
    }

    /// TOML has no null: what stands there is there.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        visitor.visit_newtype_struct(self)
    }

    /// All choices of ours are words.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refusal> {
        match self.0 {
            Value::String(word) => visitor.visit_enum(word.as_str().into_deserializer()),
            other => Err(unfit(other)),
        }
    }

    forward_to_deserialize_any! { bytes byte_buf unit unit_struct tuple_struct ignored_any }
}

/// The items of a list that are still to come, with their numbers.
struct Items<'v>(std::iter::Enumerate<std::slice::Iter<'v, Value>>);

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Refusal;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Refusal> {
        let Some((number, item)) = self.0.next() else { return Ok(None) };
        seed.deserialize(Given(item)).map(Some).map_err(|refusal| refusal.at(number))
    }
}

/// The entries of a table that are still to come, and the one whose value is.
struct Entries<'v> {
    rest: Iter<'v, String, Value>,
    open: Option<(&'v str, &'v Value)>,
}

impl<'v> Entries<'v> {
    fn of(table: &'v Table) -> Self {
        Self { rest: table.iter(), open: None }
    }
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Refusal;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Refusal> {
        self.open = self.rest.next().map(|(key, value)| (key.as_str(), value));
        self.open.map(|(key, _)| seed.deserialize(StrDeserializer::new(key))).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refusal> {
        let Some((key, value)) = self.open.take() else {
            return Err(de::Error::custom("a value was requested before its key"));
        };
        seed.deserialize(Given(value)).map_err(|refusal| refusal.at(key))
    }
}

impl<'de> Deserializer<'de> for Entries<'_> {
    type Error = Refusal;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refusal> {
        visitor.visit_map(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any option newtype_struct enum
    }
}
