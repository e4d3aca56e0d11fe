//! Limits of policies: their bytes, their budget, program order.

use std::collections::BTreeMap;

use warpweft_base::id::CallId;
use warpweft_plan::layout::{Content, Weights, aligned};
use warpweft_plan::model::{DeclareError, Mesh, StepProgram};
use warpweft_plan::op::Op;
use warpweft_plan::plan::{PlanError, Policy, ResidentLayout, StepPlan};
use warpweft_plan::policy::{Backward, ByteSize};
use warpweft_session::cluster::preset;
use warpweft_session::config::{Config, Prefetch};
use warpweft_session::session::{SessionError, plan_program, plan_program_on};

use super::shapes::{SHAPES, decoder, program};

fn small() -> StepProgram {
    program("small", "layers = 4\nhidden = 512\nffn = 1536\nheads = 8\nvocabulary = 2048", 256)
}

fn by_bytes(bytes: u64) -> Config {
    Config { prefetch: Prefetch::bytes(ByteSize::new(bytes)), ..Config::default() }
}

/// The most bytes of gathered planes that are requested and not yet used for the last time, counted by calls.
fn most_in_flight(plan: &StepPlan) -> usize {
    let stage_of =
        |task: usize| plan.tasks[..task].iter().filter(|task| matches!(task.op, Op::Compute(_))).count();
    let mut spans: BTreeMap<usize, (usize, usize, usize)> = BTreeMap::new();
    let mut sources: BTreeMap<usize, usize> = BTreeMap::new();
    for (position, task) in plan.tasks.iter().enumerate() {
        for (slot, access) in task.op.accesses() {
            if let Content::Gathered(..) = plan.arena.slot(slot).content {
                let bytes = aligned(plan.arena.region(slot).bytes);
                let begin = task.release.map_or(0, |release| stage_of(release.index()) + 1);
                let span = spans.entry(slot.index()).or_insert((begin, 0, bytes));
                span.1 = span.1.max(stage_of(position));
                for (copy, made) in task.op.accesses() {
                    let derived =
                        matches!(plan.arena.slot(copy).content, Content::Transposed(_) | Content::Dense(..));
                    if made.writes() && access.reads() && derived {
                        sources.insert(copy.index(), slot.index());
                    }
                }
            } else if let Some(source) = sources.get(&slot.index()).filter(|_| access.reads()) {
                let last = stage_of(position);
                spans.entry(*source).and_modify(|span| span.1 = span.1.max(last));
            }
        }
    }
    let stages = plan.calls.len();
    let at = |stage: usize| {
        spans.values().filter(|(from, to, _)| *from <= stage && stage <= *to).map(|(.., bytes)| bytes).sum()
    };
    (0..stages).map(at).max().unwrap_or(0)
}

#[test]
fn bytes_in_flight_are_honoured_exactly_and_more_bytes_gather_earlier() {
    let mut waits = usize::MAX;
    for bytes in [3u64 << 20, 4 << 20, 8 << 20, 64 << 20] {
        let plan = plan_program(&small(), &by_bytes(bytes), 4).unwrap();
        let most = most_in_flight(&plan);
        assert!(most as u64 <= bytes, "{most} of {bytes}");
        let released: usize =
            plan.tasks.iter().filter_map(|task| task.release).map(|release| release.index()).sum();
        assert!(released <= waits, "{bytes}");
        waits = released;
    }
}

/// A limit above all demands together needs no counting. One that holds all planes, but not every use of them
/// once more, is counted; where planes are kept both let everything be gathered at once.
#[test]
fn a_limit_that_is_counted_gives_the_plan_of_one_that_nothing_reaches() {
    let tasks = |bytes: u64| {
        let config = Config { backward: Backward::Keep, ..by_bytes(bytes) };
        let plan = plan_program(&small(), &config, 4).unwrap();
        (most_in_flight(&plan) as u64, plan.tasks.clone())
    };
    let (most, unlimited) = tasks(u64::MAX >> 1);
    // Every weight is used in forward and in backward.
    for counted in [most, most + most / 4] {
        assert_eq!(tasks(counted), (most, unlimited.clone()));
    }
}

#[test]
fn bytes_below_the_largest_adjacent_pair_name_the_uses_and_what_they_need() {
    let Err(SessionError::Plan(PlanError::Prefetch { needed, limit, needs })) =
        plan_program(&small(), &by_bytes(1 << 20), 4)
    else {
        panic!("a megabyte is too little");
    };
    assert_eq!(limit, 1 << 20);
    // The bf16 embedding beside the planes of the block after it.
    assert!(needs.contains("which uses `embedding`"), "{needs}");
    assert!(needs.contains("and beside it `blocks.0.qkv.weight` for call"), "{needs}");
    plan_program(&small(), &by_bytes(needed as u64), 4).unwrap();
    let error = plan_program(&small(), &by_bytes(needed as u64 - 1), 4).unwrap_err().to_string();
    assert!(error.contains("prefetch.bytes") && error.contains(&needed.to_string()), "{error}");
}

#[test]
fn the_bytes_that_an_error_asks_for_are_enough_also_where_planes_are_kept() {
    let plan =
        |bytes: usize, backward| plan_program(&small(), &Config { backward, ..by_bytes(bytes as u64) }, 4);
    let mut enough = Vec::new();
    for backward in [Backward::Keep, Backward::Regather] {
        let Err(SessionError::Plan(PlanError::Prefetch { needed, limit: 1, needs })) = plan(1, backward)
        else {
            panic!("a byte is too little");
        };
        // What takes the bytes is said, and nothing twice.
        assert_eq!(needs.contains("kept for later calls"), backward == Backward::Keep, "{needs}");
        let (own, beside) = needs.split_once(" and beside it ").unwrap();
        assert!(own.starts_with("call `") && !own.contains(beside), "{needs}");
        let made = plan(needed, backward).unwrap();
        assert!(most_in_flight(&made) <= needed);
        assert!(plan(needed - 1, backward).unwrap_err().to_string().contains(&needed.to_string()));
        enough.push(needed);
    }
    assert!(enough[0] > enough[1], "what is kept needs room: {enough:?}");
}

#[test]
fn a_program_of_more_calls_than_a_step_may_have_cannot_be_built() {
    let sizes = "layers = 64\nhidden = 64\nffn = 64\nheads = 1\nvocabulary = 64\nmicro_batches = 4096";
    let decoder = decoder("many", sizes, 1);
    let error = decoder.program(&decoder.model().unwrap()).unwrap_err();
    let DeclareError::TooManyRuns { calls, micro_batches: 4096, most, .. } = &error else {
        panic!("{error}");
    };
    assert!(calls * 4096 > *most && error.to_string().contains("fewer micro-batches"), "{error}");
}

/// PL-6. Of several plans that do not fit, here the step's and the one that casts the masters first, the one that
/// needs most is named: whoever follows the advice is through.
#[test]
fn the_budget_that_a_refusal_asks_for_is_enough_for_all_plans() {
    let (name, ranks, sizes) = SHAPES[4];
    let program = program(name, sizes, 1024);
    let cluster = preset("h100x8-ib").unwrap().unwrap();
    let plan = |budget: usize| {
        let mut config = Config::default();
        config.prefetch.depth = Some(0);
        config.memory.budget = Some(ByteSize::new(budget as u64));
        plan_program_on(&program, &config, &cluster, ranks)
    };
    let error = plan(1).unwrap_err();
    let SessionError::Plan(PlanError::Budget { needed, can_prefetch_less: false, .. }) = &error else {
        panic!("{error}")
    };
    let said = error.to_string();
    assert!(
        said.contains("prefetch.depth = 0 needs") && said.contains("; set memory.budget to \""),
        "{said}"
    );
    plan(*needed).unwrap();
    let advised = said.rsplit('"').nth(1).unwrap();
    plan(advised.parse::<ByteSize>().unwrap().bytes() as usize).unwrap();
}

/// PL-6
#[test]
fn auto_keeps_every_budget_that_gathers_on_demand_keep() {
    let (name, ranks, sizes) = SHAPES[4];
    let program = program(name, sizes, 1024);
    let cluster = preset("h100x8-ib").unwrap().unwrap();
    let plan = |budget: Option<usize>, communicators| {
        let mut config =
            Config { prefetch: Prefetch::auto(), communicators: Some(communicators), ..Config::default() };
        config.memory.budget = budget.map(|bytes| ByteSize::new(bytes as u64));
        plan_program_on(&program, &config, &cluster, ranks)
    };
    for (communicators, shares) in [(1, [1.0, 0.94]), (2, [0.97, 0.91])] {
        let free = plan(None, communicators).unwrap().bounds.transient_bytes;
        let on_demand =
            Config { prefetch: Prefetch::depth(0), communicators: Some(communicators), ..Config::default() };
        let least = plan_program(&program, &on_demand, ranks).unwrap().bounds.transient_bytes;
        let error = plan(Some(if communicators == 1 { 1 } else { free / 4 }), communicators).unwrap_err();
        let SessionError::Plan(PlanError::Budget { needed, can_prefetch_less: false, .. }) = &error else {
            panic!("{error}")
        };
        assert!(*needed <= least, "nothing that gathers later needs less: {needed}, {least}");
        assert!(error.to_string().contains("\"auto\" needs"), "{error}");
        plan(Some(*needed), communicators).unwrap();
        for share in shares {
            let budget = (free as f64 * share) as usize;
            if let Ok(plan) = plan(Some(budget), communicators) {
                assert!(plan.bounds.transient_bytes <= budget, "{share}");
            }
        }
        assert!(plan(Some(least), communicators).unwrap().bounds.transient_bytes <= least);
    }
}

/// PL-1: costs are data, so ranks that count with the same make the same plan.
#[test]
fn auto_makes_equal_plans_of_equal_costs() {
    let config = Config { prefetch: Prefetch::auto(), ..Config::default() };
    let fingerprint = || plan_program(&small(), &config, 4).unwrap().fingerprint();
    assert_eq!(fingerprint(), fingerprint());
}

#[test]
fn auto_without_costs_says_how_to_give_them() {
    let config = Config { prefetch: Prefetch::auto(), ..Config::default() };
    let error = StepPlan::build(&small(), &Policy::from(&config), Mesh::new(2).unwrap()).unwrap_err();
    assert!(error.to_string().contains("StepPlan::timed"), "{error}");
    let mut unknown = config.clone();
    unknown.prefetch.cluster = "h300".into();
    let error = plan_program(&small(), &unknown, 4).unwrap_err().to_string();
    assert!(error.contains("`prefetch.cluster` is \"h300\"") && error.contains("h100x8-ib"), "{error}");
}

#[test]
fn a_hand_schedule_is_taken_as_it_is_or_refused_with_what_is_wrong() {
    let program = small();
    let weights = Weights::new(program.model().weights(), Mesh::new(2).unwrap());
    let resident = ResidentLayout::new(&weights, &[&program]).unwrap();
    let policy = Policy::from(&Config::default());
    let plan = |issues: &[CallId]| StepPlan::by_hand(&program, &weights, &resident, &policy, issues);
    let error = plan(&[CallId::new(0)]).unwrap_err().to_string();
    assert!(error.contains("has 1 entries"), "{error}");
    let uses = error.split("each of the ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let mut back = vec![CallId::new(2); uses];
    back[uses - 1] = CallId::new(1);
    let error = plan(&back).unwrap_err().to_string();
    assert!(error.contains("goes back from call 2 to call 1"), "{error}");
    let first = plan(&vec![CallId::new(0); uses]).unwrap();
    let gathers = first.tasks.iter().filter(|task| matches!(task.op, Op::AllGather(_)));
    assert!(gathers.clone().count() > 0 && gathers.clone().all(|task| task.release.is_none()));
}

/// PL-6. Who raises the budget to what a refusal requests gives no byte more than is needed.
#[test]
fn the_budget_that_a_refusal_asks_for_is_the_least_that_is_accepted() {
    let (program, mut squeezed) = (small(), 0);
    for depth in [0, 1, 2, 4] {
        let plan = |budget: Option<usize>| {
            let mut config = Config { prefetch: Prefetch::depth(depth), ..Config::default() };
            config.memory.budget = budget.map(|bytes| ByteSize::new(bytes as u64));
            plan_program(&program, &config, 4)
        };
        let needed = |budget: usize| match plan(Some(budget)) {
            Err(SessionError::Plan(PlanError::Budget { needed, .. })) => needed,
            other => panic!("{budget} with depth {depth}: {:?}", other.map(|plan| plan.bounds)),
        };
        let least = needed(1);
        assert_eq!(plan(Some(least)).unwrap().bounds.transient_bytes, least, "depth {depth}");
        assert_eq!(needed(least - 1), least, "depth {depth}");
        squeezed += usize::from(least < plan(None).unwrap().bounds.transient_bytes);
    }
    assert!(squeezed > 0, "some plan needs less when tasks wait for memory");
}
