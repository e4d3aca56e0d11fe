//! The documents: sizes, links, source paths, the book's summary, its index of terms, and the files of decisions.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::sources::root;

/// The terms that a practitioner searches for. Each must be in the index, and on the page that the index links.
const TERMS: [&str; 38] = [
    "gradient accumulation",
    "custom optimizer",
    "Muon",
    "mixed precision",
    "loss scaling",
    "gradient clipping",
    "learning rate schedule",
    "weight decay",
    "LoRA",
    "tied weights",
    "mixture of experts",
    "HSDP",
    "ZeRO-3",
    "CUDA graph",
    "activation recompute",
    "sharded checkpoint",
    "resume",
    "torchrun",
    "memory budget",
    "determinism",
    "FSDP2",
    "DeepSpeed",
    "ZeRO-2",
    "NVFP4",
    "MXFP8",
    "FP8",
    "prefetch",
    "overlap",
    "all-gather",
    "vLLM",
    "NCCL",
    "reduce-scatter",
    "safetensors",
    "master weights",
    "EMA",
    "gradient checkpointing",
    "data parallel",
    "tensor parallelism",
];

fn read(page: &Path) -> String {
    std::fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

fn markdown(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            markdown(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

/// Every document at the root and below `docs`, and those beside what they explain.
fn pages() -> Vec<PathBuf> {
    let front = ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md"];
    let beside = ["benches/peers/README.md", "traces/README.md"];
    let mut pages: Vec<PathBuf> = front.into_iter().chain(beside).map(|page| root().join(page)).collect();
    markdown(&root().join("docs"), &mut pages);
    assert!(pages.len() > 60, "{pages:?}");
    pages
}

/// The lines of a page that are no program.
fn prose(page: &Path) -> String {
    let mut is_program = false;
    let text = read(page);
    let lines = text.lines().filter(|line| {
        let is_fence = line.starts_with("```");
        is_program ^= is_fence;
        !is_fence && !is_program
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// What links of a page name, in order; addresses elsewhere left out.
fn links(page: &Path) -> Vec<String> {
    let prose = prose(page);
    let links = prose.split("](").skip(1).map(|rest| rest.split(')').next().unwrap().to_owned());
    links.filter(|link| !link.contains("://")).collect()
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &Path) -> BTreeSet<String> {
    let prose = prose(page);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let title = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        title.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn every_link_of_the_documents_leads_somewhere() {
    let (mut followed, mut broken) = (0, Vec::new());
    for page in pages() {
        for link in links(&page) {
            followed += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            let leads = target.exists() && (anchor.is_empty() || anchors(&target).contains(anchor));
            if !leads {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(followed > 200 && broken.is_empty(), "{followed} links; broken:\n{}", broken.join("\n"));
}

/// A path of a source in the documents starts at the root, so that a reader can open it.
#[test]
fn every_source_that_the_documents_name_is_there() {
    let (mut named, mut missing) = (0, Vec::new());
    for page in pages() {
        let text = read(&page);
        let paths = text.split('`').skip(1).step_by(2);
        for path in
            paths.filter(|path| path.contains('/') && path.ends_with(".rs") && !path.contains("SUBJECT"))
        {
            named += 1;
            if !root().join(path).is_file() {
                missing.push(format!("{}: {path}", page.display()));
            }
        }
    }
    assert!(named > 20 && missing.is_empty(), "{named} are named; not there:\n{}", missing.join("\n"));
}

#[test]
fn the_index_leads_from_every_term_to_a_page_that_contains_it() {
    let index = root().join("docs/index-of-terms.md");
    let rows: Vec<(String, String)> = read(&index)
        .lines()
        .filter_map(|line| {
            let mut cells = line.split('|').skip(1);
            let (terms, page) = (cells.next()?, cells.next()?);
            let link = page.split("](").nth(1)?.split([')', '#']).next()?;
            Some((terms.to_lowercase(), link.to_owned()))
        })
        .collect();
    assert!(rows.len() >= TERMS.len(), "{rows:?}");
    for term in TERMS {
        let searched = term.to_lowercase();
        let is_one = |terms: &str| terms.split(',').any(|each| each.trim() == searched);
        let (_, page) = rows
            .iter()
            .find(|(terms, _)| is_one(terms))
            .unwrap_or_else(|| panic!("`{term}` is not in {}", index.display()));
        let text = read(&root().join("docs").join(page)).to_lowercase();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&searched), "{page}, which answers `{term}`, does not contain it");
    }
}

/// What `SUMMARY.md` leaves out, the book does not have.
#[test]
fn the_summary_of_the_book_lists_every_page_once() {
    let docs = root().join("docs");
    let mut listed = links(&docs.join("SUMMARY.md"));
    let pages = pages();
    let pages = pages.iter().filter_map(|page| page.strip_prefix(&docs).ok());
    let names = pages.map(|page| page.to_string_lossy().into_owned());
    let mut there: Vec<String> = names.filter(|page| page != "SUMMARY.md").collect();
    listed.sort();
    there.sort();
    assert_eq!(listed, there, "left: listed; right: there");
}

#[test]
fn every_decision_has_a_reason_and_a_line_in_their_index() {
    let folder = root().join("docs/decisions");
    let index = folder.join("README.md");
    let listed: Vec<String> = links(&index).into_iter().filter(|link| !link.starts_with("..")).collect();
    let mut files = Vec::new();
    markdown(&folder, &mut files);
    files.retain(|file| *file != index);
    assert!(files.len() > 40, "{files:?}");
    for file in &files {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let times = listed.iter().filter(|link| **link == name).count();
        assert_eq!(times, 1, "{name} in {}", index.display());
        let text = read(file);
        let headings = text.lines().filter_map(|line| line.strip_prefix("## "));
        let unknown: Vec<&str> =
            headings.clone().filter(|title| !["Why", "Cost", "Tried", "Proof"].contains(title)).collect();
        assert!(headings.count() > 0 && unknown.is_empty(), "{name}: {unknown:?}");
    }
}

/// The library compiles the programs of the pages that its `mod pages` names, and the examples with candle and with
/// burn, workspaces of their own, those of the pages with them.
#[test]
fn every_page_with_a_program_is_compiled() {
    let of = |file: &str| read(&root().join(file));
    let library = of("src/lib.rs") + &of("examples/candle/src/lib.rs") + &of("examples/burn/src/lib.rs");
    let mut with_one = 0;
    let has_one = |page: &PathBuf| {
        let text = read(page);
        text.lines().any(|line| line.starts_with("```rust") && !line.contains("ignore"))
    };
    for page in pages().into_iter().filter(has_one) {
        with_one += 1;
        let name = page.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
        let is_named =
            library.lines().any(|line| line.contains("include_str!") && line.contains(&format!("/{name}\"")));
        assert!(is_named, "{name} is not in `pages`");
    }
    assert!(with_one > 8, "{with_one}");
}

/// What people read first is short.
#[test]
fn the_front_documents_keep_to_their_sizes() {
    for (page, most) in [("ARCHITECTURE.md", 15), ("README.md", 12), ("CHANGELOG.md", 3)] {
        let bytes = read(&root().join(page)).len();
        assert!(bytes <= most << 10, "{page} has {bytes} bytes, more than {most} KiB");
    }
}
