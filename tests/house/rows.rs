//! The rows of modules inside of a crate: what no compiler checks there.

use std::collections::BTreeMap;

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

/// The modules that the code of a file names after `crate::`, but not what the root of the crate holds;
/// comments and documentation may name any.
fn imports(text: &str) -> Vec<String> {
    let several = text.split("crate::{").skip(1).filter_map(|rest| rest.split('}').next());
    for names in several {
        assert!(!names.contains("::"), "several modules behind one `crate::` are not read here: {names}");
    }
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let name = |rest: &str| rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
    code.flat_map(|line| line.split("crate::").skip(1).map(name)).collect()
}

#[test]
fn a_module_imports_only_from_a_lower_row() {
    let rows = rows();
    let owners: Vec<&String> = rows.keys().map(|(owner, _)| owner).collect();
    let mut wrong = Vec::new();
    for (owner, folder) in CRATES.into_iter().filter(|(owner, _)| owners.iter().any(|known| known == owner)) {
        let row = |module: &str| rows.get(&(owner.to_owned(), module.to_owned())).copied();
        let mut files = Vec::new();
        sources(&root().join(folder), &mut files);
        for file in files {
            let own = module(folder, &file);
            if own == "lib" {
                continue;
            }
            let below = row(&own).unwrap_or_else(|| panic!("`{owner}::{own}` stands in no row"));
            let text = std::fs::read_to_string(&file).unwrap();
            for import in imports(&text).into_iter().filter(|import| *import != own && !import.is_empty()) {
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
