//! The rows of modules inside of a crate, which no compiler checks.

use std::collections::BTreeMap;
use std::path::Path;

use crate::sources::{CRATES, module, root, sources};

/// The row of every module, crate by crate, read off the table.
fn rows() -> BTreeMap<(String, String), usize> {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let table = text.split("\n### Modules of a crate\n").nth(1).expect("a section about modules");
    let table = table.split("\n## ").next().unwrap();
    let mut rows = BTreeMap::new();
    for line in table.lines() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let Some(row) = cells.get(2).and_then(|cell| cell.parse::<usize>().ok()) else { continue };
        let owner = cells[1].trim_matches('`');
        for module in cells[3].split('`').skip(1).step_by(2) {
            let key = (owner.to_owned(), module.to_owned());
            assert!(rows.insert(key, row).is_none(), "`{module}` stands in the table twice");
        }
    }
    rows
}

/// What the code of a file names right after `path`, such as `crate::`; comments and documentation may name any.
fn named_after(path: &str, code: &str) -> Vec<String> {
    let is_of_name = |c: char| c.is_ascii_lowercase() || c == '_';
    let name = |rest: &str| rest.chars().take_while(|c| is_of_name(*c)).collect::<String>();
    let mut found = Vec::new();
    for (at, _) in code.match_indices(path).filter(|(at, _)| !code[..*at].ends_with("::")) {
        let rest = &code[at + path.len()..];
        match rest.strip_prefix('{').and_then(|names| names.split('}').next()) {
            Some(names) => found.extend(names.split(',').map(|each| name(each.trim()))),
            None => found.push(name(rest)),
        }
    }
    found.retain(|name| !name.is_empty() && name != "super");
    found
}

/// How many modules a file is below the root of its crate.
fn depth(folder: &str, file: &Path) -> usize {
    let inside = file.strip_prefix(root().join(folder)).unwrap();
    inside.iter().count() - usize::from(inside.ends_with("mod.rs"))
}

/// The modules of the same crate that a file imports from: by `crate::`, or by as many `super::` as reach the root.
/// What the root holds itself is no module, which `is_module` tells.
fn imports(folder: &str, file: &Path, is_module: impl Fn(&str) -> bool) -> Vec<String> {
    let text = std::fs::read_to_string(file).unwrap();
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join("\n");
    let mut found = named_after("crate::", &code);
    // Unit tests at a file's end are a module deeper.
    let without_tests = code.split("\n#[cfg(test)]\nmod tests {").next().unwrap();
    found.extend(named_after(&"super::".repeat(depth(folder, file)), without_tests));
    found.retain(|name| is_module(name));
    found
}

#[test]
fn a_module_imports_only_from_a_lower_row() {
    let rows = rows();
    let owners: Vec<&String> = rows.keys().map(|(owner, _)| owner).collect();
    let mut wrong = Vec::new();
    for (owner, folder) in CRATES.into_iter().filter(|(owner, _)| owners.iter().any(|known| known == owner)) {
        let row = |module: &str| rows.get(&(owner.to_owned(), module.to_owned())).copied();
        let (mut files, inside) = (Vec::new(), root().join(folder));
        let is_module =
            |name: &str| inside.join(name).is_dir() || inside.join(format!("{name}.rs")).is_file();
        sources(&inside, &mut files);
        for file in files {
            let own = module(folder, &file);
            if own == "lib" {
                continue;
            }
            let below = row(&own).unwrap_or_else(|| panic!("`{owner}::{own}` stands in no row"));
            for import in imports(folder, &file, is_module).into_iter().filter(|import| *import != own) {
                match row(&import) {
                    Some(other) if other < below => {}
                    Some(other) => wrong
                        .push(format!("{} (row {below}) imports `{import}` (row {other})", file.display())),
                    None => {
                        wrong.push(format!("{} imports `{import}`, which stands in no row", file.display()))
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_row_has_modules_that_exist() {
    let rows = rows();
    assert!(rows.len() > 20, "{rows:?}");
    for (owner, module) in rows.keys() {
        let (_, folder) =
            CRATES.into_iter().find(|(known, _)| known == owner).expect("a crate that is there");
        let folder = root().join(folder);
        assert!(
            folder.join(module).is_dir() || folder.join(format!("{module}.rs")).is_file(),
            "`{owner}::{module}` is not there"
        );
    }
}
