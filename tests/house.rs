//! ARCHITECTURE.md against the sources: a module imports only from a lower row, and every law is listed
//! there, stated in one room, and cited in the test that guards it. No comment is wider than a screen, and the
//! front page has the crate's own first program.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The row of every module, read off the table.
fn rows() -> BTreeMap<String, usize> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = text.split("\n## Rooms\n").nth(1).expect("a section about rooms");
    let table = table.split("\n## ").next().unwrap();
    let mut rows = BTreeMap::new();
    for line in table.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let Some(row) = cells.get(1).and_then(|cell| cell.parse::<usize>().ok()) else { continue };
        for module in cells[2].split('`').skip(1).step_by(2) {
            assert!(rows.insert(module.to_owned(), row).is_none(), "`{module}` stands in the table twice");
        }
    }
    rows
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file below a folder, but for what was built there.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if !path.join("CACHEDIR.TAG").exists() {
                sources(&path, found);
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The program, a crate of its own.
const PROGRAM: &str = "crates/cli";

/// The first part of a path inside of `src`, without its ending: the module a file belongs to. The program's files
/// belong to the program.
fn module(path: &Path) -> String {
    if path.starts_with(root().join(PROGRAM)) {
        return PROGRAM.to_owned();
    }
    let inside = path.strip_prefix(root().join("src")).unwrap();
    Path::new(inside.iter().next().unwrap()).file_stem().unwrap().to_string_lossy().into_owned()
}

/// The modules that the code of a file names behind `crate::`; comments and documentation may name any.
fn imports(text: &str) -> Vec<String> {
    assert!(!text.contains("crate::{"), "several modules behind one `crate::` are not read here");
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let name = |rest: &str| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
    code.flat_map(|line| line.split("crate::").skip(1).map(name)).collect()
}

#[test]
fn a_module_imports_only_from_a_lower_row() {
    let rows = rows();
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    let mut wrong = Vec::new();
    for file in files {
        let own = module(&file);
        if own == "lib" {
            continue;
        }
        let row = *rows.get(&own).unwrap_or_else(|| panic!("`{own}` stands in no row of ARCHITECTURE.md"));
        let text = std::fs::read_to_string(&file).unwrap();
        for import in imports(&text).into_iter().filter(|import| *import != own && !import.is_empty()) {
            match rows.get(&import) {
                Some(other) if *other < row => {}
                Some(other) => {
                    wrong.push(format!("{} (row {row}) imports `{import}` (row {other})", file.display()))
                }
                None => wrong.push(format!("{} imports `{import}`, which stands in no row", file.display())),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_row_has_modules_that_exist() {
    let rows = rows();
    assert!(rows.len() > 15, "{rows:?}");
    for module in rows.keys() {
        let src = root().join("src");
        assert!(
            src.join(module).is_dir() || src.join(format!("{module}.rs")).is_file(),
            "`{module}` is not there"
        );
    }
}

/// Laws that no test of this repository can break on a machine without a GPU, or at all, and why.
const NOT_CITED: [(&str, &str); 4] = [
    (
        "FL-1",
        "by the types: `Point::behind` is private to `flow`, which a `compile_fail` example of `Point` shows",
    ),
    ("SK-2", "only on GPUs: how `bench stack` takes times"),
    ("SK-3", "only on GPUs: what `bench stack` prints beside its times"),
    ("SK-4", "only on GPUs: a variant of `bench stack` that cannot run"),
];

/// Laws that several rooms keep together. Any other label stated in two rooms would be two laws of one name.
const OF_SEVERAL_ROOMS: [&str; 7] = ["AC-2", "CO-1", "EX-1", "PL-1", "PL-3", "PL-7", "PL-9"];

/// A law's label, such as `PL-10`: two letters and a number, so that `PL-10` comes behind `PL-9`.
type Label = (String, u32);

fn label(text: &str) -> Label {
    let (letters, number) = text.split_once('-').unwrap();
    (letters.to_owned(), number.parse().unwrap())
}

/// The labels in a text: two capitals, a dash, a number, no letter or digit around. `FO-1…4` names four.
fn labels(text: &str) -> BTreeSet<Label> {
    let mut found = BTreeSet::new();
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '…');
    for word in words {
        let (word, last) =
            word.split_once('…').map_or((word, None), |(word, last)| (word, last.parse().ok()));
        let Some((letters, number)) = word.split_once('-') else { continue };
        let Ok(first) = number.parse::<u32>() else { continue };
        if letters.len() == 2 && letters.bytes().all(|byte| byte.is_ascii_uppercase()) {
            found.extend((first..=last.unwrap_or(first)).map(|number| (letters.to_owned(), number)));
        }
    }
    found
}

/// The labels that names of tests begin with: `fn tr1_intervals…` cites TR-1.
fn labels_of_names(text: &str) -> BTreeSet<Label> {
    let names = text.split("fn ").skip(1).filter_map(|rest| rest.split('_').next());
    let label = |name: &str| {
        let (letters, number) = name.split_at_checked(2)?;
        let is_label = letters.bytes().all(|byte| byte.is_ascii_lowercase());
        is_label.then_some((letters.to_uppercase(), number.parse().ok()?))
    };
    names.filter_map(label).collect()
}

/// The laws that a line of a module's head states: in bold, behind `Law`, or as what the head begins with.
fn stated(line: &str) -> BTreeSet<Label> {
    let mut found: BTreeSet<Label> =
        line.split("**").skip(1).step_by(2).filter(|bold| !bold.contains(' ')).flat_map(labels).collect();
    let begins_with_labels = line.split(':').next().filter(|title| {
        let words = || title.split([' ', ',']).filter(|word| !word.is_empty());
        words().next().is_some_and(|word| !labels(word).is_empty())
    });
    let law = line.trim_start().strip_prefix("Law").and_then(|rest| rest.split(':').next());
    found.extend(begins_with_labels.into_iter().chain(law).flat_map(labels));
    found
}

/// Sources in two parts: without their tests, and their tests.
fn split_off_tests(path: &Path) -> (String, String) {
    let text = std::fs::read_to_string(path).unwrap();
    if path.file_stem().is_some_and(|name| name == "tests") {
        return (String::new(), text);
    }
    let begin = text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    let (code, tests) = text.split_at(begin);
    (code.to_owned(), tests.to_owned())
}

struct Laws {
    /// Label by label, the rooms whose modules state it.
    stated: BTreeMap<Label, BTreeSet<String>>,
    /// What tests cite: by label, or by a name that begins with it.
    cited: BTreeSet<Label>,
    /// Every label that stands anywhere in a test.
    named: BTreeSet<Label>,
}

fn laws() -> Laws {
    let mut laws = Laws { stated: BTreeMap::new(), cited: BTreeSet::new(), named: BTreeSet::new() };
    let (mut files, mut tests) = (Vec::new(), Vec::new());
    for folder in [root(), root().join(PROGRAM)] {
        sources(&folder.join("src"), &mut files);
        sources(&folder.join("tests"), &mut tests);
    }
    for file in files {
        let (code, own) = split_off_tests(&file);
        for label in code.lines().filter_map(|line| line.strip_prefix("//!")).flat_map(stated) {
            laws.stated.entry(label).or_default().insert(module(&file));
        }
        laws.named.extend(labels(&own));
        laws.cited.extend(labels_of_names(&own));
    }
    for file in tests.into_iter().filter(|file| !file.ends_with(file!())) {
        let text = std::fs::read_to_string(&file).unwrap();
        laws.named.extend(labels(&text));
        laws.cited.extend(labels_of_names(&text));
    }
    laws.cited.extend(laws.named.iter().cloned());
    laws
}

#[test]
fn every_law_is_cited_in_a_test_or_excused_with_a_reason() {
    let laws = laws();
    assert!(laws.stated.len() > 80, "{:?}", laws.stated);
    let excused: BTreeSet<Label> = NOT_CITED.iter().map(|(law, _)| label(law)).collect();
    let uncited: BTreeSet<Label> =
        laws.stated.keys().filter(|law| !laws.cited.contains(*law)).cloned().collect();
    assert_eq!(uncited, excused, "left: stated in `src` and cited in no test; right: excused here");
}

#[test]
fn a_test_cites_only_laws_that_are_stated() {
    let laws = laws();
    let unknown: Vec<_> = laws.named.iter().filter(|law| !laws.stated.contains_key(*law)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn a_label_names_one_law() {
    let several: BTreeSet<Label> = OF_SEVERAL_ROOMS.into_iter().map(label).collect();
    let stated = laws().stated.into_iter().filter(|(_, rooms)| rooms.len() > 1);
    let found: BTreeMap<Label, BTreeSet<String>> = stated.collect();
    assert_eq!(found.keys().cloned().collect::<BTreeSet<_>>(), several, "{found:?}");
}

#[test]
fn architecture_lists_every_law_and_no_other() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = text.split("\n## Laws\n").nth(1).expect("a section about laws");
    let listed = labels(section.split("\n## ").next().unwrap());
    assert_eq!(listed, laws().stated.into_keys().collect(), "left: listed; right: stated in `src`");
}

/// As `rustfmt.toml` has it for code, and a word more. Tables have rows, `--help` texts lines of their own.
#[test]
fn no_comment_is_wider_than_a_screen() {
    const COLUMNS: usize = 120;
    let mut files = Vec::new();
    for folder in ["src", "crates", "tests", "examples", "benches"] {
        sources(&root().join(folder), &mut files);
    }
    let mut wide = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        if text.contains("command(verbatim_doc_comment") {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let is_prose = line.trim_start().starts_with("//") && !line.contains("| ");
            if is_prose && line.chars().count() > COLUMNS {
                wide.push(format!("{}:{}", file.display(), number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "wrap these at 110 columns:\n{}", wide.join("\n"));
}

/// What a function gives is its name.
#[test]
fn no_name_of_a_function_begins_with_get() {
    let mut files = Vec::new();
    ["src", "crates", "tests", "examples", "benches"]
        .iter()
        .for_each(|folder| sources(&root().join(folder), &mut files));
    let has_one = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap();
        text.contains(concat!("fn ", "get_"))
    };
    let found: Vec<_> = files.iter().filter(|file| has_one(file)).collect();
    assert!(found.is_empty(), "{found:?}");
}

/// The front page and the crate's own show one program; both are compiled and run by `cargo test --doc`.
#[test]
fn the_smallest_trainer_is_the_same_in_the_readme_and_in_the_crate() {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).unwrap();
    let code = |text: &str, begin: &str| {
        let code = text.split(begin).nth(1).expect("a program").split("```").next().unwrap();
        code.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
    };
    let library: Vec<String> = read("src/lib.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("//!"))
        .map(|line| line.strip_prefix(' ').unwrap_or(line).to_owned())
        .collect();
    let own = code(&library.join("\n"), "```\n");
    assert!(own.contains("Session::builder"), "{own}");
    assert_eq!(code(&read("README.md"), "```rust\n"), own);
}
