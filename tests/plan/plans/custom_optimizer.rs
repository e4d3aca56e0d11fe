//! Custom optimizers in plans: the task of an update, its place, and its states.

use std::collections::BTreeSet;

use warpweft_base::id::WeightId;
use warpweft_format::Format;
use warpweft_plan::layout::{ALIGNMENT, Content, StateLayout, Weights};
use warpweft_plan::model::{Mesh, Model};
use warpweft_plan::op::Op;
use warpweft_plan::plan::{PlanError, ResidentLayout, StepPlan};
use warpweft_plan::policy::{Masters, Moments};
use warpweft_session::config::Config;
use warpweft_session::session::plan_program;

use super::{chain, policy, position};

/// A plan over a chain of three 64×64 weights and a bias of 7 elements on two ranks, with this state layout.
fn with_state(state: StateLayout) -> Result<StepPlan, PlanError> {
    let program = chain(3, Format::Bf16);
    let weights = Weights::new(program.model().weights(), Mesh::new(2).unwrap()).with_state(state);
    let resident = ResidentLayout::new(&weights, &[&program])?;
    StepPlan::within(&program, &weights, &resident, &policy(1))
}

fn keeping(custom_states: Option<u8>) -> StateLayout {
    StateLayout { custom_states, ..StateLayout::default() }
}

/// Bytes of resident memory, and the lists that are kept beside each weight's master.
fn kept(weights: &Weights) -> (usize, Vec<Vec<Content>>) {
    let resident = ResidentLayout::new(weights, &[]).unwrap();
    let of = |weight| {
        let lists = [Content::first_moment(weight), Content::second_moment(weight)];
        let is_there = |content: &Content| resident.common().iter().any(|slot| slot.content == *content);
        lists.into_iter().filter(is_there).collect()
    };
    (resident.bytes(), (0..weights.layouts.len()).map(WeightId::at).map(of).collect())
}

/// Whatever the shapes, formats and ranks: a list is as large as the master, and only weights that train have some.
#[test]
fn the_layout_has_exactly_the_lists_that_a_custom_optimizer_keeps() {
    for (ranks, rows) in [(1, 1), (1, 65), (2, 64), (3, 65), (5, 3), (5, 200)] {
        let mut model = Model::builder();
        let f32 = model.sharded("f32", rows, 33, Format::F32).unwrap();
        let bf16 = model.sharded("bf16", rows, 7, Format::Bf16).unwrap();
        let bias = model.replicated("bias", 1, 33).unwrap();
        let frozen = model.sharded("frozen", rows, 33, Format::Bf16).unwrap();
        model.freeze(frozen).unwrap();
        let weights = Weights::new(model.build().weights(), Mesh::new(ranks).unwrap());
        let (by_adam, moments) = kept(&weights);
        let list = |weight| Content::Master(weight).bytes(&weights, |_| 0).next_multiple_of(ALIGNMENT);
        let each: usize = [f32, bf16, bias].map(list).iter().sum();
        for lists in 0..=2u8 {
            let (bytes, found) = kept(&weights.clone().with_state(keeping(Some(lists))));
            assert_eq!(by_adam - bytes, (2 - usize::from(lists)) * each, "{lists} lists, {rows} on {ranks}");
            let wanted = moments.iter().map(|both| &both[..usize::from(lists).min(both.len())]);
            assert!(found.iter().map(Vec::as_slice).eq(wanted), "{found:?}");
            assert_eq!(found[frozen.index()], []);
        }
    }
}

#[test]
fn each_list_fewer_saves_its_bytes_in_a_plan_and_nothing_else_moves() {
    let adam = with_state(keeping(None)).unwrap();
    for lists in 0..=2u8 {
        let own = with_state(keeping(Some(lists))).unwrap();
        // Three weights of 32 rows per rank; the bias' slot is one alignment unit.
        let saved = usize::from(2 - lists) * (3 * 32 * 64 * 4 + ALIGNMENT);
        assert_eq!(adam.bounds.resident_bytes - own.bounds.resident_bytes, saved);
        assert_eq!(adam.bounds.transient_bytes, own.bounds.transient_bytes);
        assert_eq!(adam.bounds.wire_bytes, own.bounds.wire_bytes);
        let ops = |plan: &StepPlan| plan.tasks.iter().map(|task| task.op.name()).collect::<Vec<_>>();
        // Adam casts what it updates.
        let instead = |name| if name == "adam" { "update" } else { name };
        let cast = ops(&adam).into_iter().map(instead).chain(["partial cast"]).collect::<Vec<_>>();
        assert_eq!(ops(&own), cast);
    }
}

/// A main grad is read where calls run, and what was summed into it is over before that: landed gradients do not keep
/// their bytes until the weights are updated.
#[test]
fn gradients_on_their_way_to_a_custom_optimizer_take_no_more_memory_than_to_adam() {
    for (layers, ranks) in [(4, 2), (12, 4)] {
        let transient = |custom_states| {
            let mut config = Config::default();
            config.optimizer.custom_states = custom_states;
            plan_program(&chain(layers, Format::NVFP4_2D), &config, ranks).unwrap().arena.transient_bytes
        };
        let by_adam = transient(None);
        for lists in 0..=2 {
            let by_rule = transient(Some(lists));
            assert!(by_rule <= by_adam + by_adam / 20, "{layers} layers: {by_rule} bytes, {by_adam} by Adam");
        }
    }
}

/// PL-1: ranks that would update by other rules do not start.
#[test]
fn who_updates_and_with_how_many_lists_is_part_of_the_fingerprint() {
    let all = [None, Some(0), Some(1), Some(2)];
    let distinct: BTreeSet<u64> =
        all.iter().map(|lists| with_state(keeping(*lists)).unwrap().fingerprint()).collect();
    assert_eq!(distinct.len(), all.len());
}

#[test]
fn a_custom_optimizer_gets_no_halves_and_no_third_list() {
    let custom_states = Some(1);
    for state in [
        StateLayout { moments: Moments::Bf16, custom_states, ..StateLayout::default() },
        StateLayout { masters: Masters::Bf16Remainder, custom_states, ..StateLayout::default() },
        keeping(Some(9)),
    ] {
        let error = with_state(state).unwrap_err();
        assert!(matches!(error, PlanError::Policy { key: "optimizer.custom_states", .. }), "{error}");
        assert!(error.to_string().contains("masters and moments in f32"), "{error}");
    }
}

/// The vote is cast on one lane and the custom optimizer runs on another, after a fence; so does what reads its
/// masters.
#[test]
fn a_custom_optimizer_runs_where_calls_do_after_the_vote_and_before_the_amaxes() {
    let plan = with_state(keeping(Some(1))).unwrap();
    let vote = position(&plan, |op, _| matches!(op, Op::Vote(_)));
    let update = position(&plan, |op, _| matches!(op, Op::Update(_)));
    assert_eq!(plan.tasks[update].lane, plan.compute_lane());
    assert_ne!(plan.tasks[vote].lane, plan.compute_lane());
    assert!(plan.tasks[update].waits.iter().any(|wait| wait.index() == vote), "{:?}", plan.tasks[update]);
    let cast = position(&plan, |op, _| matches!(op, Op::PartialCast(_)));
    assert!(plan.tasks[cast].waits.iter().any(|wait| wait.index() == update), "{:?}", plan.tasks[cast]);
}

/// As `warpweft plan --tasks` and `--why` print it.
#[test]
fn a_plan_in_words_shows_updates_on_the_compute_lane_with_their_buckets() {
    let mut config = Config::default();
    config.optimizer.custom_states = Some(1);
    let plan = plan_program(&chain(2, Format::NVFP4_2D), &config, 2).unwrap();
    let text = plan.to_string();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|words| words.get(2) == Some(&"update"))
        .collect();
    assert_eq!(rows.len(), 2, "{text}");
    for (row, bucket) in rows.iter().zip(["0", "1"]) {
        assert_eq!(&row[1..5], ["compute", "update", "bucket", bucket], "{text}");
    }
    assert!(!text.contains("adam"), "{text}");
    let task = plan.find_tasks("update of bucket 0");
    let why = plan.why(task[0], None);
    assert!(why.contains("(update of bucket 0") && why.contains("(vote of step)"), "{why}");
    assert!(plan.to_dot().contains("update"));
}
