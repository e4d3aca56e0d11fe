//! Plans of gradient accumulation: one for each part of a sum over several steps.

use std::collections::BTreeSet;

use warpweft_format::Format;
use warpweft_plan::layout::{Content, Residency, Slot};
use warpweft_plan::model::{Accumulation, Mesh};
use warpweft_plan::op::{Accumulate, Op, SumGradient, SumTarget};
use warpweft_plan::plan::{Policy, StepPlan};
use warpweft_plan::policy::Reduce;

use super::{chain, policy};

use Accumulation::{First, Last, Next, Whole};

/// One for each part, in this order: a whole step, the first, the next, the last.
fn plans(policy: &Policy, mesh: Mesh) -> [StepPlan; 4] {
    let program = chain(3, Format::NVFP4_2D).accumulating().unwrap();
    [Whole, First, Next, Last].map(|part| StepPlan::build(&program.part(part), policy, mesh).unwrap())
}

/// What is done, in T.
fn done(plan: &StepPlan) -> Vec<(&'static str, &str)> {
    plan.tasks.iter().map(|task| (task.op.name(), task.subject.as_str())).collect()
}

fn resident(plan: &StepPlan) -> Vec<&Slot> {
    plan.arena.slots.iter().filter(|slot| slot.residency == Residency::Resident).collect()
}

/// What each contribution does that overwrites: the weight's slot.
fn overwritten(plan: &StepPlan) -> Vec<Content> {
    let into = |op: &Op| match op {
        Op::Accumulate(Accumulate { into, first: true, .. }) => vec![*into],
        Op::SumGradient(SumGradient { parts, .. }) => {
            parts.iter().filter(|part| part.target == SumTarget::First).map(|part| part.into).collect()
        }
        _ => Vec::new(),
    };
    plan.tasks.iter().flat_map(|task| into(&task.op)).map(|slot| plan.arena.slot(slot).content).collect()
}

/// PL-4, PL-9. Parts differ in what begins a sum and in what uses it, and in nothing else.
#[test]
fn the_parts_of_an_accumulation_do_what_a_whole_step_does_but_for_the_optimizer() {
    for reduce in [Reduce::Ordered, Reduce::Nccl] {
        for mesh in [Mesh::new(2).unwrap(), Mesh::hybrid(4, 2).unwrap()] {
            let all = plans(&Policy { reduce, ..policy(2) }, mesh);
            let [whole, first, next, last] = &all;
            let norm = whole.tasks.iter().position(|task| matches!(task.op, Op::GradNorm(_))).unwrap();
            assert_eq!(done(last), done(whole));
            assert_eq!(done(first), done(whole)[..norm]);
            assert_eq!(done(next), done(first));
            for part in &all {
                assert_eq!(resident(part), resident(whole), "a sum stays where it is");
                assert_eq!(part.updates_weights, matches!(part.accumulation, Whole | Last));
                assert_eq!(part.exit == part.entry, part.accumulation.stays_open());
                let count = if part.accumulation.continues() { 0 } else { 4 };
                assert_eq!(overwritten(part).len(), count, "{:?}: once for each weight", part.accumulation);
            }
            assert_eq!(overwritten(first), overwritten(whole));
        }
    }
}

/// PL-1. Ranks that run another part of a program under its name are distinguished.
#[test]
fn every_part_of_an_accumulation_has_a_fingerprint_of_its_own() {
    let all = plans(&policy(2), Mesh::new(2).unwrap());
    let prints: BTreeSet<u64> = all.iter().map(StepPlan::fingerprint).collect();
    assert_eq!(prints.len(), all.len(), "{prints:?}");
    assert!(
        all[2].to_string().starts_with("plan `train` (the next step of an accumulation): "),
        "{}",
        all[2]
    );
    let again = plans(&policy(2), Mesh::new(2).unwrap());
    assert!(all.iter().zip(&again).all(|(one, other)| one.fingerprint() == other.fingerprint()));
}
