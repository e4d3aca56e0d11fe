//! The numbered examples, and those of tensor parallelism and of experts.

use std::process::{Command, Stdio};

use super::super::turn::skip;
use super::{example, run, says};

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
