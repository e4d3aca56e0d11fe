//! Laws: listed in ARCHITECTURE.md, stated in one module, cited in the test that guards them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::sources::{CRATES, module, root, sources};

/// Laws that no test of this repository can break on a machine without a GPU, or at all, and why.
const NOT_CITED: [(&str, &str); 4] = [
    (
        "FL-1",
        "by the types: `Point::after` is private to `actor::issue`, which a `compile_fail` example of `Point` shows",
    ),
    ("SK-2", "only on GPUs: how `bench stack` takes times"),
    ("SK-3", "only on GPUs: what `bench stack` prints beside its times"),
    ("SK-4", "only on GPUs: a variant of `bench stack` that cannot run"),
];

/// Laws that several modules keep together. Any other label stated in two modules would be two laws of one name.
const OF_SEVERAL_MODULES: [&str; 7] = ["AC-2", "CO-1", "EX-1", "PL-1", "PL-3", "PL-7", "PL-9"];

/// A law's label, such as `PL-10`: two letters and a number, so that `PL-10` comes after `PL-9`.
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

/// The laws that a line of a module's head states: in bold, after `Law`, or as what the head begins with.
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

/// The module that a file belongs to: a crate, or a module of a crate that has several.
fn module_of(owner: &str, folder: &str, file: &Path) -> String {
    let own = module(folder, file);
    match owner {
        "session" | "base" | "plan" => own,
        _ if ["rendezvous", "linear"].contains(&own.as_str()) => own,
        // One law for every backend: the trait's crate and that of the GPUs state it together.
        "cuda" => "backend".to_owned(),
        _ => owner.to_owned(),
    }
}

struct Laws {
    /// Label by label, the modules whose modules state it.
    stated: BTreeMap<Label, BTreeSet<String>>,
    /// What tests cite: by label, or by a name that begins with it.
    cited: BTreeSet<Label>,
    /// Every label that stands anywhere in a test.
    named: BTreeSet<Label>,
}

fn laws() -> Laws {
    let mut laws = Laws { stated: BTreeMap::new(), cited: BTreeSet::new(), named: BTreeSet::new() };
    for (owner, folder) in CRATES {
        let mut files = Vec::new();
        sources(&root().join(folder), &mut files);
        for file in files {
            let (code, own) = split_off_tests(&file);
            for label in code.lines().filter_map(|line| line.strip_prefix("//!")).flat_map(stated) {
                laws.stated.entry(label).or_default().insert(module_of(owner, folder, &file));
            }
            laws.named.extend(labels(&own));
            laws.cited.extend(labels_of_names(&own));
        }
    }
    let mut tests = Vec::new();
    for folder in ["tests", "testing", "crates/cli/tests"] {
        sources(&root().join(folder), &mut tests);
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
    let several: BTreeSet<Label> = OF_SEVERAL_MODULES.into_iter().map(label).collect();
    let stated = laws().stated.into_iter().filter(|(_, modules)| modules.len() > 1);
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
