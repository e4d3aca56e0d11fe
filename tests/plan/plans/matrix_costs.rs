//! Costs of whole-matrix optimizers: the rounds in memory at once, and the bytes that a rank receives.

use std::collections::BTreeSet;

use warpweft_format::Format;
use warpweft_plan::layout::{ALIGNMENT, Content};
use warpweft_plan::model::{Mesh, ParameterGroup, WeightSpec};
use warpweft_plan::op::Op;
use warpweft_plan::plan::Policy;

use super::matrices::{WHOLE, lives, plan, planned, program, ranks, rounds, squares, whole};
use super::policy;

/// PL-6. In one replica nothing else takes as much here, so these are the bytes of the plan.
#[test]
fn at_most_three_rounds_are_in_memory_however_many_there_are() {
    const MATRIX: usize = 128 * 128 * 4;
    for mesh in [ranks(1), ranks(4), Mesh::hybrid(4, 2).unwrap()] {
        let peak = |count: usize| {
            let plan = plan(&squares(count * mesh.shards() as usize, 128), mesh);
            assert_eq!(rounds(&plan).len(), count);
            let lives = lives(&plan);
            let (mut bytes, mut alive) = (0, 0);
            for task in 0..plan.tasks.len() {
                let here = || lives.iter().filter(|(_, _, life)| life.contains(&task));
                alive = alive.max(here().map(|(first, _, _)| *first).collect::<BTreeSet<_>>().len());
                bytes = bytes.max(here().map(|(_, slot, _)| plan.arena.region(*slot).bytes).sum());
            }
            assert_eq!(alive, 3, "{mesh:?}");
            // With replicas, gradients that are summed over them take more for a while.
            let live = plan.bounds.live_weight_bytes;
            assert!(if mesh.replicas() == 1 { live == bytes } else { live >= bytes }, "{mesh:?}: {live}");
            // Squares lie behind all else, as many as there are weights.
            let squares = plan.arena.slots.iter().filter(|slot| matches!(slot.content, Content::Squares(_)));
            let squares: usize = squares.map(|slot| slot.region.bytes.next_multiple_of(ALIGNMENT)).sum();
            (bytes, plan.bounds.transient_bytes - squares, live)
        };
        let (few, many) = (peak(3), peak(12));
        assert_eq!(few, many, "{mesh:?}");
        assert_eq!(few.0, 4 * MATRIX);
        // A slot is held until what comes of it is there, so that no task waits for its bytes.
        let held = if mesh.shards() == 1 { 4 } else { 7 };
        assert!((held * MATRIX..held * MATRIX + 4096).contains(&few.1), "{} bytes", few.1);
    }
}

/// PL-6
#[test]
fn rounds_lie_in_bytes_that_calls_used_before() {
    for mesh in [ranks(1), ranks(4)] {
        let mut specs = squares(24, 64);
        specs.push(WeightSpec::sharded("large", 256, 256, Format::NVFP4_2D));
        let transient = |specs: &[WeightSpec]| plan(specs, mesh).bounds.transient_bytes;
        let with = transient(&specs);
        specs.iter_mut().for_each(|spec| spec.parameters = ParameterGroup::default());
        assert_eq!(with, transient(&specs), "{mesh:?}");
    }
}

/// PL-6. With no more than is alive at one time, tasks wait for memory, and every round still goes its way.
#[test]
fn rounds_fit_into_a_budget_of_their_live_bytes() {
    let program = program(&squares(12, 128));
    let free = planned(&program, &policy(1), ranks(4));
    let budget = Some(free.bounds.live_bytes);
    assert!(free.bounds.transient_bytes > free.bounds.live_bytes);
    let tight = planned(&program, &Policy { budget, ..policy(1) }, ranks(4));
    assert!(tight.bounds.transient_bytes <= free.bounds.live_bytes);
    assert_eq!(rounds(&tight).len(), 3);
}

/// PL-6. Of its masters' bytes a rank receives, both ways together, twice those that other ranks have of its matrix.
#[test]
fn full_rounds_receive_eight_bytes_for_each_master_that_a_rank_has_but_for_its_own_part() {
    for (mesh, rows, cols) in [
        (ranks(1), 64, 64),
        (ranks(2), 64, 64),
        (ranks(3), 61, 7),
        (ranks(8), 64, 40),
        (ranks(5), 3, 9),
        (Mesh::hybrid(6, 2).unwrap(), 64, 64),
    ] {
        let shards = mesh.shards() as usize;
        let received = |count: usize, parameters: ParameterGroup| {
            let of = |number| {
                let mut spec = whole(&format!("w{number}"), rows, cols, Format::Bf16);
                spec.parameters = parameters;
                spec
            };
            let plan = plan(&(0..count).map(of).collect::<Vec<_>>(), mesh);
            let masters: usize = plan.weights.layouts.iter().map(|layout| layout.stored_elements()).sum();
            let exchanges = plan
                .tasks
                .iter()
                .filter(|task| matches!(task.op, Op::ExchangeRows(_)))
                .map(|task| task.wire_bytes);
            (plan.bounds.wire_bytes, exchanges.sum::<usize>(), masters)
        };
        for full in 1..=3 {
            let (with, exchanged, masters) = received(full * shards, WHOLE);
            let (without, none, _) = received(full * shards, ParameterGroup::default());
            assert_eq!(exchanged, 8 * masters * (shards - 1) / shards, "{mesh:?}");
            assert_eq!((with - without, none), (exchanged, 0), "{mesh:?}");
            // A round of one more matrix is as dear as a full one.
            let (_, more, _) = received(full * shards + 1, WHOLE);
            assert_eq!(more, exchanged / full * (full + 1), "{mesh:?}");
        }
    }
}
