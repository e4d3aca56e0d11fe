//! The names that `warpweft` lists: few enough to be learned.
//!
//! Law: `src` is a list. It has no code, exports no module whole, and stays within its budget: a name that is added
//! takes the place of another, or the budget is raised here, on purpose.

use std::collections::BTreeSet;

use crate::sources::{root, sources};

/// The most names of the prelude.
const PRELUDE: usize = 35;

/// The most types, traits, functions and constants of all modules. With `bf16` and `f16`, which are another
/// crate's, they are 121.
const ALL: usize = 121;

/// A file of the library, without comments and documentation.
fn code(file: &str) -> String {
    let text = std::fs::read_to_string(root().join("src").join(file)).unwrap();
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// What the `pub use` of a file list, each by its whole path; what is marked as another's (`no_inline`) apart.
fn listed(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut before = "";
    for part in code.split("pub use ") {
        let of_another_crate = before.trim_end().ends_with("#[doc(no_inline)]");
        let (list, rest) = if before.is_empty() { ("", part) } else { part.split_once(';').unwrap() };
        if !of_another_crate && !list.is_empty() {
            let (path, names) = list.split_once('{').unwrap_or_else(|| list.rsplit_once("::").unwrap());
            let names = names.trim_end_matches('}').split(',').map(str::trim).filter(|name| !name.is_empty());
            found.extend(names.map(|name| format!("{}::{name}", path.trim_end_matches("::"))));
        }
        before = rest;
    }
    found
}

#[test]
fn the_prelude_has_few_names() {
    let names = listed(&code("prelude.rs"));
    assert!(names.len() <= PRELUDE, "{} names, {PRELUDE} at most: {names:#?}", names.len());
    assert!(names.len() > 20, "the list is read: {names:?}");
}

#[test]
fn all_names_that_a_user_finds_are_within_their_budget() {
    let names = listed(&code("lib.rs"));
    let distinct: BTreeSet<_> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "a name is listed twice");
    assert!(names.len() <= ALL, "{} names, {ALL} at most: {names:#?}", names.len());
    assert!(names.len() > 80, "the list is read: {names:?}");
    let whole: Vec<_> = names.iter().filter(|name| name.ends_with('*')).collect();
    assert!(whole.is_empty(), "{whole:?}");
}

#[test]
fn the_prelude_lists_nothing_that_no_module_lists() {
    let leaf = |path: &String| path.rsplit("::").next().unwrap().to_owned();
    let all: BTreeSet<_> = listed(&code("lib.rs")).iter().map(leaf).collect();
    for name in listed(&code("prelude.rs")) {
        let name = leaf(&name);
        assert!(all.contains(&name) || name == "initial", "{name}");
    }
}

#[test]
fn the_library_is_a_list_and_has_no_code() {
    let mut files = Vec::new();
    sources(&root().join("src"), &mut files);
    assert_eq!(files.len(), 2, "{files:?}");
    for file in ["lib.rs", "prelude.rs"] {
        let code = code(file);
        for item in
            ["struct ", "enum ", "trait ", "fn ", "const ", "static ", "type ", "impl ", "macro_rules"]
        {
            assert!(!code.contains(item), "{file} has `{item}`");
        }
    }
}
