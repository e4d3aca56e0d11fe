//! `warpweft plan`, `simulate` and `trace` as programs.

use std::path::Path;
use std::process::{Command, Output};

pub(crate) const MODEL: &str = "name = 'small'\nlayers = 2\nhidden = 256\nffn = 512\nheads = 4\nvocabulary = 512\ntokens = 64\nmath = 'bf16'\nformat = 'nvfp4_2d'\n";

pub(crate) fn run(folder: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_warpweft")).current_dir(folder).args(line.split(' ')).output().unwrap()
}

pub(crate) fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("model.toml"), MODEL).unwrap();
    folder
}

pub(crate) fn said(folder: &Path, line: &str) -> String {
    let output = run(folder, line);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && complaint.is_empty(), "{line}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn plan_shows_totals_tasks_or_a_graph() {
    let folder = folder();
    let totals = said(folder.path(), "plan model.toml --ranks 2");
    for word in ["all-gather", "exchange gradient", "collectives", "live bound", "received per rank and step"]
    {
        assert!(totals.contains(word), "{word}: {totals}");
    }
    let saved = totals.lines().find(|line| line.starts_with("columnwise")).unwrap();
    assert!(saved.contains("on demand saves ") && saved.contains("iB of transient memory"), "{saved}");
    assert!(said(folder.path(), "plan model.toml --tasks").starts_with("plan `train`: "));
    assert!(said(folder.path(), "plan model.toml --dot").starts_with("digraph plan {"));
}

#[test]
fn a_file_is_planned_for_a_custom_optimizer_by_its_states_and_whole_matrices() {
    let folder = folder();
    let adam = said(folder.path(), "plan model.toml --ranks 2 --tasks");
    let lion = said(folder.path(), "plan model.toml --ranks 2 --tasks --optimizer-states 1");
    let muon = "plan model.toml --ranks 2 --tasks --optimizer-states 1 --whole-matrices *.qkv.weight";
    let muon = said(folder.path(), muon);
    let runs = |plan: &str, what: &str| plan.lines().any(|line| line.contains(what));
    assert!(runs(&adam, " adam ") && !runs(&adam, " update "), "{adam}");
    assert!(!runs(&lion, " adam ") && runs(&lion, " update ") && !runs(&lion, " transform "), "{lion}");
    assert!(runs(&muon, " update ") && runs(&muon, " transform "), "{muon}");
    let alone = run(folder.path(), "plan model.toml --whole-matrices *.qkv.weight");
    assert!(String::from_utf8(alone.stderr).unwrap().contains("--optimizer-states"));
    let idle = run(folder.path(), "plan model.toml --optimizer-states 1 --whole-matrices nowhere");
    let idle = String::from_utf8(idle.stderr).unwrap();
    assert!(idle.contains("--whole-matrices") && idle.contains("matches no weight"), "{idle}");
}

#[test]
fn a_list_of_calls_is_planned_simulated_and_tuned_like_a_decoder() {
    let folder = folder();
    let calls = include_str!("../../../../examples/simulate/calls.toml");
    std::fs::write(folder.path().join("calls.toml"), calls).unwrap();
    let tasks = said(folder.path(), "plan calls.toml --ranks 4 --tasks");
    assert!(tasks.contains("layers.7.forward") && tasks.starts_with("plan `calls`: "), "{tasks}");
    let simulated = said(folder.path(), "simulate calls.toml --cluster h200x4 --ranks 4 --depth 1");
    assert!(simulated.contains("calls, 4096 tokens per rank") && simulated.contains("tokens per second"));
    let twice = MODEL.replace("layers", "micro_batches = 2\nlayers");
    std::fs::write(folder.path().join("twice.toml"), twice).unwrap();
    let step_tokens = |model: &str| {
        let text = said(folder.path(), &format!("simulate {model} --cluster h200x4 --ranks 4"));
        let step = text.lines().find(|line| line.starts_with("step")).unwrap().to_owned();
        let words: Vec<&str> = step.split_whitespace().collect();
        let tokens = words.iter().position(|word| *word == "tokens").unwrap();
        let rate = words[tokens - 1].parse::<f64>().unwrap();
        let unit = if words[2].starts_with("ms") { 1e-3 } else { 1e-6 };
        (text, rate * unit * words[1].parse::<f64>().unwrap())
    };
    let (text, tokens) = step_tokens("twice.toml");
    assert!(text.contains("64 tokens per rank and micro-batch, 2 a step"), "{text}");
    assert!((tokens / 128.0 - 1.0).abs() < 0.05, "{text}");
    let (text, tokens) = step_tokens("model.toml");
    assert!((tokens / 64.0 - 1.0).abs() < 0.05, "{text}");
    let silent = calls.replace("tokens = 4096\n", "");
    std::fs::write(folder.path().join("silent.toml"), silent).unwrap();
    let simulated = said(folder.path(), "simulate silent.toml --cluster h200x4 --ranks 4 --depth 1");
    assert!(!simulated.contains("tokens per"), "{simulated}");
    let tuned = said(folder.path(), "tune calls.toml --cluster h200x4 --ranks 4");
    assert!(tuned.contains("trials of the tuner"), "{tuned}");
}

#[test]
fn a_list_with_a_dispatch_is_planned_for_full_slots_and_simulated_for_what_is_filled() {
    let folder = folder();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let layer = include_str!("../../../../examples/mixture_of_experts/layer.toml");
    let full = layer.replace("filled = 25", "filled = 100");
    assert_ne!(full, layer);
    write("layer.toml", layer);
    write("full.toml", &full);
    // Fingerprints are of all that a program says.
    let tasks = |name: &str| {
        let text = said(folder.path(), &format!("plan {name} --ranks 4 --mesh ep=4 --tasks"));
        text.split_once('\n').unwrap().1.to_owned()
    };
    let found = tasks("layer.toml");
    for name in ["dispatch", "combine", "backward of the combine", "backward of the dispatch"] {
        let is_it =
            |line: &str| line.contains("collective call   expert ") && line.contains(&format!("  {name}  "));
        assert!(found.lines().any(is_it), "{name}: {found}");
    }
    assert_eq!(found, tasks("full.toml"));
    let step = |name: &str| {
        let text = said(folder.path(), &format!("simulate {name} --cluster h200x4 --ranks 4 --mesh ep=4"));
        let step = text.lines().find(|line| line.starts_with("step")).unwrap().to_owned();
        let words: Vec<&str> = step.split_whitespace().collect();
        assert!(words[2].starts_with("ms"), "{step}");
        words[1].parse::<f64>().unwrap()
    };
    assert!(step("layer.toml") < 0.9 * step("full.toml"));
}

#[test]
fn a_list_with_collectives_is_planned_and_simulated_for_as_many_ranks_as_its_sizes_say() {
    let folder = folder();
    let towers = include_str!("../../../../examples/simulate/two-towers.toml");
    std::fs::write(folder.path().join("towers.toml"), towers).unwrap();
    let tasks = said(folder.path(), "plan towers.toml --ranks 8 --tasks");
    for name in ["gather texts", "gather pictures", "give texts back", "give pictures back"] {
        let line = tasks.lines().find(|line| line.contains(name)).unwrap();
        assert!(line.contains("collective call"), "{line}");
    }
    let line = "simulate towers.toml --cluster h100x8-ib --ranks 8 --trace step.json";
    assert!(said(folder.path(), line).contains("exposed"));
    let trace = std::fs::read_to_string(folder.path().join("step.json")).unwrap();
    assert!(trace.contains("collective call gather texts"), "it is on the timeline");
    let other = run(folder.path(), "plan towers.toml --ranks 4");
    let other = String::from_utf8(other.stderr).unwrap();
    assert!(
        other.contains("gather texts") && other.contains("declare `texts_of_all` with 1572864"),
        "{other}"
    );
}

#[test]
fn simulate_writes_a_trace_that_trace_reads_back() {
    let folder = folder();
    let line =
        "simulate model.toml --cluster h200x4 --ranks 4 --depth 2 --trace step.json --picture step.svg";
    let text = said(folder.path(), line);
    for word in ["simulated: 4 ranks on `h200x4`", "exposed", "of the GPU's", "communicator 1"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let picture = std::fs::read_to_string(folder.path().join("step.svg")).unwrap();
    assert!(picture.contains("prefetch.depth = 2"), "{picture}");
    let summary = said(folder.path(), "trace step.json --picture again.svg");
    assert!(summary.starts_with("1 rank, ") && summary.contains("simulated: 4 ranks"), "{summary}");
    assert!(folder.path().join("again.svg").exists());
}

/// What steers a terminal is escaped, wherever a name of a file is printed.
#[test]
fn names_of_a_file_do_not_steer_the_terminal() {
    let folder = folder();
    let list = "name = 'small'\ntokens = 64\n[[weight]]\nname = 'w'\nrows = 64\ncols = 64\n\
                [[call]]\nname = 'forward'\nphase = 'forward'\nuses = [{ weight = 'w' }]\n";
    let list = list.replace('\'', "\"");
    std::fs::write(folder.path().join("list.toml"), &list).unwrap();
    let file = include_str!("../../../plan/src/cluster/presets/h200x4.toml");
    let cluster = file.replace("name = \"h200x4\"", "name = \"h200\\u001b[2J\"");
    std::fs::write(folder.path().join("cluster.toml"), cluster).unwrap();
    for line in [
        "simulate list.toml --cluster cluster.toml --ranks 2",
        "simulate list.toml --cluster cluster.toml --ranks 2 --auto",
    ] {
        let said = said(folder.path(), line);
        assert!(!said.contains('\u{1b}') && said.contains("\\u{1b}[2J"), "{line}: {said:?}");
    }
    // A model's own names are refused before any is printed.
    for (name, what) in [("small", "a program"), ("w", "a weight")] {
        let hostile = list.replace(&format!("\"{name}\""), &format!("\"{name}\\u001b[2J\""));
        std::fs::write(folder.path().join("list.toml"), hostile).unwrap();
        let refused = String::from_utf8(run(folder.path(), "plan list.toml --ranks 2").stderr).unwrap();
        let words = format!("{what} is named `{name}\\u{{1b}}[2J`");
        assert!(!refused.contains('\u{1b}') && refused.contains(&words), "{refused:?}");
    }
}

#[test]
fn what_is_wrong_is_reported_with_its_file_and_line_and_nothing_is_written() {
    let folder = folder();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("typo.toml", &MODEL.replace("layers", "layer"));
    write("odd.toml", &MODEL.replace("hidden = 256", "hidden = 250").replace("heads = 4", "heads = 5"));
    write("cluster.toml", "name = 'x'\ngpus_per_node = 0\n");
    write("notes.txt", "not a trace");
    write("empty.json", "[]");
    write("rules.toml", "[weights]\nmatch = '*'\nformat = 'bf16'\n");
    write("table.toml", "name = 'x'\n[call]\nname = 'y'\n");
    std::fs::write(folder.path().join("latin.toml"), b"name = 'gr\xfc\xdfe'").unwrap();
    let calls = include_str!("../../../../examples/simulate/calls.toml");
    write("calls.toml", &calls.replacen("{ weight = \"layers.#.mix\" }", "{ weight = \"layer.#.mix\" }", 1));
    for (line, complaint) in [
        ("plan typo.toml", "typo.toml:2: unknown key `layer`; did you mean `layers`?"),
        ("plan odd.toml", "`odd.toml`: "),
        ("plan none.toml", "cannot read the model `none.toml`"),
        (
            "plan model.toml --cluster .",
            "cluster `.` is neither a file, as `warpweft calibrate` writes them, nor a preset; the presets are h200x4, ",
        ),
        ("plan calls.toml", "`call.0.uses.0.weight`: no weight is named `layer.0.mix`"),
        ("simulate model.toml --cluster cluster.toml --ranks 2", "cluster.toml:2: `gpus_per_node` is 0"),
        ("simulate model.toml --cluster h300 --ranks 2 --trace t.json", "the presets are h200x4, "),
        ("simulate model.toml --cluster h200x4 --ranks 8 --trace t.json", "use at most 4 ranks"),
        ("trace notes.txt", "`notes.txt`: not a chrome trace"),
        ("trace none.json", "cannot read `none.json`"),
        ("trace empty.json", "`empty.json` holds no slice"),
        ("plan latin.toml", "save it as UTF-8"),
        ("plan model.toml --config latin.toml", "save it as UTF-8"),
        (
            "plan model.toml --config rules.toml",
            "rules.toml:1: `weights` is a table, and the rules are a list",
        ),
        ("plan table.toml", "table.toml:2: `call` is a table; set it to a list of tables"),
        ("simulate model.toml --cluster H200x4 --ranks 2", "did you mean `h200x4`?"),
    ] {
        let output = run(folder.path(), line);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{line}: {said}");
        assert!(said.starts_with("error: ") && said.contains(complaint), "{line}: {said}");
    }
    assert!(!folder.path().join("t.json").exists());
}

#[test]
fn no_file_is_replaced_unless_it_is_said() {
    let folder = folder();
    let line = "simulate model.toml --cluster h200x4 --ranks 2 --picture step.svg";
    std::fs::write(folder.path().join("step.svg"), "mine").unwrap();
    let output = run(folder.path(), line);
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(complaint.contains("`step.svg` exists") && complaint.contains("--force"), "{complaint}");
    assert_eq!(std::fs::read_to_string(folder.path().join("step.svg")).unwrap(), "mine");
    said(folder.path(), &format!("{line} --force"));
    assert!(std::fs::read_to_string(folder.path().join("step.svg")).unwrap().starts_with("<svg"));
}

#[test]
fn what_is_read_is_never_replaced() {
    let folder = folder();
    said(folder.path(), "simulate model.toml --cluster h200x4 --ranks 2 --trace step.json");
    let trace = std::fs::read_to_string(folder.path().join("step.json")).unwrap();
    for line in [
        "trace step.json --picture ./step.json --force",
        "simulate model.toml --cluster h200x4 --ranks 2 --trace model.toml --force",
        "tune model.toml --cluster h200x4 --ranks 2 --picture model.toml --force",
    ] {
        let output = run(folder.path(), line);
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(complaint.contains("is both input and output"), "{line}: {complaint}");
    }
    assert_eq!(std::fs::read_to_string(folder.path().join("step.json")).unwrap(), trace);
    assert_eq!(std::fs::read_to_string(folder.path().join("model.toml")).unwrap(), MODEL);
}

#[test]
fn plan_says_why_a_task_stands_where_it_stands_and_what_a_step_is_expected_to_take() {
    let folder = folder();
    let totals = said(folder.path(), "plan model.toml --cluster h200x4 --ranks 4 --auto");
    for word in [
        "expected",
        "times the bound below",
        "no schedule exposes less than",
        "slack least",
        "policy = \"auto\", counted with `h200x4`",
    ] {
        assert!(totals.contains(word), "{word}: {totals}");
    }
    let tasks = said(folder.path(), "plan model.toml --cluster h200x4 --ranks 4 --tasks");
    assert!(
        tasks.starts_with("plan `train`: ") && tasks.contains("no schedule exposes less than"),
        "{tasks}"
    );
    let why = said(folder.path(), "plan model.toml --cluster h200x4 --ranks 4 --depth 1 --why 12");
    assert!(why.starts_with("task 12 (") && why.contains("  lane ") && why.contains("  runs "), "{why}");
    let named = said(folder.path(), "plan model.toml --ranks 4 --depth 1 --why blocks.1.up");
    for word in ["all-gather of blocks.1.up.weight", "requested after", "a fence of its own", "before it:"] {
        assert!(named.contains(word), "{word}: {named}");
    }
    let every = said(folder.path(), "plan model.toml --ranks 4 --depth 1 --why of");
    for task in every.split("\ntask ") {
        let after: Vec<&str> = task.lines().filter(|line| line.starts_with("  after")).collect();
        assert!((1..after.len()).all(|at| !after[at..].contains(&after[at - 1])), "{task}");
    }
    let explained = every.lines().filter(|line| line.starts_with("task ")).count();
    assert!(explained == 50 && every.contains(" more tasks match `of`: "), "{explained}: {every}");
    assert!(!named.contains(" more tasks match "), "{named}");
    let complaint = String::from_utf8(run(folder.path(), "plan model.toml --why nothing").stderr).unwrap();
    assert!(complaint.contains("no task of the plan is `nothing`"), "{complaint}");
}

#[cfg(unix)]
#[test]
fn what_is_no_plain_file_is_not_replaced_by_a_picture() {
    let folder = folder();
    let _listener = std::os::unix::net::UnixListener::bind(folder.path().join("socket")).unwrap();
    let line = "simulate model.toml --cluster h200x4 --ranks 2 --force --picture socket";
    let refused = String::from_utf8(run(folder.path(), line).stderr).unwrap();
    assert!(refused.contains("no plain file") && refused.contains("name another file"), "{refused}");
    assert!(!folder.path().join("socket").is_file());
}

#[test]
fn an_option_is_named_for_what_it_sets() {
    let folder = folder();
    for (option, key) in [
        ("--budget 0", "memory.budget"),
        ("--bytes 0", "prefetch.bytes"),
        ("--budget 0 --auto", "memory.budget"),
    ] {
        let complaint = run(folder.path(), &format!("plan model.toml {option}")).stderr;
        let complaint = String::from_utf8(complaint).unwrap();
        let told = format!("error: {}: `{key}` is ", option.split(' ').next().unwrap());
        assert!(complaint.starts_with(&told), "{option}: {complaint}");
    }
}

#[test]
fn axes_of_the_mesh_come_from_the_flag_and_weights_that_say_nothing_of_them_are_refused() {
    let folder = folder();
    let calls = include_str!("../../../../examples/simulate/calls.toml");
    std::fs::write(folder.path().join("calls.toml"), calls).unwrap();
    let rules = "[[weights]]\nmatch = 'layers.*'\ntensor_parallel = 'column'\n\n[[weights]]\nmatch = 'scale'\ntensor_parallel = 'split_tokens'\n";
    std::fs::write(folder.path().join("run.toml"), rules).unwrap();
    let planned = said(folder.path(), "plan calls.toml --ranks 8 --mesh tp=2 --config run.toml");
    for word in ["8 ranks (4 shards × tp 2)", "all-gather (shard)", "all-reduce (world)"] {
        assert!(planned.contains(word), "{word}: {planned}");
    }
    let sizes = said(folder.path(), "plan model.toml --ranks 8 --mesh tp=2,cp=2");
    for word in ["8 ranks (2 shards × cp 2 × tp 2)", "collective call (tensor)", "collective call (context)"]
    {
        assert!(sizes.contains(word), "{word}: {sizes}");
    }
    for (line, word) in [
        ("plan calls.toml --ranks 8 --mesh tp=2", "`layers.0.mix` says nothing of tensor parallelism"),
        ("plan calls.toml --ranks 8 --mesh tp=3 --config run.toml", "set mesh.tp to a divisor of 8"),
        ("plan model.toml --ranks 8 --mesh tp=2,dp_shard=3", "leave mesh.dp_shard out"),
        (
            "plan model.toml --ranks 8 --mesh pp=2",
            "axes of a mesh are dp_replicate, dp_shard, cp, tp, ep, ep_shard and optimizer_instances",
        ),
    ] {
        let refused = run(folder.path(), line);
        let complaint = String::from_utf8(refused.stderr).unwrap();
        assert!(!refused.status.success() && complaint.contains(word), "{line}: {complaint}");
    }
}

#[test]
fn replicas_come_from_the_flag_or_the_configuration_and_every_collective_names_its_group() {
    let folder = folder();
    std::fs::write(folder.path().join("run.toml"), "mesh.dp_replicate = 2\n").unwrap();
    let totals = said(folder.path(), "plan model.toml --ranks 4 --config run.toml");
    for word in [
        "all-gather (shard)",
        "all-reduce (replicate)",
        "gather records (world)",
        "4 ranks (2 shards × 2 replicas)",
    ] {
        assert!(totals.contains(word), "{word}: {totals}");
    }
    let flag = said(folder.path(), "plan model.toml --ranks 4 --mesh dp_replicate=2");
    assert_eq!(flag, totals);
    let one = said(folder.path(), "plan model.toml --ranks 4 --mesh dp_replicate=1 --config run.toml");
    assert!(one.contains("4 ranks\n") && !one.contains("(shard)"), "{one}");
    let tasks = said(folder.path(), "plan model.toml --ranks 4 --mesh dp_replicate=2 --tasks");
    let sum = tasks.lines().find(|line| line.contains("all-reduce") && line.contains("replicate"));
    assert!(sum.is_some() && tasks.contains(" group "), "{tasks}");

    let simulated =
        said(folder.path(), "simulate model.toml --cluster h100x8-ib --ranks 16 --mesh dp_replicate=2");
    assert!(simulated.contains("16 ranks (8 shards × 2 replicas) on `h100x8-ib`, 2 × 8"), "{simulated}");
    let tuned = said(folder.path(), "tune model.toml --cluster h100x8-ib --ranks 16 --mesh dp_replicate=2");
    assert!(tuned.contains("mesh.dp_replicate = 2"), "{tuned}");

    let refused = run(folder.path(), "plan model.toml --ranks 4 --mesh dp_replicate=3");
    let complaint = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && complaint.contains("4 ranks cannot hold 3 replicas"), "{complaint}");
}
