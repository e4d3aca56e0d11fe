//! Runs of the numbered examples and the main job, with the output that their readers expect.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::turn::skip;

/// Where cargo puts examples it built beside this test.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(
        built.exists(),
        "{} is missing: plain `cargo test` builds it, `cargo build --examples` too",
        built.display()
    );
    built
}

fn run(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(example(name)).args(arguments).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {errors}");
    text.into_owned()
}

fn says(name: &str, arguments: &[&str], wanted: &str) {
    let text = run(name, arguments);
    assert!(text.contains(wanted), "{name} does not say {wanted:?}:\n{text}");
}

#[test]
fn the_numbered_examples_run() {
    says("01_print_a_plan", &[], "partial cast");
    says("01_print_a_plan", &["--dot", "--depth", "0"], "digraph plan");
    says("02_plug_in_a_closure", &[], "step 199");
    says("03_mixed_formats", &[], "3 buckets on 4 ranks");
    says("04_custom_shards", &[], "gathered bytes equal the whole weight's: true");
    let picture = tempfile::tempdir().unwrap().path().with_extension("svg");
    let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/train_depth_1.json");
    says("05_read_a_trace", &[trace, picture.to_str().unwrap()], "steps, as shares of step time");
    assert!(std::fs::read_to_string(&picture).unwrap().starts_with("<svg"));
    std::fs::remove_file(&picture).unwrap();
    let picture = picture.with_extension("curve.svg");
    says("09_weak_scaling", &[picture.to_str().unwrap()], "3072");
    assert!(std::fs::read_to_string(&picture).unwrap().contains("published for GTP"));
    std::fs::remove_file(picture).unwrap();
    says("06_evaluate_beside_training", &[], "after all");
    says("07_export_and_import", &[], "one rank goes on");
    says("12_custom_optimizer", &[], "of AdamW's");
    says("15_adamw_with_ema", &[], "of their average 0.0");
}

/// A rank that transformed only its own rows would have another loss from the second step on.
#[test]
fn the_example_of_muon_learns_and_has_the_losses_of_one_rank() {
    let text = run("14_muon", &[]);
    let of = |ranks: &str| -> Vec<f32> {
        let lines = text.lines().filter(|line| line.starts_with(ranks));
        lines.map(|line| line.split(' ').next_back().unwrap().parse().unwrap()).collect()
    };
    let (alone, together) = (of("ranks 1,"), of("ranks 2,"));
    assert_eq!((alone.len(), together.len()), (4, 4), "{text}");
    assert!(alone[3] < 0.2 * alone[0], "{text}");
    assert!(alone.iter().zip(&together).all(|(one, two)| (one - two).abs() < 0.01 * one), "{text}");
}

/// A rank that learned only of its own samples would have another loss from the first step on.
#[test]
fn the_example_of_a_loss_over_all_ranks_learns_and_has_the_losses_of_one_rank() {
    let text = run("13_loss_over_the_whole_batch", &[]);
    let number = |line: &str| line.split(' ').next_back().unwrap().parse::<f32>().unwrap();
    let steps: Vec<f32> = text.lines().filter(|line| line.starts_with("step")).map(number).collect();
    assert!(steps[steps.len() - 1] < 0.2 * steps[0], "{text}");
    assert!(number(text.lines().last().unwrap()) < 1e-4, "{text}");
}

/// How far the losses of every mesh were from those they are compared with, for as many meshes as are expected.
fn apart(text: &str, meshes: usize) {
    let lines = text.lines().filter(|line| line.contains(" never further from one "));
    let apart = lines.map(|line| line.split(" than ").nth(1).unwrap().split(' ').next().unwrap());
    let apart: Vec<f32> = apart.map(|apart| apart.parse().unwrap()).collect();
    assert_eq!(apart.len(), meshes, "{text}");
    assert!(apart.iter().all(|apart| *apart < 1e-5), "{text}");
}

/// A divisor that counted ranks of a group, or a sum that left a part out, would be seen in the first steps.
#[test]
fn the_example_of_tensor_parallelism_has_the_losses_of_one_rank_on_every_mesh() {
    apart(&run("tensor_parallel", &["--steps", "6"]), 3);
}

/// What the example of experts says of steps that were skipped.
fn goes_on_after_a_slot_that_was_too_small(text: &str) {
    let skipped = text.lines().find_map(|line| line.strip_suffix(" of 12 steps skipped")).unwrap();
    let skipped: u32 = skipped.split(", ").last().unwrap().parse().unwrap();
    assert!((1..12).contains(&skipped), "{text}");
    assert!(text.contains("rows in slot ") && text.contains("has a capacity of "), "{text}");
}

/// A row that came to another expert, or a gradient that came back to another token, would be seen in the first steps.
#[test]
fn the_example_of_experts_has_the_losses_of_one_rank_and_goes_on_after_a_slot_that_was_too_small() {
    let text = run("mixture_of_experts", &["--steps", "12"]);
    apart(&text, 3);
    goes_on_after_a_slot_that_was_too_small(&text);
}

/// The closures of a GPU, beside those of the CPU: one rank, and every mesh.
#[test]
fn the_example_of_experts_has_the_losses_of_a_cpu_rank_on_gpus() {
    let name = "mixture_of_experts";
    let output = Command::new(example(name)).args(["--device", "cuda", "--steps", "12"]).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("--device cuda cannot be followed: ") {
        assert_eq!((output.status.code(), errors.lines().count()), (Some(1), 1), "{errors}");
        return skip("the experts' losses", &errors.trim());
    }
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    apart(&text, 4);
    goes_on_after_a_slot_that_was_too_small(&text);
}

/// Without a GPU they say so; with one, the loss falls.
#[test]
fn the_numbered_examples_for_a_gpu_learn_where_there_is_one() {
    for (name, lines) in [("08_linear_layer_on_a_gpu", 5), ("10_own_kernel_on_a_gpu", 6)] {
        let text = run(name, &[]);
        if text.contains("nothing to compute on: ") {
            eprintln!("skipped: {name}: {text}");
            continue;
        }
        let losses: Vec<f32> =
            text.lines().map(|line| line.split("loss ").nth(1).unwrap().parse().unwrap()).collect();
        assert_eq!(losses.len(), lines, "{text}");
        assert!(losses[lines - 1] < 0.5 * losses[0], "{text}");
    }
}

#[test]
fn the_main_job_trains_traces_and_explains_itself() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, out) = (folder.path().join("trace.json"), folder.path().join("out"));
    let (trace, out) = (trace.to_str().unwrap(), out.to_str().unwrap());
    let flags = [
        "--device",
        "cpu",
        "--ranks",
        "2",
        "--batch",
        "1",
        "--steps",
        "4",
        "--check",
        "--capture",
        "--trace",
        trace,
        "--out",
        out,
    ];
    let text = run("train", &flags);
    assert!(text.contains("held-out text") && text.contains("# built-in train.toml:5"), "{text}");
    let recorded = warpweft_session::trace::read_trace(std::fs::File::open(trace).unwrap()).unwrap();
    assert!(recorded.timeline.slices.iter().any(|slice| slice.category == "all-gather"));
    assert_eq!(recorded.host.len(), 2, "a lane for each rank's thread is in the same file");
    assert!(recorded.host.iter().all(|lane| lane.spans > 0), "with spans, though first steps are not traced");
    assert!(std::fs::read_to_string(format!("{out}/loss.svg")).unwrap().contains("unigram entropy"));
    let tuned =
        ["--device", "cpu", "--ranks", "1", "--batch", "1", "--steps", "7", "--tune", "6", "--out", out];
    says("train", &tuned, "tune.steps = 0");
    let short =
        ["--device", "cpu", "--ranks", "1", "--batch", "1", "--steps", "2", "--trace", trace, "--out", out];
    let text = run("train", &short);
    for word in
        ["the trace will lack steps", "holds no training step", "bytes on 1 rank\n", "that of the last step"]
    {
        assert!(text.contains(word), "{word}: {text}");
    }
    let mixed =
        ["--device", "cpu", "--ranks", "1", "--batch", "1", "--steps", "4", "--trace", trace, "--out", out];
    let text = run("train", &mixed);
    assert!(text.contains("holds only 2 training steps"), "{text}");
    let summary = warpweft_session::trace::Summary::read(std::fs::File::open(trace).unwrap()).unwrap();
    let programs: Vec<_> = summary.programs.iter().map(|one| (one.program.as_str(), one.steps)).collect();
    assert_eq!(programs, [("train", 2), ("evaluate", 2)]);
    says("train", &["--help"], "--depth");
    says("train", &["--help"], "--devices");
    says("train", &["--plan", "--format", "mxfp8", "--device", "cpu"], "partial cast");
    says("train", &["--plan", "--ranks", "65536", "--device", "cpu"], "partial cast");
    let before = std::fs::read(trace).unwrap();
    let mut alone = Command::new(example("train"));
    let alone = alone.args(["--plan", "--device", "cpu"]).env("WARPWEFT_TRACE__PATH", trace);
    assert!(alone.env("WARPWEFT_TRACE__ENABLED", "true").output().unwrap().status.success());
    assert!(std::fs::read(trace).unwrap() == before, "a plan alone leaves an older trace as it is");
    let replicated = [
        "--device",
        "cpu",
        "--ranks",
        "4",
        "--replicate",
        "2",
        "--batch",
        "1",
        "--steps",
        "2",
        "--check",
        "--out",
        out,
    ];
    let text = run("train", &replicated);
    for word in ["4 ranks (2 shards × 2 replicas)", "replicate = 2", "held-out text"] {
        assert!(text.contains(word), "{word}: {text}");
    }
}

#[test]
fn the_main_job_adds_up_gradients_with_the_same_losses_issued_and_captured() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (out, losses) = (path("out"), path("losses"));
    let flags = [
        "--device", "cpu", "--ranks", "2", "--batch", "1", "--steps", "2", "--out", &out, "--losses", &losses,
    ];
    let train = |more: &[&str]| {
        let text = run("train", &[&flags[..], more].concat());
        assert!(text.contains("received per batch") || more.is_empty(), "{text}");
        std::fs::read_to_string(&losses).unwrap()
    };
    let issued = train(&["--accumulate", "3"]);
    assert_eq!(issued.lines().count(), 2, "a loss for each step of the optimizer");
    assert_eq!(train(&["--accumulate", "3", "--capture", "--check"]), issued);
    assert_ne!(train(&[]), issued, "of other batches");
}

/// With the batches and learning rates of the run that was not interrupted, and so its losses.
#[test]
fn the_main_job_goes_on_from_parts_with_the_losses_of_a_run_that_was_not_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (out, losses, runs) = (path("out"), path("losses"), path("runs"));
    let flags = [
        "--device", "cpu", "--ranks", "2", "--batch", "1", "--steps", "3", "--out", &out, "--losses", &losses,
    ];
    let train = |more: &[&str]| {
        run("train", &[&flags[..], more].concat());
        std::fs::read_to_string(&losses).unwrap()
    };
    let whole = train(&["--save", &runs, "--save-every", "2"]);
    let resumed = train(&["--resume", &format!("{runs}/step-2")]);
    assert!(resumed.lines().count() == 1 && whole.ends_with(&resumed), "{whole}\n{resumed}");
    let refusal = |more: &[&str]| {
        let output = Command::new(example("train")).args(flags).args(more).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let said = refusal(&["--resume", &format!("{runs}/step-3")]);
    assert!(said.contains("--resume: ") && said.contains("request more steps"), "{said}");
    let said = refusal(&["--resume", &format!("{runs}/step-2"), "--seed", "99"]);
    assert!(said.contains("go on with the same, or batches"), "{said}");
    let said = refusal(&["--resume", &runs]);
    assert!(said.contains("--resume: ") && said.contains("no checkpoint.json"), "{said}");
    for damaged in [false, true] {
        if damaged {
            std::fs::write(folder.path().join("runs/step-3/checkpoint.json"), "{").unwrap();
        }
        let said = refusal(&["--save", &runs]);
        assert!(
            said.contains("--save: ") && said.contains("step-3 holds a checkpoint or what is left"),
            "{said}"
        );
    }
    assert!(refusal(&["--save-every", "2"]).contains("--save <FOLDER>"));
}

/// The configuration of the main job, with these rules.
fn with_rules(folder: &std::path::Path, rules: &str) -> String {
    let path = folder.join("rules.toml");
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/train/train.toml");
    std::fs::write(&path, format!("{}\n{rules}", std::fs::read_to_string(own).unwrap())).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn the_main_job_trains_beside_frozen_weights() {
    let folder = tempfile::tempdir().unwrap();
    let (out, losses) = (folder.path().join("out"), folder.path().join("losses"));
    let (out, losses) = (out.to_str().unwrap(), losses.to_str().unwrap());
    let mlps = with_rules(folder.path(), "[[weights]]\nmatch = \"blocks.*.mlp.*\"\nfrozen = true\n");
    let flags = ["--device", "cpu", "--ranks", "2", "--batch", "2", "--check", "--out", out];
    let flags = [&flags[..], &["--losses", losses, "--config"]].concat();
    let text = run("train", &[&flags[..], &[&mlps, "--steps", "8"]].concat());
    for line in ["match = \"blocks.*.mlp.*\"", "frozen = true", "held-out text"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let losses: Vec<f32> =
        std::fs::read_to_string(losses).unwrap().lines().map(|loss| loss.parse().unwrap()).collect();
    assert_eq!(losses.len(), 8);
    assert!(losses[6..].iter().all(|loss| *loss < losses[0] - 0.5), "{losses:?}");
    // With its table frozen the embedding's backward has nothing to do.
    let plan = ["--device", "cpu", "--ranks", "2", "--plan", "--config"];
    assert!(run("train", &[&plan[..], &[&mlps]].concat()).contains("embed.backward"));
    let table = with_rules(folder.path(), "[[weights]]\nmatch = \"embedding.*\"\nfrozen = true\n");
    assert!(!run("train", &[&plan[..], &[&table]].concat()).contains("embed.backward"));
    run("train", &[&flags[..], &[&table, "--steps", "2"]].concat());
}

#[test]
fn the_main_job_refuses_what_it_cannot_do_with_one_clear_line() {
    let refusal = |arguments: &[&str]| {
        let output = Command::new(example("train")).args(arguments).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(refusal(&["--format", "nvfp4_1d"]).contains("activations"));
    assert!(refusal(&["--format", "fp7"]).contains("nvfp4_2d"));
    assert!(refusal(&["--config", "/nowhere/at/all.toml"]).contains("/nowhere/at/all.toml"));
    assert!(refusal(&["--cluster", "h300"]).contains("the presets are h200x4"));
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    // Before anything is trained, or written.
    let small = refusal(&["--device", "cpu", "--ranks", "5", "--cluster", "h200x4", "--out", out]);
    assert!(small.contains("--cluster: ") && small.contains("h200x4"), "{small}");
    assert_eq!(std::fs::read_dir(out).unwrap().count(), 0);
    let own = with_rules(folder.path(), "");
    for flag in ["--losses", "--trace"] {
        let before = std::fs::read(&own).unwrap();
        let said = refusal(&["--device", "cpu", "--ranks", "1", "--out", out, "--config", &own, flag, &own]);
        assert!(said.contains(&format!("both input (--config) and output ({flag})")), "{said}");
        assert!(std::fs::read(&own).unwrap() == before);
    }
    for (flag, value, complaint) in [
        ("--ranks", "0", "0 is not in 1..=65536"),
        ("--depth", "-1", "-1 is not in 0..=64"),
        ("--depth", "65", "65 is not in 0..=64"),
        ("--tune", "-1", "-1 is not in 0"),
        ("--devices", "0,x", "`x` is no GPU number"),
    ] {
        let said = refusal(&[flag, value, "--device", "cpu"]);
        assert!(said.contains(flag) && said.contains(complaint), "{said}");
    }
    for flag in ["--trace", "--losses"] {
        let said = refusal(&["--plan", flag, "file"]);
        assert!(said.contains("--plan") && said.contains(flag), "{said}");
    }
    assert!(refusal(&["--ranks", "65536", "--device", "cpu"]).contains("at most 64 train"));
    assert!(refusal(&["--steps", "0", "--device", "cpu"]).contains("--steps"));
    assert!(refusal(&["--batch", "0", "--device", "cpu"]).contains("0 is not in 1..=1024"));
    let undivided = refusal(&["--ranks", "4", "--replicate", "3", "--device", "cpu"]);
    assert!(undivided.contains("4 ranks cannot hold 3 replicas"), "{undivided}");
    assert!(refusal(&["--device", "cpu", "--devices", "0"]).contains("leave one of them out"));
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    let said = refusal(&["--device", "cpu", "--ranks", "1", "--out", file]);
    assert!(said.contains("--out") && said.contains("README.md") && said.contains("name another"), "{said}");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let said = refusal(&["--device", "cpu", folder]);
    assert!(said.contains(&format!("no .md, .rs or .toml file below {folder}")), "{said}");
    let said = refusal(&["--device", "cpu", "--ranks", "1", "--out", folder, "--losses", folder]);
    assert!(said.contains("--losses") && said.contains(folder), "{said}");
    let trace = format!("{folder}/./loss.svg");
    let said = refusal(&["--device", "cpu", "--ranks", "1", "--out", folder, "--trace", &trace]);
    assert!(said.contains("--out and --trace would both write"), "{said}");
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "what was only tried is not left behind");
    for (flag, value, takes) in [("--tune", "5", "from 6 to 20"), ("--replicate", "0", "from 1")] {
        let said = refusal(&[flag, value, "--device", "cpu"]);
        assert!(said.starts_with(&format!("train: {flag}: ")) && said.contains(takes), "{said}");
    }
    assert!(refusal(&["--devices", "0", "--ranks", "1"]).contains("--ranks"));
    let said = refusal(&["--device", "cuda", "--devices", "4000"]);
    let missing = ["libcuda", "libnvrtc", "libcublas", "cuInit", "feature `cuda`"];
    let names_the_cause = missing.iter().any(|name| said.contains(name)) || said.contains("GPU 4000");
    assert!(names_the_cause, "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}

#[test]
fn the_main_job_says_what_a_step_was_expected_to_take() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let flags =
        ["--device", "cpu", "--ranks", "2", "--batch", "1", "--out", out, "--cluster", "h200x4", "--steps"];
    let with = |steps| run("train", &[&flags[..], &[steps]].concat());
    let text = with("12");
    assert!(text.contains("ms on `h200x4`, measured "), "{text}");
    for steps in ["1", "3"] {
        let text = with(steps);
        assert!(text.contains("forecast  not of so few steps; take more than 10"), "{steps}: {text}");
    }
}

#[test]
fn the_main_job_goes_on_when_nobody_listens() {
    let folder = tempfile::tempdir().unwrap();
    let losses = folder.path().join("losses");
    let (out, file) = (folder.path().to_str().unwrap(), losses.to_str().unwrap());
    let unheard = |arguments: &[&str]| {
        let mut job = Command::new(example("train"));
        let mut job = job.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(job.stdout.take());
        let output = job.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    unheard(&[
        "--device", "cpu", "--ranks", "1", "--batch", "1", "--steps", "2", "--out", out, "--losses", file,
    ]);
    assert_eq!(std::fs::read_to_string(losses).unwrap().lines().count(), 2);
    assert!(folder.path().join("loss.svg").exists());
    unheard(&["--device", "cpu", "--plan"]);
}

#[test]
fn a_trace_that_cannot_be_written_at_the_end_takes_no_result_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut job = Command::new(example("train"));
    job.args(["--device", "cpu", "--ranks", "1", "--batch", "1", "--steps", "8", "--out"]).arg(folder.path());
    job.arg("--losses").arg(path("losses")).arg("--trace").arg(path("trace.json"));
    let mut job = job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(job.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(told.any(|line| line == "settings"), "it ended before it trained");
    // Eight steps and an evaluation later it finds what is no file there.
    std::fs::create_dir(path("trace.json")).unwrap();
    let told: Vec<String> = told.collect();
    let output = job.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("trace.json"), "{said}");
    assert!(told.iter().any(|line| line.contains("held-out text")), "{told:?}");
    assert_eq!(std::fs::read_to_string(path("losses")).unwrap().lines().count(), 8);
    assert!(path("loss.svg").exists());
}

#[test]
fn the_numbered_examples_are_quiet_when_nobody_reads_on() {
    let folder = tempfile::tempdir().unwrap();
    let picture = folder.path().join("picture.svg");
    for name in ["01_print_a_plan", "02_plug_in_a_closure", "03_mixed_formats", "05_read_a_trace"] {
        let mut job = Command::new(example(name));
        if name == "05_read_a_trace" {
            let trace = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/train_depth_1.json");
            job.arg(trace).arg(&picture);
        }
        let mut job = job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(job.stdout.take());
        let output = job.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("panicked"), "{name}: {said}");
    }
    assert!(picture.exists(), "what else they do is done");
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_main_job_after_a_step_with_what_was_done() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut job = Command::new(example("train"));
    job.args(["--device", "cpu", "--ranks", "1", "--batch", "1", "--steps", "1000000", "--out"])
        .arg(folder.path());
    job.arg("--losses").arg(path("losses")).arg("--trace").arg(path("trace.json"));
    let mut job = job.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(job.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(told.any(|line| line.starts_with("step   10")), "it ended before it trained");
    let sent = Command::new("kill").args(["-INT", &job.id().to_string()]).status().unwrap();
    assert!(sent.success());
    let told: Vec<String> = told.collect();
    let output = job.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(told.iter().any(|line| line.starts_with("stopped   by an interrupt after ")), "{told:?}");
    assert!(told.iter().any(|line| line.starts_with("loss ") && !line.contains("held-out")), "{told:?}");
    assert!(std::fs::read_to_string(path("losses")).unwrap().lines().count() >= 10);
    assert!(path("loss.svg").exists() && path("trace.json").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn the_main_job_says_on_stderr_that_stdout_is_full() {
    let full = std::fs::File::create("/dev/full").unwrap();
    let output = Command::new(example("train")).args(["--plan", "--device", "cpu"]).stdout(full).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("stdout could not be written"), "{said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_trace_whose_name_is_no_text_is_refused() {
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join(std::ffi::OsStr::from_bytes(b"t\xff.json"));
    let output = Command::new(example("train")).arg("--trace").arg(trace).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--trace") && said.contains("UTF-8"), "{said}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn examples_that_cannot_read_or_write_a_file_name_it() {
    let committed = concat!(env!("CARGO_MANIFEST_DIR"), "/traces/train_depth_1.json");
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
    for (arguments, advice) in [
        (&["/nowhere/trace.json"][..], "name a file"),
        (&[readme], "give the JSON file"),
        (&[committed, "/nowhere/picture.svg"], "name a file"),
    ] {
        let output = Command::new(example("05_read_a_trace")).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let file = arguments[arguments.len() - 1];
        assert!(output.status.code() == Some(1) && said.contains(file) && said.contains(advice), "{said}");
    }
}

#[test]
fn the_main_job_says_which_variable_is_missing_where_it_trains_alone() {
    let mut job = Command::new(example("train"));
    let output = job.args(["--plan", "--device", "cpu"]).env("WORLD_SIZE", "2").env_remove("RANK").output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("RANK is not set"), "{said}");
}

/// Without a GPU, `auto` trains on the CPU and says why; with some, it says which it takes.
#[test]
fn the_main_job_says_where_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let text = run("train", &["--batch", "1", "--steps", "2", "--out", folder.path().to_str().unwrap()]);
    assert!(text.contains("on the CPU, because ") || text.contains("ranks on GPU 0"), "{text}");
}
