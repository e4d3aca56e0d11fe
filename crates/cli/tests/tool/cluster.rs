//! Clusters that `warpweft simulate` and `plan` are given: by a preset, a file and options.

use crate::simulate::{folder, run, said};

#[test]
fn ranks_of_a_node_come_from_the_option_or_the_file_and_are_at_most_its_gpus() {
    let folder = folder();
    let simulated = |rest: &str| said(folder.path(), &format!("simulate model.toml --ranks 16 {rest}"));
    let (_, preset) = warpweft_plan::cluster::PRESETS[1];
    let file = |ranks: u32| {
        let text =
            preset.replace("gpus_per_node = 8", &format!("gpus_per_node = 8\nranks_per_node = {ranks}"));
        std::fs::write(folder.path().join("ours.toml"), text).unwrap();
    };
    let all = simulated("--cluster h100x8-ib");
    let four = simulated("--cluster h100x8-ib --ranks-per-node 4");
    assert_ne!(all, four, "16 ranks on 2 nodes, and on 4");
    assert_eq!(simulated("--cluster h100x8-ib --ranks-per-node 8"), all);
    file(4);
    assert_eq!(simulated("--cluster ours.toml"), four);
    assert_eq!(simulated("--cluster ours.toml --ranks-per-node 8"), all, "the option is over the file");
    for (line, from) in [
        ("simulate model.toml --ranks 16 --cluster h100x8-ib --ranks-per-node 9", "--ranks-per-node: "),
        ("plan model.toml --ranks 16 --cluster h100x8-ib --ranks-per-node 9", "--ranks-per-node: "),
        ("simulate model.toml --ranks 16 --cluster ours.toml", "ours.toml:5: "),
    ] {
        file(9);
        let output = run(folder.path(), line);
        let complaint = String::from_utf8(output.stderr).unwrap();
        let words = "`ranks_per_node` is 9; set it to at most `gpus_per_node`, 8, or leave it out";
        assert!(!output.status.success() && complaint.contains(&format!("{from}{words}")), "{complaint}");
    }
    let output = run(folder.path(), "plan model.toml --ranks 16 --ranks-per-node 4");
    assert!(!output.status.success(), "without a cluster it would say nothing");
    assert!(String::from_utf8(output.stderr).unwrap().contains("--cluster"));
}

#[test]
fn a_cluster_file_and_a_preset_are_read_alike() {
    let folder = folder();
    let (_, preset) = warpweft_plan::cluster::PRESETS[0];
    std::fs::write(folder.path().join("ours.toml"), preset).unwrap();
    let line = |cluster: &str| format!("simulate model.toml --ranks 4 --cluster {cluster}");
    assert_eq!(said(folder.path(), &line("ours.toml")), said(folder.path(), &line("h200x4")));
}

#[test]
fn speeds_without_their_power_of_ten_are_refused_and_no_step_is_endless() {
    let folder = folder();
    let (_, preset) = warpweft_plan::cluster::PRESETS[0];
    let with = |key: &str, value: &str| {
        let lines = preset.lines().map(|line| match line.split_once(" = ") {
            Some((own, _)) if own == key => format!("{key} = {value}\n"),
            _ => format!("{line}\n"),
        });
        let text: String = lines.collect();
        assert_ne!(text, preset);
        std::fs::write(folder.path().join("ours.toml"), text).unwrap();
    };
    let lines = ["simulate model.toml --ranks 4 --cluster ours.toml", "plan model.toml --cluster ours.toml"];
    let refused = |complaint: &str| {
        for line in lines {
            let output = run(folder.path(), line);
            let said = String::from_utf8(output.stderr).unwrap();
            assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{line}: {said}");
            assert!(said.contains(complaint) && said.contains("per second"), "{line}: {said}");
        }
    };
    with("fp8", "1400");
    refused("`gpu.flops_per_s.fp8` is 1400; set it to a number of operations per second from 1e8");
    with("bf16", "1e8");
    let calls = include_str!("../../../../examples/simulate/calls.toml");
    let huge = calls.replace("flops = 412_316_860_416", "flops = 4_000_000_000_000_000_000");
    std::fs::write(folder.path().join("model.toml"), huge).unwrap();
    refused("30 years");
}

#[test]
fn a_plan_that_does_not_fit_the_machine_is_reported_with_both_sizes_and_what_to_do() {
    let folder = folder();
    let file = include_str!("../../../plan/src/cluster/presets/h200x4.toml");
    let memory = file.lines().find(|line| line.trim_start().starts_with("memory_bytes")).unwrap();
    let mut advice = Vec::new();
    for (bytes, wanted) in
        [(1 << 20, "what is resident alone is more"), (16 << 20, "set a lower memory.budget")]
    {
        let text = file.replace(memory, &format!("memory_bytes = {bytes}  # a small one"));
        std::fs::write(folder.path().join("small.toml"), text).unwrap();
        let line = "model.toml --cluster small.toml --ranks 2 --depth 2";
        for view in ["", " --tasks"] {
            let planned = said(folder.path(), &format!("plan {line}{view}"));
            let note = planned
                .lines()
                .find(|line| line.starts_with("note: a rank's arena"))
                .unwrap_or("")
                .to_owned();
            assert!(note.contains("MiB") && note.contains("`h200x4`"), "{planned}");
            advice.push((note, wanted));
        }
        let refused = String::from_utf8(run(folder.path(), &format!("simulate {line}")).stderr).unwrap();
        assert!(refused.contains(&format!("has {bytes} bytes (")), "{refused}");
        assert!(refused.contains("set memory.budget, or lower it"), "{refused}");
    }
    for (note, wanted) in advice {
        assert!(note.contains(wanted), "{note}");
    }
    let fits = said(folder.path(), "plan model.toml --cluster h200x4 --ranks 2 --depth 2");
    assert!(!fits.contains("note: a rank's arena"), "{fits}");
}
