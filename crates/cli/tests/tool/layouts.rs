//! `warpweft tune --mesh auto` as a program.

use std::path::Path;

use crate::simulate::{MODEL, folder, run, said};

const TUNE: &str = "tune wide.toml --cluster h100x8-ib --ranks 16";

/// A folder with a decoder whose layers 16 ranks can share in several ways.
fn wide() -> tempfile::TempDir {
    let folder = folder();
    let wide = MODEL.replace("hidden = 256", "hidden = 512").replace("ffn = 512", "ffn = 1024");
    std::fs::write(folder.path().join("wide.toml"), wide.replace("tokens = 64", "tokens = 512")).unwrap();
    folder
}

fn json(folder: &Path, line: &str) -> serde_json::Value {
    serde_json::from_str(&said(folder, line)).unwrap()
}

/// The mesh of a layout as it stands on a command line, and its step in milliseconds.
fn layout(found: &serde_json::Value) -> (String, f64) {
    let axes = ["dp_replicate", "dp_shard", "cp", "tp"].map(|axis| format!("{axis}={}", found["mesh"][axis]));
    (axes.join(","), found["step_ms"].as_f64().unwrap())
}

#[test]
fn the_first_layout_is_the_best_of_all_that_there_are() {
    let folder = wide();
    let found = json(folder.path(), &format!("{TUNE} --mesh auto --json"));
    let layouts: Vec<(String, f64)> = found["layouts"].as_array().unwrap().iter().map(layout).collect();
    assert!(layouts.len() >= 6 && layouts.is_sorted_by(|one, next| one.1 <= next.1), "{layouts:?}");
    // What ranks share is all that differs: each has the tokens of the file.
    let mut all = Vec::new();
    for (tp, cp) in [(1, 1), (1, 2), (2, 1), (2, 2), (4, 1)] {
        for dp_shard in [1, 2, 4, 8, 16] {
            let mesh = format!("auto,tp={tp},cp={cp},dp_shard={dp_shard}");
            let output = run(folder.path(), &format!("{TUNE} --mesh {mesh} --json"));
            if let Ok(one) = serde_json::from_slice::<serde_json::Value>(&output.stdout) {
                all.push(layout(&one["layouts"][0]));
            }
        }
    }
    assert!(all.len() > 15, "{all:?}");
    let best = all.iter().map(|(_, step)| *step).fold(f64::INFINITY, f64::min);
    let (mesh, step) = &layouts[0];
    assert!(*step <= best * 1.02, "{mesh} takes {step} ms, the best of all {best} ms: {all:?}");
}

#[test]
fn the_configuration_of_the_best_layout_makes_the_simulated_step_again() {
    let folder = wide();
    let text = said(folder.path(), &format!("{TUNE} --mesh auto,tp=2 --picture layouts.svg"));
    let rows: Vec<&str> = text.lines().skip(1).take_while(|line| line.starts_with("tp=2,")).collect();
    assert!(rows.len() > 1, "{text}");
    let (_, pasted) = text.split_once("\n# ").unwrap();
    std::fs::write(folder.path().join("pasted.toml"), format!("# {pasted}")).unwrap();
    // The file's tokens are those of the ranks that share texts.
    let model = std::fs::read_to_string(folder.path().join("wide.toml")).unwrap();
    let two = model.replace("tokens = 512", "tokens = 1024\nsequence = 512");
    std::fs::write(folder.path().join("two.toml"), two).unwrap();
    let line = "simulate two.toml --cluster h100x8-ib --ranks 16 --steps 1 --config pasted.toml";
    let simulated = said(folder.path(), line);
    let line =
        |name: &str| simulated.lines().find(|line| line.starts_with(name)).unwrap()[name.len()..].trim();
    let best: Vec<&str> = rows[0].split_whitespace().collect();
    let [.., memory, _, _, _] = best[..] else { panic!("{text}") };
    assert!(
        line("step").starts_with(&format!("{} {}; {} tokens", best[1], best[2], best[3])),
        "{simulated}: {text}"
    );
    assert!(line("memory").starts_with(memory), "{simulated}: {text}");
    assert!(text.contains("share texts, as the model's file names them for this mesh: 1024"), "{text}");
    assert!(std::fs::read_to_string(folder.path().join("layouts.svg")).unwrap().contains("tp = 2"));
}

#[test]
fn a_layout_over_a_gpus_memory_gets_a_budget_or_is_left_out_with_the_bytes() {
    let folder = wide();
    let wide = std::fs::read_to_string(folder.path().join("wide.toml")).unwrap();
    std::fs::write(folder.path().join("wide.toml"), wide.replace("layers = 2", "layers = 8")).unwrap();
    let free = json(folder.path(), &format!("{TUNE} --mesh auto,tp=1 --json"));
    let needs =
        free["layouts"].as_array().unwrap().iter().map(|found| found["memory_bytes"].as_u64().unwrap());
    let memory = needs.min().unwrap() * 15 / 16;
    let cluster = include_str!("../../../plan/src/cluster/presets/h100x8-ib.toml");
    let small: Vec<String> = cluster
        .lines()
        .map(|line| match line.starts_with("memory_bytes") {
            true => format!("memory_bytes = {memory}"),
            false => line.to_owned(),
        })
        .collect();
    std::fs::write(folder.path().join("small.toml"), small.join("\n")).unwrap();
    let line = "tune wide.toml --cluster small.toml --ranks 16 --mesh auto,tp=1 --json";
    let found = json(folder.path(), line);
    let layouts = found["layouts"].as_array().unwrap();
    assert!(layouts.iter().all(|found| found["memory_bytes"].as_u64().unwrap() <= memory), "{found}");
    let has_budget =
        |found: &serde_json::Value| found["config"].as_str().unwrap().contains("memory.budget = ");
    assert!(layouts.iter().any(has_budget), "{found}");
    let out = found["out"].as_array().unwrap();
    assert!(out.iter().any(|out| out["reason"].as_str().unwrap().contains("it needs ")), "{found}");
    let none = run(folder.path(), "tune wide.toml --cluster small.toml --ranks 1 --mesh auto");
    let complaint = String::from_utf8(none.stderr).unwrap();
    assert!(complaint.contains("dp_shard=1: it needs ") && !none.status.success(), "{complaint}");
}

#[test]
fn a_text_longer_than_a_ranks_tokens_is_shared_by_the_ranks_that_hold_it() {
    let folder = wide();
    let found = json(folder.path(), &format!("{TUNE} --mesh auto --rank-tokens 128 --json"));
    let layouts = found["layouts"].as_array().unwrap();
    let sharing = |found: &serde_json::Value| {
        found["mesh"]["tp"].as_u64().unwrap() * found["mesh"]["cp"].as_u64().unwrap()
    };
    assert!(!layouts.is_empty() && layouts.iter().all(|found| sharing(found) == 4), "{found}");
}

#[test]
fn a_list_of_calls_keeps_what_its_ranks_share() {
    let folder = folder();
    let calls = include_str!("../../../../examples/simulate/calls.toml");
    std::fs::write(folder.path().join("calls.toml"), calls).unwrap();
    let found = json(folder.path(), "tune calls.toml --cluster h200x4 --ranks 4 --mesh auto --json");
    let layouts = found["layouts"].as_array().unwrap();
    assert!(!layouts.is_empty() && layouts.iter().all(|found| found["mesh"]["tp"] == 1), "{found}");
}

#[test]
fn axes_that_no_mesh_has_and_json_without_layouts_are_refused() {
    let folder = wide();
    for (options, complaint) in [
        ("--mesh auto,dp_shard=3", "no mesh of 16 ranks has the axes that were given"),
        ("--mesh tp=2 --json", "say --mesh auto as well"),
        ("--mesh automatic", "give an axis and how many ranks it has"),
    ] {
        let output = run(folder.path(), &format!("{TUNE} {options}"));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(complaint) && !output.status.success(), "{options}: {said}");
    }
    let simulate = run(folder.path(), "simulate wide.toml --cluster h200x4 --ranks 4 --mesh auto");
    assert_eq!(simulate.status.code(), Some(2), "only tune looks for a mesh");
}
