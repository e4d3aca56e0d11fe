//! The main job trains, is traced, goes on from checkpoints, and says what it does.

use std::process::Command;

use super::{example, run, says, with_rules};

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
    let refused = |flags: &[&str], more: &[&str]| {
        let output = Command::new(example("train")).args(flags).args(more).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let refusal = |more: &[&str]| refused(&flags, more);
    let said = refusal(&["--resume", &format!("{runs}/step-3")]);
    assert!(said.contains("--resume: ") && said.contains("request more steps"), "{said}");
    let step = path("runs/step-2");
    let other_batch = flags.map(|flag| if flag == "1" { "2" } else { flag });
    for (said, of) in [
        (refusal(&["--resume", &step, "--seed", "99"]), "--seed 1"),
        (refusal(&["--resume", &step, "--accumulate", "2"]), "--accumulate 1"),
        (refused(&other_batch, &["--resume", &step]), "--batch 1"),
    ] {
        assert!(said.contains(&format!("with {of}; go on with the same, or batches")), "{said}");
    }
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

/// Without a GPU, `auto` trains on the CPU and says why; with some, it says which it takes.
#[test]
fn the_main_job_says_where_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let text = run("train", &["--batch", "1", "--steps", "2", "--out", folder.path().to_str().unwrap()]);
    assert!(text.contains("on the CPU, because ") || text.contains("ranks on GPU 0"), "{text}");
}
