//! Gradient accumulation, over processes and hosts.

use super::run::{Gpus, Run};
use super::{gpus, has_nccl, skipped};

/// EX-1 and EX-2: each part of a sum is one step in all processes, issued or captured.
#[test]
fn gradients_added_up_over_steps_give_the_same_losses_in_one_process_and_in_several() {
    let Some((count, _alone)) = gpus("gradients of several steps") else { return };
    let folder = tempfile::tempdir().unwrap();
    let run = |processes: u32, hosts, capture| {
        let (folder, gpus, steps) = (folder.path(), Gpus::Own(count / processes), 8);
        let arguments = &["--accumulate", "3"];
        Run { folder, processes, gpus, steps, variables: &[], hosts, capture, arguments }.train().losses
    };
    let mut hosts = vec![1];
    if has_nccl() {
        hosts.push(2);
    } else {
        skipped("gradients of several steps over hosts", "NCCL is missing");
    }
    let expected = run(1, 1, false);
    assert_eq!(run(1, 1, true), expected, "captured");
    for host in hosts {
        for capture in [false, true] {
            assert_eq!(run(2, host, capture), expected, "{host} hosts, captured: {capture}");
        }
    }
}
