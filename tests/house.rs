//! The rooms of ARCHITECTURE.md against the imports of the sources: a module imports only from a lower row.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
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

/// Every Rust file below a folder.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The first part of a path inside of `src`, without its ending: the module a file belongs to.
fn module(path: &Path) -> String {
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
        if own == "lib" || own == "main" {
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
