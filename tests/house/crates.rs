//! The crates: the picture in ARCHITECTURE.md, and what each needs to be published.
//!
//! Law: each arrow of the picture is a dependence that cargo knows, and none follows from others.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::sources::root;

type Arrows = BTreeSet<(String, String)>;

/// The arrows of the picture, from the crate that imports to the one that is imported.
fn drawn() -> Arrows {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let picture = text.split("```mermaid\n").nth(1).expect("a picture").split("```").next().unwrap();
    let arrows = picture.lines().filter_map(|line| line.trim().split_once(" --> "));
    arrows.map(|(from, to)| (from.to_owned(), to.to_owned())).collect()
}

/// The packages of this workspace, as cargo knows them.
fn packages() -> Vec<serde_json::Value> {
    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn text(value: &serde_json::Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The crates of this workspace that each of them depends on, tests apart.
fn known() -> BTreeMap<String, BTreeSet<String>> {
    let packages = packages();
    let names: BTreeSet<String> = packages.iter().map(|package| text(&package["name"])).collect();
    let imported = |package: &serde_json::Value| {
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let normal = dependencies.filter(|dependency| dependency["kind"].is_null());
        normal.map(|dependency| text(&dependency["name"])).filter(|name| names.contains(name)).collect()
    };
    packages.iter().map(|package| (text(&package["name"]), imported(package))).collect()
}

/// All that a crate depends on, by way of others too.
fn reached(known: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(next) = open.pop() {
        open.extend(known[next].iter().filter(|name| found.insert((*name).clone())).map(String::as_str));
    }
    found
}

#[test]
fn the_picture_of_the_crates_is_what_cargo_knows() {
    let mut known = known();
    assert!(known.remove("warpweft-testing").is_some(), "the tests' crate is not drawn");
    let mut needed = Arrows::new();
    for (from, imported) in &known {
        for to in imported {
            if !imported.iter().any(|other| other != to && reached(&known, other).contains(to)) {
                needed.insert((from.clone(), to.clone()));
            }
        }
    }
    assert!(needed.len() > 5, "{needed:?}");
    assert_eq!(drawn(), needed);
}

/// What crates.io and docs.rs show of a crate. Its folder has the licences, because a package has no other files.
#[test]
fn every_published_crate_has_its_licences_a_description_and_a_target_for_its_pages() {
    let is_published = |package: &&serde_json::Value| package["publish"].is_null();
    let packages = packages();
    let published: Vec<_> = packages.iter().filter(is_published).collect();
    assert!(published.len() > 9, "{}", published.len());
    for package in published {
        let name = text(&package["name"]);
        let folder = Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap();
        for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
            assert!(folder.join(licence).is_file(), "{name} has no {licence}");
        }
        assert_eq!(text(&package["license"]), "MIT OR Apache-2.0", "{name}");
        assert!(text(&package["description"]).ends_with('.'), "{name}");
        assert_eq!(text(&package["documentation"]), format!("https://docs.rs/{name}"));
        for list in [&package["keywords"], &package["categories"]] {
            assert!((1..=5).contains(&list.as_array().unwrap().len()), "{name}: {list}");
        }
        // Without it docs.rs may choose targets that the library refuses.
        assert_eq!(package["metadata"]["docs"]["rs"]["targets"][0], "x86_64-unknown-linux-gnu", "{name}");
    }
}
