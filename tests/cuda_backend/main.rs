//! The CUDA backend, driven by hand through the `Backend` trait: the bodies that hold for every backend, once with each
//! transport: copy engines that write to peers, copies as signals too, kernels, and NCCL.
//!
//! A program with a runner of its own, so that a machine without a GPU says that everything is skipped.
//! Arguments choose bodies by part of their name.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

#[path = "../backend_bodies/mod.rs"]
#[macro_use]
mod bodies;
mod device;
mod products;

use std::panic::catch_unwind;
use std::time::Instant;

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let all = [
        bodies::collectives::ALL,
        bodies::levels::ALL,
        bodies::conformance::ALL,
        bodies::delayed::ALL,
        bodies::diverged::ALL,
        bodies::collective_sessions::ALL,
        bodies::collective_calls::ALL,
        bodies::dispatch::ALL,
        bodies::dispatch_sessions::ALL,
        bodies::forgotten::ALL,
        bodies::ops::ALL,
        bodies::optimizer::ALL,
        bodies::custom_optimizer::ALL,
        bodies::parts::ALL,
        bodies::captured::ALL,
        bodies::tensor::ALL,
        bodies::expert_parallel::ALL,
        bodies::cast_in_update::ALL,
        bodies::accumulated::ALL,
        bodies::background_saves::ALL,
        bodies::replicas::ALL,
        bodies::replay::ALL,
        bodies::scale_groups::ALL,
        bodies::scales::ALL,
        bodies::slices::ALL,
        bodies::squares::ALL,
    ]
    .concat();
    let chosen: Vec<_> = all
        .into_iter()
        .filter(|(name, _)| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str())))
        .collect();
    // Held to the end, so that contexts are made once and not in every body.
    let _every_gpu = match device::every_gpu() {
        Ok(world) => world,
        Err(reason) => {
            println!("skipped: {} bodies of the CUDA backend, because {reason}", chosen.len());
            return;
        }
    };
    let mut failed = Vec::new();
    for way in device::ways() {
        device::choose(way);
        for (name, body) in &chosen {
            let begun = Instant::now();
            let ended = catch_unwind(body).map_err(|payload| payload.downcast::<device::Crowded>());
            let took = begun.elapsed();
            match ended {
                Ok(()) => println!("{way:?}: {name}: ok in {took:.1?}"),
                Err(Ok(crowded)) => println!(
                    "{way:?}: {name}: skipped from a world of {} ranks on, because {} GPUs are here",
                    crowded.ranks, crowded.gpus
                ),
                Err(Err(_)) => {
                    println!("{way:?}: {name}: FAILED in {took:.1?}");
                    failed.push(format!("{way:?}: {name}"));
                }
            }
        }
    }
    println!("{} bodies, {} failed", chosen.len(), failed.len());
    for name in &failed {
        println!("FAILED {name}");
    }
    if !failed.is_empty() {
        std::process::exit(1);
    }
}
