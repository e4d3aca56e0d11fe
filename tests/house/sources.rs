//! The source files, and the module that each belongs to.

use std::path::{Path, PathBuf};

/// Every folder with Rust files that people read.
pub(crate) const FOLDERS: [&str; 7] = ["src", "crates", "kernels", "tests", "testing", "examples", "benches"];

/// The folders of the crates that have modules of their own, each with the crate's short name.
pub(crate) const CRATES: [(&str, &str); 9] = [
    ("warpweft", "src"),
    ("session", "crates/session/src"),
    ("base", "crates/base/src"),
    ("format", "crates/format/src"),
    ("plan", "crates/plan/src"),
    ("backend", "crates/backend/src"),
    ("kernels", "kernels/src"),
    ("cuda", "crates/cuda/src"),
    ("cli", "crates/cli/src"),
];

pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Every Rust file below a folder, but for what was built there.
pub(crate) fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
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

/// The first part of a path inside of a crate's folder, without its ending: the module a file belongs to.
pub(crate) fn module(folder: &str, path: &Path) -> String {
    let inside = path.strip_prefix(root().join(folder)).unwrap();
    Path::new(inside.iter().next().unwrap()).file_stem().unwrap().to_string_lossy().into_owned()
}
