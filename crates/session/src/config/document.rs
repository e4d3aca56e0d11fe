//! A TOML text with the line of every key.
//!
//! The text is parsed twice: for its values, and for the places of its keys. Paths are dotted, list
//! items numbered from 0: `weights.1.match`. A name that is no bare TOML key is quoted in its path,
//! so a path is never taken for a key it only resembles.

use std::collections::BTreeMap;

use toml::de::{DeTable, DeValue};
use toml::{Spanned, Table, Value};

use super::error::ConfigError;
use super::origin::Origin;

/// A parsed file.
#[derive(Clone, Debug)]
pub(super) struct Document {
    name: String,
    pub(super) table: Table,
    lines: BTreeMap<String, usize>,
}

impl Document {
    /// Parses a text; `name` is what errors call it.
    pub(super) fn parse(name: &str, text: &str) -> Result<Self, ConfigError> {
        let refused = |error: toml::de::Error| {
            let message = error.message().trim_end().replace('\n', ", ");
            syntax(name, text, error.span().map_or(0, |span| span.start), message)
        };
        let table = text.parse::<Table>().map_err(refused)?;
        let places = DeTable::parse(text).map_err(refused)?;
        let ends: Vec<usize> = text.match_indices('\n').map(|(offset, _)| offset).collect();
        let mut lines = BTreeMap::new();
        add_lines("", places.get_ref(), &ends, &mut lines).map_err(|date| {
            let message = "no key takes a date or time, write text in quotes".to_owned();
            syntax(name, text, date, message)
        })?;
        Ok(Self { name: name.to_owned(), table, lines })
    }

    /// Where a key stands, if the file has it.
    pub(super) fn origin(&self, path: &str) -> Option<Origin> {
        let line = self.lines.get(path).copied();
        line.map(|line| Origin::File { name: self.name.clone(), line: Some(line) })
    }

    /// Where a key stands, or else the nearest table around it.
    pub(super) fn origin_near(&self, path: &str) -> Origin {
        let mut path = path;
        loop {
            match (self.origin(path), path.rsplit_once('.')) {
                (Some(origin), _) => return origin,
                (None, Some((parent, _))) => path = parent,
                (None, None) => return Origin::File { name: self.name.clone(), line: None },
            }
        }
    }

    /// All values and empty tables, in the order of the file.
    pub(super) fn leaves(&self) -> Vec<String> {
        let mut leaves = leaves(&self.table);
        leaves.sort_by_key(|path| self.lines.get(path).copied());
        leaves
    }
}

/// The paths of all values and empty tables.
pub(super) fn leaves(table: &Table) -> Vec<String> {
    fn walk(path: &str, value: &Value, into: &mut Vec<String>) {
        match value {
            Value::Table(table) if !table.is_empty() => {
                table.iter().for_each(|(key, value)| walk(&below(path, key), value, into));
            }
            Value::Array(list) if list.iter().any(Value::is_table) => {
                let items = list.iter().enumerate();
                items.for_each(|(number, item)| walk(&below(path, &number.to_string()), item, into));
            }
            _ => into.push(path.to_owned()),
        }
    }
    let mut paths = Vec::new();
    table.iter().for_each(|(key, value)| walk(&below("", key), value, &mut paths));
    paths
}

/// The path of a key in a table.
pub(super) fn below(table: &str, key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let quoted = key.is_empty() || !key.chars().all(bare);
    let key = if quoted { format!("{key:?}") } else { key.to_owned() };
    if table.is_empty() { key } else { format!("{table}.{key}") }
}

/// What is refused at a byte of `text`, which errors call `name`.
fn syntax(name: &str, text: &str, offset: usize, message: String) -> ConfigError {
    let (line, column) = position(text, offset);
    ConfigError::Syntax { file: name.to_owned(), line, column, message }
}

/// Line and column of a byte, both from 1.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

/// Adds the line of every key of `table`, which stands at `path`; `ends` are the offsets at which lines end. A date,
/// which no key takes, ends it, with its offset.
fn add_lines(
    path: &str,
    table: &DeTable<'_>,
    ends: &[usize],
    lines: &mut BTreeMap<String, usize>,
) -> Result<(), usize> {
    for (key, value) in table {
        let path = below(path, key.get_ref());
        add_lines_within(&path, value, ends, lines)?;
        lines.insert(path, line(key.span().start, ends));
    }
    Ok(())
}

fn add_lines_within(
    path: &str,
    value: &Spanned<DeValue<'_>>,
    ends: &[usize],
    lines: &mut BTreeMap<String, usize>,
) -> Result<(), usize> {
    match value.get_ref() {
        DeValue::Table(table) => return add_lines(path, table, ends, lines),
        DeValue::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                let path = below(path, &number.to_string());
                add_lines_within(&path, item, ends, lines)?;
                // An item has no key of its own: it stands where its first key does.
                if let DeValue::Table(table) = item.get_ref() {
                    let first = table.keys().map(|key| key.span().start).min();
                    lines.extend(first.map(|start| (path, line(start, ends))));
                }
            }
        }
        DeValue::Datetime(_) => return Err(value.span().start),
        _ => {}
    }
    Ok(())
}

/// The line of a byte, from 1.
fn line(offset: usize, ends: &[usize]) -> usize {
    ends.partition_point(|end| *end < offset) + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn line(text: &str, path: &str) -> Option<usize> {
        Document::parse("x.toml", text).unwrap().lines.get(path).copied()
    }

    #[test]
    fn every_spelling_of_a_key_has_its_line() {
        let text = "a.b = 1\n[c.d]\n\ne = { f = 2, g.h = 3 }\n[[w]]\nm = 'x'\n[[w]]\nm = 'y'\n\"q.r\" = 4\n";
        let expected = [("a.b", 1), ("c", 2), ("c.d.e.g.h", 4), ("w.0.m", 6), ("w.1.m", 8)];
        for (path, number) in expected {
            assert_eq!(line(text, path), Some(number), "{path}");
        }
        assert_eq!(line(text, "w.1.\"q.r\""), Some(9));
        assert_eq!(line(text, "w.1.q.r"), None);
    }

    #[test]
    fn malformed_toml_has_file_line_and_column() {
        for (text, place) in [
            ("a = 1\nb = \n", "x.toml:2:5"),
            ("a = 1\n[b\n", "x.toml:2:3"),
            ("ä = 1", "x.toml:1:1"),
            ("a = 1\na = 2", "x.toml:2:1"),
            ("check = true\nd = 1979-05-27", "x.toml:2:5"),
        ] {
            let error = Document::parse("x.toml", text).err().unwrap().to_string();
            assert!(error.starts_with(&format!("{place}: ")), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_leaf_of_any_document_has_a_line(
            text in "(([a-c]|\"[. ]\")(\\.[a-c])? ?= ?(1|\\[[{]a=1[}]\\])\n){0,4}",
        ) {
            if let Ok(document) = Document::parse("x", &text) {
                for path in document.leaves() {
                    prop_assert!(document.lines.contains_key(&path), "{} of {:?}", path, text);
                }
            }
        }

        #[test]
        fn arbitrary_text_never_panics(text in "(?s).{0,60}") {
            let _ = Document::parse("x", &text);
        }
    }
}
