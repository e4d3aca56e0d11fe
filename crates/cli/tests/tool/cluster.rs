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
