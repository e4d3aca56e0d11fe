//! PL-8: a peer's memory is touched only while it stands still, found by brute force over two ranks.
//!
//! Law: what a collective does to another rank's memory happens between two meetings of the ranks of its
//! group and at no other known time. So every access of the rank that owns the memory, and every other
//! collective, must be over before the first meeting or begin after the second. Two ranks speak for any
//! number: a third one adds waits and takes none away. They are of one replica, or hold the same shard of
//! two, or meet with all others alone; collectives of groups that have but one of them are each one's own
//! affair.

use std::collections::BTreeSet;

use super::damage::Edit;
use super::happens_before::{close, direct};
use super::wanted;
use warpweft_base::id::RankId;
use warpweft_plan::layout::Region;
use warpweft_plan::model::Group;
use warpweft_plan::plan::{StepPlan, verify};
use warpweft_testing::random_programs::Draw;
use warpweft_testing::random_programs::samples;

const RANKS: usize = 2;

/// What happens of a task.
#[derive(Clone, Copy)]
enum Moment {
    Begins(usize),
    Ends(usize),
    /// The ranks of the group have come to the collective.
    Met,
    /// They have done their part.
    Parted,
}

fn node(task: usize, moment: Moment) -> usize {
    task * (2 * RANKS + 2)
        + match moment {
            Moment::Begins(rank) => rank,
            Moment::Ends(rank) => RANKS + rank,
            Moment::Met => 2 * RANKS,
            Moment::Parted => 2 * RANKS + 1,
        }
}

/// An access of a peer to bytes that the owner, or another collective, touches at no known distance.
fn unordered_with_a_peer(plan: &StepPlan) -> Option<(usize, usize)> {
    let mesh = plan.weights.mesh;
    let first = RankId::new(0);
    // Which groups have both the first rank and another: for each rank, as far as it is not as for one before.
    let shared = |other: RankId| -> Vec<Group> {
        mesh.groups().filter(|group| mesh.strides(*group).bring_together(first, other)).collect()
    };
    let pairs: BTreeSet<Vec<Group>> = mesh.iter().skip(1).map(shared).collect();
    pairs.iter().find_map(|pair| unordered_within(plan, pair))
}

/// The same for two ranks that are both of these groups, and of no other.
fn unordered_within(plan: &StepPlan, pair: &[Group]) -> Option<(usize, usize)> {
    let meets = |task: usize| plan.tasks[task].op.group().is_some_and(|group| pair.contains(&group));
    let count = plan.tasks.len();
    let mut pairs = vec![vec![false; count * (2 * RANKS + 2)]; count * (2 * RANKS + 2)];
    let mut edge = |first: usize, second: usize| pairs[second][first] = true;
    for (task, before) in direct(plan).iter().enumerate() {
        for rank in 0..RANKS {
            edge(node(task, Moment::Begins(rank)), node(task, Moment::Ends(rank)));
            for first in (0..count).filter(|first| before[*first]) {
                edge(node(first, Moment::Ends(rank)), node(task, Moment::Begins(rank)));
            }
            if meets(task) {
                edge(node(task, Moment::Begins(rank)), node(task, Moment::Met));
                edge(node(task, Moment::Met), node(task, Moment::Parted));
                edge(node(task, Moment::Parted), node(task, Moment::Ends(rank)));
            }
        }
    }
    close(&mut pairs);
    let before = |first: usize, second: usize| pairs[second][first];
    let touched = |task: usize| -> Vec<(Region, bool)> {
        let accesses = plan.tasks[task].op.accesses().into_iter();
        accesses.map(|(slot, access)| (plan.arena.region(slot), access.writes())).collect()
    };
    let touched: Vec<Vec<(Region, bool)>> = (0..count).map(touched).collect();
    let conflict = |one: usize, other: usize| {
        touched[one].iter().any(|(region, writes)| {
            touched[other].iter().any(|(also, too)| (*writes || *too) && region.overlaps(*also))
        })
    };
    for moved in (0..count).filter(|task| meets(*task)) {
        let (met, parted) = (node(moved, Moment::Met), node(moved, Moment::Parted));
        for other in (0..count).filter(|other| *other != moved && conflict(moved, *other)) {
            let (begin, end) = if meets(other) {
                (node(other, Moment::Met), node(other, Moment::Parted))
            } else {
                (node(other, Moment::Begins(0)), node(other, Moment::Ends(0)))
            };
            if !before(end, met) && !before(parted, begin) {
                return Some((moved, other));
            }
        }
    }
    None
}

/// PL-8. What is accepted keeps peers apart, and what does not is refused.
#[test]
fn no_accepted_plan_lets_a_peer_touch_memory_that_does_not_stand_still() {
    let (mut plans, mut refused, mut accepted) = (0, 0, 0);
    for (seed, _, prologue, step) in
        samples(6 << 32).filter(|(.., step)| step.tasks.len() < 60).take(wanted() / 50)
    {
        plans += 2;
        for plan in [&prologue, &step] {
            assert_eq!(unordered_with_a_peer(plan), None, "seed {seed}");
        }
        let draw = &mut Draw::new(!seed);
        for edit in [
            Edit::DropFence,
            Edit::RedirectFence,
            Edit::DropEvent,
            Edit::MoveSlot,
            Edit::SwapSlots,
            Edit::MoveTask,
            Edit::ChangeCollectiveCall,
            Edit::ChangeRound,
        ] {
            let Some(mutant) = edit.apply(&step, draw) else { continue };
            match (unordered_with_a_peer(&mutant), verify(&mutant)) {
                (Some(pair), Ok(_)) => {
                    panic!("seed {seed}: {edit:?} is accepted, but {pair:?} meet across ranks")
                }
                (Some(_), Err(_)) => refused += 1,
                (None, Ok(_)) => accepted += 1,
                (None, Err(_)) => {}
            }
        }
    }
    println!(
        "{plans} valid plans and {accepted} accepted mutants keep peers apart; {refused} that do not are refused"
    );
    assert!(refused > 0);
}
