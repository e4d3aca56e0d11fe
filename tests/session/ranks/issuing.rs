//! The tasks that one rank issues: in the plan's order, ahead of the device, and only with the rights its messages
//! bring.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use warpweft_backend::Checked;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::{ActorId, TaskId};
use warpweft_plan::compute::{Compute, ComputeContext, ComputeError, ComputeFactory};
use warpweft_plan::model::Call;
use warpweft_plan::plan::EdgeKind;
use warpweft_session::actor::{ExecError, Message, Poison, Right, Wiring};
use warpweft_testing::meddler::backends;
use warpweft_testing::trainer::HANGS;
use warpweft_testing::wrapped::{Moment, Wrapped};

use super::by_hand::ByHand;
use super::{closures, plans};

thread_local! {
    /// What a backend may set that its own test's thread drives: backends may move, and poison does not.
    static MARK: RefCell<Option<Poison>> = const { RefCell::new(None) };
}

/// FL-4: poison is checked before a step and after it.
#[test]
fn a_poisoned_rank_enqueues_nothing_and_one_poisoned_on_the_way_does_not_end_its_step_well() {
    let (_, plan) = plans(1, 1);
    for (poisoned_at, enqueued) in [(None, 0), (Some(4), plan.tasks.len())] {
        let seen = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&seen);
        let backend = Wrapped::new(backends(1).remove(0), move |requested| {
            if requested.moment == Moment::Enqueue
                && Some(count.fetch_add(1, Ordering::SeqCst)) == poisoned_at
            {
                MARK.with_borrow(|mark| mark.as_ref().unwrap().set("a right was lost, as the test wants"));
            }
            Ok(())
        });
        let mut rank = ByHand::new(&plan, backend, &closures());
        MARK.set(Some(rank.poison.clone()));
        if poisoned_at.is_none() {
            rank.poison.set("a right was lost, as the test wants");
        }
        let error = rank.pump().unwrap_err();
        assert!(matches!(&error, ExecError::Poisoned { .. }), "{error}");
        assert_eq!(seen.load(Ordering::SeqCst), enqueued);
        rank.synchronize();
    }
}

/// AC-2: whoever drives the actors, a lane's tasks are issued in the plan's order.
#[test]
fn the_issuer_refuses_a_task_that_is_not_next_on_its_lane() {
    let (_, plan) = plans(1, 1);
    let mut rank = ByHand::new(&plan, Checked::new(backends(1).remove(0)), &closures());
    let wiring = Wiring::new(&plan);
    let lane = plan.task(wiring.first[0]).lane;
    let second = plan.entries().filter(|(_, task)| task.lane == lane).nth(1).unwrap().0;
    let mut issuer = rank.begin(wiring);
    let error = rank.issue(&mut issuer, second, None).unwrap_err();
    assert!(
        matches!(&error, ExecError::OutOfTurn { task, .. } if task.contains(&second.to_string())),
        "{error}"
    );
}

/// AC-1: a whole step is issued while its first call stands still on the device, and what the device waits
/// for are the plan's fences alone.
#[test]
fn a_step_is_issued_to_its_end_while_the_device_stands_still() {
    let (_, plan) = plans(1, 1);
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let closed = Arc::new(AtomicUsize::new(0));
    let held: ComputeFactory<CpuSurface> = {
        let (gate, closed) = (Arc::clone(&gate), Arc::clone(&closed));
        Arc::new(move |_| {
            let (gate, closed) = (Arc::clone(&gate), Arc::clone(&closed));
            let waits = move |call: &Call, context: &ComputeContext<'_, CpuSurface>| {
                let (open, bell) = &*gate;
                let shut = |open: &mut bool| !*open;
                let limit = HANGS;
                let waited = bell.wait_timeout_while(open.lock().unwrap(), limit, shut).unwrap().1;
                closed.fetch_add(usize::from(waited.timed_out()), Ordering::SeqCst);
                call.gradients.iter().try_for_each(|gradient| {
                    context.gradient(gradient.weight)?.fill(0.5);
                    Ok::<_, ComputeError>(())
                })
            };
            Ok(Box::new(waits) as Box<dyn Compute<CpuSurface>>)
        })
    };
    let requested = Arc::new(Mutex::new(Vec::new()));
    let book = Arc::clone(&requested);
    let backend = Wrapped::new(backends(1).remove(0), move |requested| {
        book.lock().unwrap().push(requested.moment);
        Ok(())
    });
    let mut rank = ByHand::new(&plan, backend, &held);
    rank.pump().unwrap();
    let count = |moment| requested.lock().unwrap().iter().filter(|requested| **requested == moment).count();
    assert_eq!(count(Moment::Enqueue), plan.tasks.len());
    assert_eq!(count(Moment::Wait), plan.tasks.iter().map(|task| task.waits.len()).sum::<usize>());
    assert_eq!(count(Moment::Synchronize), 0);
    *gate.0.lock().unwrap() = true;
    gate.1.notify_all();
    rank.synchronize();
    assert_eq!(closed.load(Ordering::SeqCst), 0, "the step was issued before the gate opened");
}

/// FL-2.
#[test]
fn a_slot_is_not_written_while_a_lease_on_it_is_open() {
    let (_, plan) = plans(1, 1);
    let mut rank = ByHand::new(&plan, backends(1).remove(0), &closures());
    // The first task grants a lease on what it writes; the second, which has no part in it, is wired to write
    // the same slot.
    let valid = Wiring::new(&plan);
    let leases = &valid.grants[valid.tasks[0].grants.clone()];
    let lease = leases.iter().find(|edge| edge.kind == EdgeKind::Lease).unwrap();
    let (first, second) = (TaskId::new(0), TaskId::new(1));
    assert!(lease.to != second && valid.tasks[1].incoming == 0);
    let mut wired = valid.clone();
    wired.writes.push(lease.slot);
    wired.tasks[1].writes = valid.writes.len()..valid.writes.len() + 1;
    let mut issuer = rank.begin(wired);
    rank.issue(&mut issuer, first, None).unwrap();
    let error = rank.issue(&mut issuer, second, None).unwrap_err();
    let granted =
        leases.iter().filter(|edge| (edge.kind, edge.slot) == (EdgeKind::Lease, lease.slot)).count();
    assert!(matches!(&error, ExecError::Occupied { open, .. } if *open as usize == granted), "{error}");
    assert!(error.to_string().contains(&plan.arena.slot(lease.slot).name), "{error}");
    rank.synchronize();
}

/// FL-3.
#[test]
fn a_lease_that_was_not_granted_in_this_step_is_refused() {
    let (_, plan) = plans(1, 1);
    let mut rank = ByHand::new(&plan, backends(1).remove(0), &closures());
    let (first, second) = (TaskId::new(0), TaskId::new(1));
    let mut issuer = rank.begin(Wiring::new(&plan));
    rank.issue(&mut issuer, first, None).unwrap();
    let mut rights: Vec<Right> = std::iter::from_fn(|| rank.post.mailbox(ActorId::new(0)).take())
        .filter_map(|message| match message {
            Message::Right(right) => Some(right),
            Message::Turn(_) => None,
        })
        .collect();
    let lease = rights.iter().position(|right| matches!(right, Right::Lease(_))).unwrap();
    let lease = rights.remove(lease);
    let slot = plan.arena.slot(lease.slot()).name.clone();
    // The step after it, in which the first task grants nothing.
    let mut silent = Wiring::new(&plan);
    silent.tasks[0].grants = 0..0;
    let mut issuer = rank.begin(silent);
    rank.issue(&mut issuer, first, None).unwrap();
    let error = rank.issue(&mut issuer, second, Some(lease)).unwrap_err();
    assert!(matches!(&error, ExecError::Unleased { slot: named, .. } if *named == slot), "{error}");
    for right in rights {
        let _ = right.spend();
    }
    rank.synchronize();
}

/// FL-4.
#[test]
fn a_right_that_is_lost_poisons_the_rank() {
    let (_, plan) = plans(1, 1);
    let mut rank = ByHand::new(&plan, backends(1).remove(0), &closures());
    let wiring = Wiring::new(&plan);
    assert!(!wiring.tasks[0].grants.is_empty(), "the first task grants something");
    let mut issuer = rank.begin(wiring);
    rank.issue(&mut issuer, TaskId::new(0), None).unwrap();
    while let Some(message) = rank.post.mailbox(ActorId::new(0)).take() {
        drop(message);
    }
    assert!(rank.poison.reason().unwrap().contains("dropped unspent"));
    assert!(matches!(issuer.begin(&rank.post), Err(ExecError::Poisoned { .. })));
}
