//! `warpweft tune` as a program, and the configuration that it prints.

use crate::simulate::{MODEL, folder, run, said};

#[test]
fn tune_sweeps_chooses_within_the_budget_and_prints_a_configuration_that_loads() {
    let folder = folder();
    let text = said(folder.path(), "tune model.toml --cluster h200x4 --ranks 4 --picture tune.svg");
    for word in
        ["prefetch.depth = 0", "prefetch.bytes = \"64 MiB\"", "trials of the tuner", "the first choice"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
    let (_, pasted) = text.split_once("\n# ").unwrap();
    let config = warpweft_session::config::Config::from_toml_str(&format!("# {pasted}"), "pasted").unwrap();
    config.validate().unwrap();
    // On the machine that was named, not on the one that a configuration counts with by itself.
    let small = MODEL.replace("layers = 2", "layers = 8").replace("tokens = 64", "tokens = 4096");
    std::fs::write(folder.path().join("small.toml"), small).unwrap();
    let auto = said(folder.path(), "tune small.toml --cluster h200x4 --ranks 4 --auto");
    let (_, pasted) = auto.split_once("\n# ").unwrap();
    if pasted.contains("auto") {
        assert!(pasted.contains("prefetch.cluster = \"h200x4\""), "{pasted}");
    }
    std::fs::write(folder.path().join("pasted.toml"), format!("# {pasted}")).unwrap();
    let planned = said(folder.path(), "plan small.toml --ranks 4 --config pasted.toml");
    let transient = pasted.split(", ").nth(1).unwrap().split(" of transient").next().unwrap();
    assert!(planned.contains(&format!("transient   {transient}, ")), "{transient}: {planned}");
    assert!(std::fs::read_to_string(folder.path().join("tune.svg")).unwrap().contains("chosen: "));
    let least = said(folder.path(), "plan model.toml --ranks 4 --depth 0");
    let least = least.lines().find(|line| line.contains("  transient")).unwrap();
    let words: Vec<&str> = least.split_whitespace().collect();
    let mebibytes = words[1].parse::<f64>().unwrap() * 1.02;
    assert_eq!(words[2], "MiB,");
    let budget = (mebibytes * f64::from(1 << 20)) as u64;
    let tight =
        said(folder.path(), &format!("tune model.toml --cluster h200x4 --ranks 4 --budget {budget}B"));
    assert!(tight.contains("over the budget") && tight.contains("more than the budget of"), "{tight}");
    let output = run(folder.path(), "tune model.toml --cluster h200x4 --ranks 4 --budget 1KiB");
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("no policy fits memory.budget (1 KiB); the least, `prefetch."), "{complaint}");
    let advised = complaint.rsplit('"').nth(1).unwrap();
    let advised = advised.replace(' ', "");
    said(folder.path(), &format!("tune model.toml --cluster h200x4 --ranks 4 --budget {advised}"));
}

#[test]
fn what_tune_prints_makes_the_same_plan_by_itself_and_over_the_file_it_was_given() {
    let given = "communicators = 1\nreduce_delay = 4\nbackward = 'keep'\nmesh.dp_replicate = 2\n\n[[weights]]\nmatch = '*down*'\nformat = 'bf16'\n";
    let mut replaced = Vec::new();
    for way in ["", "prefetch.bytes = '1 MiB'\n", "prefetch.policy = 'auto'\ntune.steps = 12\n"] {
        let pasted = same_plan_pasted(&format!("{way}{given}"));
        assert_eq!(pasted.contains("tune.steps = 0"), way.contains("tune.steps"), "{pasted}");
        replaced
            .extend(pasted.lines().filter_map(|line| line.strip_prefix("# in place of ")).map(str::to_owned));
    }
    assert_eq!(replaced, ["prefetch.bytes"], "it does not hold what must be there at once");
}

/// What `tune` prints over a configuration; it makes the chosen plan by itself and over that.
fn same_plan_pasted(given: &str) -> String {
    let folder = folder();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("run.toml", given);
    let tuned = said(
        folder.path(),
        "tune model.toml --cluster h200x4 --ranks 4 --config run.toml --mesh dp_replicate=1",
    );
    let (_, pasted) = tuned.split_once("\n# ").unwrap();
    let pasted = format!("# {pasted}");
    let mut merged: toml::Table = given.parse().unwrap();
    for key in pasted.lines().filter_map(|line| line.strip_prefix("# in place of prefetch.")) {
        assert!(merged["prefetch"].as_table_mut().unwrap().remove(key).is_some(), "{key}: {pasted}");
    }
    for (key, value) in pasted.parse::<toml::Table>().unwrap() {
        match (merged.get_mut(&key), value) {
            (Some(toml::Value::Table(own)), toml::Value::Table(over)) => own.extend(over),
            (_, value) => drop(merged.insert(key, value)),
        }
    }
    write("alone.toml", &pasted);
    write("merged.toml", &merged.to_string());
    let fingerprint = |options: &str| {
        let tasks = said(folder.path(), &format!("plan model.toml --ranks 4 --tasks {options}"));
        let (_, rest) = tasks.split_once("fingerprint ").unwrap();
        rest.split_whitespace().next().unwrap().to_owned()
    };
    let choice = pasted.lines().find(|line| line.starts_with("prefetch.")).unwrap();
    let (key, value) = choice.split_once(" = ").unwrap();
    let option = match key {
        "prefetch.policy" => "--auto --cluster h200x4".to_owned(),
        key => format!("--{} {}", &key["prefetch.".len()..], value.replace(['"', ' '], "")),
    };
    let chosen = fingerprint(&format!("--config run.toml --mesh dp_replicate=1 {option}"));
    assert_ne!(chosen, fingerprint(&option), "the file matters");
    for config in ["alone.toml", "merged.toml"] {
        assert_eq!(fingerprint(&format!("--config {config}")), chosen, "{config}: {pasted}");
    }
    pasted
}
