//! The oracle: plans and losses equal those on record, byte for byte.
//!
//! For changes that must change nothing, such as moving files or renaming types. Law: `plans.txt` and
//! `losses.txt` say in their heads what stands in them and how they are compared, and only a change that
//! means to change plans or losses writes them anew, in a commit of its own:
//!
//! ```sh
//! WARPWEFT_RECORD_ORACLE=1 cargo test --test oracle
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `record` | a recorded file, and how today's entries are held against it |
//! | `numbered` | the steps of the numbered examples, and of those for other libraries |
//! | `files` | model files and decoders by policies |
//! | `job` | the example `train`: its plans, and its losses on a text that stays as it is |
//! | `optimizers` | update rules in place of Adam |
//! | `machine` | what bits of losses depend on |
//!
//! The modules of the example `train` stand beside them, because they name each other from the root of their
//! crate.
#![allow(dead_code, reason = "the example uses more of its modules than the oracle does")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../../examples/train/attention.rs"]
mod attention;
#[path = "../../examples/train/closure.rs"]
mod closure;
#[path = "../../examples/train/data.rs"]
mod data;
#[path = "../../examples/train/embedding.rs"]
mod embedding;
mod files;
#[path = "../../examples/train/head.rs"]
mod head;
#[path = "../../examples/train/host.rs"]
mod host;
#[path = "../../examples/train/init.rs"]
mod init;
mod job;
mod machine;
#[path = "../../examples/train/mlp.rs"]
mod mlp;
#[path = "../../examples/train/model.rs"]
mod model;
mod numbered;
#[path = "../../examples/train/ops.rs"]
mod ops;
mod optimizers;
#[path = "../../examples/train/product.rs"]
mod product;
#[path = "../../examples/train/program.rs"]
mod program;
mod record;
#[path = "../../examples/train/schedule.rs"]
mod schedule;
#[path = "../plan/policies/shapes.rs"]
mod shapes;

use std::io::Write;

use warpweft_plan::plan::StepPlan;
use warpweft_testing::random_programs;

use record::{Entry, Record};

/// Random programs, and the seed of the first: those among which every case comes up.
const PROGRAMS: usize = 1000;
const FIRST: u64 = 9 << 32;

/// An entry that says of a plan which it is, and enough to see what became of it.
fn planned(name: impl Into<String>, plan: &StepPlan) -> Entry {
    let (tasks, bytes) = (plan.tasks.len(), plan.arena.bytes());
    Entry::new(name, format!("{:016x}, {tasks} tasks, {bytes} bytes", plan.fingerprint()))
}

#[test]
fn the_plans_of_examples_models_and_random_programs_are_those_of_the_record() {
    let random = random_programs::flat_samples(FIRST).take(PROGRAMS).map(|(seed, _, prologue, step)| {
        let value = format!("{:016x} {:016x}", prologue.fingerprint(), step.fingerprint());
        Entry::new(format!("random program {}", seed - FIRST), value)
    });
    let mut entries = numbered::plans().unwrap();
    entries.extend(warpweft_session::session::block_on(numbered::session_plans()).unwrap());
    entries.extend(job::plans().unwrap());
    entries.extend(files::plans().unwrap());
    entries.extend(random);
    Record { file: "plans.txt", head: include_str!("plans_head.txt") }.hold(&entries);
}

#[test]
fn the_example_trains_with_the_losses_of_the_record_bit_for_bit() {
    let record = Record { file: "losses.txt", head: include_str!("losses_head.txt") };
    let (here, there) = (machine::here(), record.recorded(machine::NAME));
    if !record::is_recording() && there.as_deref() != Some(&here) {
        let there = there.unwrap_or_default();
        let said = format!("not compared: losses were recorded on `{there}`, and this is `{here}`\n");
        // Past the test runner, which shows nothing of a test that passes.
        std::io::stderr().write_all(said.as_bytes()).unwrap();
        return record.hold_names(job::RUNS.iter().map(|run| run.name));
    }
    let mut entries = vec![Entry::new(machine::NAME, here)];
    entries.extend(job::losses().unwrap());
    record.hold(&entries);
}
