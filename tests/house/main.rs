//! The house rules of sources and documents.
//!
//! The picture of the crates in ARCHITECTURE.md is what cargo knows, and each can be published (`crates`), a module
//! imports only from a lower row (`rows`), and every law is listed there, stated in one module, and cited in the test
//! that guards it (`laws`). No comment is wider than a screen, and the front page has the crate's own first program.
//! Errors end a program readably (`errors`), and no message is lost (`messages`). The names that users find are a short
//! list (`surface`). Links of the documents lead somewhere, and the terms of the field to their pages (`documents`).

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod crates;
mod documents;
mod errors;
mod laws;
mod messages;
mod rows;
mod sources;
mod surface;

use std::path::PathBuf;

use sources::{FOLDERS, root, sources};

/// As `rustfmt.toml` has it for code, and a word more. Tables have rows, `--help` texts lines of their own.
#[test]
fn no_comment_is_wider_than_a_screen() {
    const COLUMNS: usize = 120;
    let mut files = Vec::new();
    for folder in FOLDERS {
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

/// What a function gives is its name; but for the methods of candle's `SimpleBackend`.
#[test]
fn no_name_of_a_function_begins_with_get() {
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|folder| sources(&root().join(folder), &mut files));
    let has_one = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap().replace(concat!("fn ", "get_unchecked"), "");
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
