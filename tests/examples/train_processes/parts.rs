//! Sharded checkpoints that several processes on GPUs write, each for its own ranks, and others read.

use super::run::{Gpus, Run};
use super::{gpus, has_nccl, skipped};

/// CK-2: whoever wrote them, and whoever reads them, training goes on bit for bit. Notes, steps and scales are in
/// the files; planes are made again. Once with processes that NCCL sees as two hosts.
#[test]
fn processes_go_on_from_the_parts_of_others_with_the_losses_of_a_run_that_was_not_interrupted() {
    let Some((count, _alone)) = gpus("sharded checkpoints") else { return };
    let folder = tempfile::tempdir().unwrap();
    let run = |processes: u32, hosts, capture, arguments: &[&str]| {
        let (folder, gpus, steps) = (folder.path(), Gpus::Own(count / processes), 12);
        let run = Run { folder, processes, gpus, steps, variables: &[], hosts, capture, arguments };
        run.train().losses
    };
    let runs = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut hosts = vec![1];
    if has_nccl() {
        hosts.push(2);
    } else {
        skipped("parts of several hosts", "NCCL is missing");
    }
    let expected = run(1, 1, false, &["--save", &runs("one"), "--save-every", "5"]);
    let tail =
        |steps: usize| expected.lines().skip(steps).map(|line| format!("{line}\n")).collect::<String>();
    for host in hosts {
        for capture in [false, true] {
            let saved = runs(&format!("two-{host}-{capture}"));
            let whole = run(2, host, capture, &["--save", &saved, "--save-every", "5"]);
            assert_eq!(whole, expected, "a save between steps changes nothing");
            // What two processes saved goes on in one, and the other way round.
            let (of_two, of_one) = (format!("{saved}/step-5"), format!("{}/step-10", runs("one")));
            assert_eq!(
                run(1, 1, capture, &["--resume", &of_two]),
                tail(5),
                "{host} hosts, captured: {capture}"
            );
            assert_eq!(
                run(2, host, capture, &["--resume", &of_one]),
                tail(10),
                "{host} hosts, captured: {capture}"
            );
        }
    }
}

/// Another number of ranks reads every row: its losses begin where those of the others left off.
#[test]
fn one_gpu_goes_on_from_the_parts_of_all_and_all_from_those_of_one() {
    let Some((count, _alone)) = gpus("parts of another number of ranks") else { return };
    let folder = tempfile::tempdir().unwrap();
    let saved = |ranks: u32| folder.path().join(format!("of-{ranks}")).to_str().unwrap().to_owned();
    let run = |ranks, arguments: &[&str]| {
        let (folder, gpus) = (folder.path(), Gpus::Own(ranks));
        let run = Run {
            folder,
            processes: 1,
            gpus,
            steps: 20,
            variables: &[],
            hosts: 1,
            capture: false,
            arguments,
        };
        run.train().losses.lines().map(|line| line.parse::<f64>().unwrap()).collect::<Vec<_>>()
    };
    for (writes, reads) in [(count, 1), (1, count)] {
        let whole = run(writes, &["--save", &saved(writes), "--save-every", "10"]);
        let resumed = run(reads, &["--resume", &format!("{}/step-10", saved(writes))]);
        // Batches are other ones, so losses are near and no more.
        let near = |one: f64, other: f64| (one / other - 1.0).abs() < 0.1;
        assert!(resumed.len() == 10 && near(resumed[0], whole[10]), "{whole:?}, {resumed:?}");
        assert!(resumed[0] < 0.9 * whole[0], "it does not begin anew: {whole:?}, {resumed:?}");
    }
}
