//! A recorded file: a head that explains it, and a line `name = value` for each entry.
//!
//! Law: an entry that is missing, one too many and one of another value fail alike, and all of them are
//! named. A file is written where somebody asks for it, and never otherwise.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The variable that asks for it.
const VARIABLE: &str = "WARPWEFT_RECORD_ORACLE";

/// So many differences are shown.
const SHOWN: usize = 20;

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    name: String,
    value: String,
}

impl Entry {
    pub(crate) fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }

    /// The same with a number of nanoseconds more.
    pub(crate) fn and(self, nanoseconds: impl std::fmt::Display) -> Self {
        Self { value: format!("{}, {nanoseconds} ns", self.value), ..self }
    }
}

/// Is the file to be written?
pub(crate) fn is_recording() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|value| value == "1")
}

/// A file beside this one.
pub(crate) struct Record {
    pub(crate) file: &'static str,
    pub(crate) head: &'static str,
}

impl Record {
    fn path(&self) -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "tests", "oracle", self.file].iter().collect()
    }

    fn entries(&self) -> Vec<Entry> {
        let text = std::fs::read_to_string(self.path()).unwrap_or_default();
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let entry = |line: &str| {
            let (name, value) = line.split_once(" = ").expect("a line `name = value`");
            Entry::new(name, value)
        };
        lines.map(entry).collect()
    }

    /// The value that was recorded under this name.
    pub(crate) fn recorded(&self, name: &str) -> Option<String> {
        self.entries().into_iter().find(|entry| entry.name == name).map(|entry| entry.value)
    }

    /// Holds today's entries against those that were recorded, or records them.
    pub(crate) fn hold(&self, today: &[Entry]) {
        if is_recording() {
            let lines = today.iter().map(|Entry { name, value }| format!("{name} = {value}\n"));
            let text: String = [self.head.to_owned(), "\n".to_owned()].into_iter().chain(lines).collect();
            std::fs::write(self.path(), text).unwrap();
        }
        let (before, after) = (by_name(&self.entries()), by_name(today));
        let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
        names.sort();
        names.dedup();
        names.retain(|name| before.get(*name) != after.get(*name));
        let text = |entries: &BTreeMap<String, String>, name: &String| {
            entries.get(name).map_or_else(|| "nothing".to_owned(), String::clone)
        };
        let lines = names.iter().take(SHOWN).map(|name| {
            format!("\n{name}\n  recorded {}\n  today    {}", text(&before, name), text(&after, name))
        });
        let shown: String = lines.collect();
        assert!(
            names.is_empty(),
            "{} of {} entries of {} differ; if that is what a change is for, record them anew by {VARIABLE}=1:{shown}",
            names.len(),
            before.len().max(after.len()),
            self.file,
        );
    }

    /// Holds the names of entries alone; every entry but the first, which tells of the machine, has one of
    /// these.
    pub(crate) fn hold_names<'a>(&self, names: impl Iterator<Item = &'a str>) {
        let recorded: Vec<String> = self.entries().into_iter().skip(1).map(|entry| entry.name).collect();
        assert_eq!(names.collect::<Vec<_>>(), recorded, "{}: what is recorded", self.file);
    }
}

fn by_name(entries: &[Entry]) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for Entry { name, value } in entries {
        assert!(found.insert(name.clone(), value.clone()).is_none(), "two entries are named `{name}`");
    }
    found
}
