//! Features of random programs and their plans, counted over a run.
//!
//! Law: a case that a suite counts on has a row here, or in `expert_features` and its like, so it cannot get lost when
//! the generator changes.

use warpweft_base::id::SlotId;
use warpweft_format::{ElementType, Orientation};
use warpweft_plan::layout::WeightLayout;
use warpweft_plan::model::{
    Accumulation, BufferSpec, Call, Collective, Counts, Form, Lifetime, Phase, Placement, Reuse, Role,
    TensorParallel, WeightSpec,
};
use warpweft_plan::op::{
    Accumulate, AllGather, Dequantize, DequantizePart, ExchangeGradient, GatherChunk, Op, ReduceScatter,
    SumGradient, SumTarget, Transpose, Update,
};
use warpweft_plan::plan::{GatherStart, StepPlan};
use warpweft_plan::policy::{
    AcrossMicroBatches, Backward, Columnwise, Masters, Moments, ReduceDtype, ReduceEvery,
};
use warpweft_session::config::Scaling;

use super::collective_calls::KINDS;
use super::model::FORMATS;
use super::row::Feature;
use super::{
    DENSE, GROUPS, Sample, expert_features, gradient_features, matrix_features, scale_groups, slices,
    update_features,
};

/// Does the configuration of a sample say so?
type Chosen = fn(&Sample) -> bool;

/// All there are.
pub fn features() -> Vec<Feature> {
    let mut all: Vec<Feature> = Vec::new();
    let mut add = |name: &str, has: fn(&Sample, &StepPlan) -> bool| all.push((name.into(), Box::new(has)));
    add("a tied weight: several gradients in a micro-batch", |sample, _| {
        let calls = sample.program.calls();
        let gradients = |weight| calls.iter().filter(|call| call.gradient(weight).is_some()).count();
        sample.program.model().entries().any(|(weight, _)| gradients(weight) > 1)
    });
    add("a snapshot", |_, plan| plan.tasks.iter().any(|task| matches!(task.op, Op::Snapshot(_))));
    add("a replayed call", |sample, _| repeats(sample, Phase::Forward));
    add("a call recomputed in backward", |sample, _| repeats(sample, Phase::Backward));
    add("a dynamic call", |sample, _| sample.program.calls().iter().any(|call| call.dynamic));
    add("several micro-batches", |sample, _| sample.program.micro_batches() > 1);
    add("a gather of several weights", |_, plan| {
        plan.tasks
            .iter()
            .any(|task| matches!(&task.op, Op::AllGather(AllGather { parts, .. }) if parts.len() > 1))
    });
    add("a gather in chunks", |_, plan| plan.tasks.iter().any(|task| matches!(task.op, Op::GatherChunk(_))));
    add("planes made whole for a transposition", |_, plan| is_assembled(plan, false));
    add("planes made whole for a call", |_, plan| is_assembled(plan, true));
    add("dense values derived on the call's lane", |_, plan| is_dequantized(plan, true));
    add("dense values derived ahead of a call", |_, plan| is_dequantized(plan, false));
    add("a reduction of several weights", |_, plan| {
        let several = |op: &Op| match op {
            Op::ReduceScatter(ReduceScatter { parts, .. })
            | Op::ExchangeGradient(ExchangeGradient { parts, .. }) => parts.len() > 1,
            _ => false,
        };
        plan.tasks.iter().any(|task| several(&task.op))
    });
    add("gradients that a collective sums", |_, plan| {
        plan.tasks.iter().any(|task| matches!(task.op, Op::ReduceScatter(_)))
    });
    for target in [SumTarget::Rows, SumTarget::Rounded, SumTarget::First, SumTarget::More] {
        for alone in [false, true] {
            let has = move |_: &Sample, plan: &StepPlan| {
                let parts = plan.tasks.iter().flat_map(|task| match &task.op {
                    Op::SumGradient(SumGradient { parts, .. }) => parts.as_slice(),
                    _ => &[],
                });
                parts.into_iter().any(|part| (part.target, part.received.is_none()) == (target, alone))
            };
            let of = if alone { "one rank's gradient" } else { "exchanged gradients" };
            all.push((format!("a sum of {of} as {target:?}"), Box::new(has)));
        }
    }
    for target in [SumTarget::First, SumTarget::More] {
        let has = move |_: &Sample, plan: &StepPlan| {
            let parts = plan.tasks.iter().flat_map(|task| match &task.op {
                Op::SumGradient(SumGradient { parts, .. }) => parts.as_slice(),
                _ => &[],
            });
            parts.into_iter().any(|part| part.squares.is_some() && part.target == target)
        };
        all.push((format!("squares that a sum takes as {target:?}"), Box::new(has)));
    }
    all.push((
        "squares that an accumulation takes".into(),
        Box::new(|_, plan| {
            let takes = |op: &Op| matches!(op, Op::Accumulate(Accumulate { squares: Some(_), .. }));
            plan.tasks.iter().any(|task| takes(&task.op))
        }),
    ));
    for (squares, main_grads) in [(true, false), (true, true)] {
        let has = move |_: &Sample, plan: &StepPlan| {
            let read = |op: &Op| match op {
                Op::GradNorm(op) => Some((!op.squares.is_empty(), !op.main_grads.is_empty())),
                _ => None,
            };
            plan.tasks.iter().any(|task| read(&task.op) == Some((squares, main_grads)))
        };
        all.push((format!("a norm of squares ({squares}) and of main grads ({main_grads})"), Box::new(has)));
    }
    for part in [Accumulation::First, Accumulation::Next, Accumulation::Last] {
        let has = move |_: &Sample, plan: &StepPlan| plan.accumulation == part;
        all.push((format!("the {part} step of an accumulation"), Box::new(has)));
    }
    let mut add = |name: &str, has: fn(&Sample, &StepPlan) -> bool| all.push((name.into(), Box::new(has)));
    add("a whole step of a program that accumulates", |sample, plan| {
        sample.program.is_accumulating() && plan.accumulation == Accumulation::Whole
    });
    add("a rank's own sum of a replicated weight that is continued", |_, plan| {
        continues(plan, Placement::Replicated)
    });
    add("reduced rows added to a sum that is continued", |_, plan| continues(plan, Placement::Sharded));
    add("a sum that is continued, with replicas", |_, plan| {
        plan.accumulation.continues() && plan.weights.mesh.replicas() > 1
    });
    add("a sum that stays open, with a frozen weight", |_, plan| {
        plan.accumulation.stays_open() && plan.weights.layouts.iter().any(|layout| layout.frozen)
    });
    add("a replicated weight", |sample, _| {
        sample.program.model().weights().iter().any(|spec| spec.placement == Placement::Replicated)
    });
    add("a rank without rows", |_, plan| {
        let shards = plan.weights.mesh.shards() as usize;
        let is_short = |layout: &warpweft_plan::layout::WeightLayout| {
            layout.shard.rows_per_rank * (shards - 1) >= layout.shard.shape.rows
        };
        shards > 1 && plan.weights.layouts.iter().any(is_short)
    });
    add("rows that end within a block", |_, plan| {
        let is_cut = |layout: &warpweft_plan::layout::WeightLayout| {
            layout.format.whole_blocks(layout.shard.shape) != layout.shard.shape
        };
        plan.weights.layouts.iter().any(is_cut)
    });
    add("one communicator", |sample, _| sample.config.communicators == Some(1));
    add("two communicators", |sample, _| sample.config.communicators == Some(2));
    add("three communicators and replicas", |sample, plan| {
        sample.config.communicators >= Some(3) && plan.weights.mesh.replicas() > 1
    });
    add(
        "prefetch by depth",
        |_, plan| matches!(plan.policy.prefetch, GatherStart::Depth(depth) if depth > 0),
    );
    add("gathers on demand", |_, plan| plan.policy.prefetch == GatherStart::Depth(0));
    add("prefetch by bytes", |_, plan| matches!(plan.policy.prefetch, GatherStart::Bytes(_)));
    add("prefetch by prices", |_, plan| plan.policy.prefetch == GatherStart::Auto);
    add("holds cut to keep a budget", |sample, plan| {
        let saves = |free: StepPlan| {
            free.tasks.len() == plan.tasks.len() && free.arena.transient_bytes > plan.arena.transient_bytes
        };
        plan.policy.budget.is_some() && sample.planned_freely().is_some_and(saves)
    });
    add("a release", |_, plan| plan.tasks.iter().any(|task| task.release.is_some()));
    add("a use that is kept", |sample, _| reuses(sample, Reuse::Keep));
    add("a use that is gathered again", |sample, _| reuses(sample, Reuse::Regather));
    add("a weight that says so", |sample, _| {
        sample.program.model().weights().iter().any(|spec| spec.reuse.is_some())
    });
    add("moments in bf16", |sample, _| sample.config.optimizer.moments == Moments::Bf16);
    add("masters beside their shards", |sample, _| sample.config.optimizer.masters == Masters::Bf16Remainder);
    add("delayed scaling", |sample, _| sample.config.quantize.scaling == Scaling::Delayed);
    add("a bucket of several parameter groups", |_, plan| {
        let adams = plan.tasks.iter().filter(|task| matches!(task.op, Op::Adam(_)));
        adams.count() > plan.weights.buckets.len()
    });
    for lists in 0..=2 {
        let has = move |_: &Sample, plan: &StepPlan| updates(plan, |kept| kept == lists);
        all.push((format!("a custom optimizer with {lists} lists"), Box::new(has)));
    }
    let mut add = |name: &str, has: fn(&Sample, &StepPlan) -> bool| all.push((name.into(), Box::new(has)));
    add("a bucket of several parameter groups that a custom optimizer updates", |_, plan| {
        let rows = |op: &Op| matches!(op, Op::Update(Update { transformed: None, .. }));
        plan.tasks.iter().filter(|task| rows(&task.op)).count() > plan.weights.buckets.len()
    });
    add("a custom optimizer at the end of a sum, with replicas", |_, plan| {
        let is_last = plan.accumulation == Accumulation::Last && plan.weights.mesh.replicas() > 1;
        is_last && updates(plan, |_| true)
    });
    add("a custom optimizer whose masters are cast by delayed scales", |sample, plan| {
        sample.config.quantize.scaling == Scaling::Delayed && updates(plan, |_| true)
    });
    add("a custom optimizer beside a frozen weight", |_, plan| {
        plan.weights.layouts.iter().any(|layout| layout.frozen) && updates(plan, |_| true)
    });
    add("a frozen weight that a step leaves as it is, sharded and not", |sample, plan| {
        let frozen = |placement| {
            let mut weights = sample.program.model().weights().iter();
            weights.any(|spec| spec.frozen && spec.placement == placement)
        };
        plan.updates_weights && frozen(Placement::Sharded) && frozen(Placement::Replicated)
    });
    add("frozen and trained weights of one format", |sample, _| {
        let weights = sample.program.model().weights();
        let is_twin = |spec: &WeightSpec| {
            let of = |other: &WeightSpec| (other.format, other.placement) == (spec.format, spec.placement);
            weights.iter().any(|other| !other.frozen && of(other))
        };
        weights.iter().any(|spec| spec.frozen && is_twin(spec))
    });
    add("a fused weight that is cut by segments", |sample, _| {
        sample.config.mesh.tp > 1
            && sample.program.model().weights().iter().any(|weight| weight.segments.iter().count() > 1)
    });
    add("columnwise planes derived", |_, plan| {
        plan.tasks.iter().any(|task| matches!(task.op, Op::Transpose(_)))
    });
    add("columnwise planes of several weights derived at once", |_, plan| {
        plan.tasks
            .iter()
            .any(|task| matches!(&task.op, Op::Transpose(Transpose { parts }) if parts.len() > 1))
    });
    add("planes of several weights dequantized at once", |_, plan| {
        plan.tasks
            .iter()
            .any(|task| matches!(&task.op, Op::Dequantize(Dequantize { parts }) if parts.len() > 1))
    });
    add("values of whole planes", |_, plan| dequantizes(plan, |part| part.own.is_none()));
    add("values of what arrived", |_, plan| dequantizes(plan, |part| part.own.is_some()));
    add("values of what arrived in chunks", |_, plan| {
        let chunked = |slot: SlotId| {
            plan.tasks
                .iter()
                .any(|task| matches!(task.op, Op::GatherChunk(GatherChunk { part, .. }) if part.to == slot))
        };
        dequantizes(plan, |part| part.own.is_some() && chunked(part.from))
    });
    for form in [Form::Planes, Form::Dense, Form::DenseBf16] {
        for side in [Orientation::Rowwise, Orientation::Columnwise] {
            let has = move |sample: &Sample, _: &StepPlan| {
                let uses = sample.program.calls().iter().flat_map(|call| &call.uses);
                uses.into_iter().any(|usage| (usage.form, usage.orientation) == (form, side))
            };
            all.push((format!("a {side} use as {form:?}"), Box::new(has)));
        }
    }
    let configured: [(&str, Chosen); 9] = [
        ("backward keeps", |sample| sample.config.backward == Backward::Keep),
        ("backward gathers again", |sample| sample.config.backward == Backward::Regather),
        ("kept across micro-batches", |sample| {
            sample.config.across_micro_batches == AcrossMicroBatches::Keep
        }),
        ("kept if it fits", |sample| sample.config.across_micro_batches == AcrossMicroBatches::Fit),
        ("columnwise planes kept", |sample| sample.config.columnwise == Columnwise::Keep),
        ("reduced every call", |sample| sample.config.reduce_every == ReduceEvery::Call),
        ("reduced every micro-batch", |sample| sample.config.reduce_every == ReduceEvery::MicroBatch),
        ("reduced every step", |sample| sample.config.reduce_every == ReduceEvery::Step),
        ("f32 on the wire", |sample| sample.config.reduce_dtype == ReduceDtype::F32),
    ];
    for (name, has) in configured {
        all.push((name.into(), Box::new(move |sample, _| has(sample))));
    }
    for format in FORMATS {
        let has = move |sample: &Sample, _: &StepPlan| {
            sample.program.model().weights().iter().any(|spec| spec.format == format)
        };
        all.push((format!("a weight in {format}"), Box::new(has)));
    }
    for role in [Role::Internal, Role::Input, Role::Output] {
        for lifetime in [Lifetime::Step, Lifetime::Call, Lifetime::Carried] {
            let has = move |sample: &Sample, _: &StepPlan| {
                let mut specs = sample.program.buffers().iter();
                specs.any(|spec| (spec.role, spec.lifetime) == (role, lifetime))
            };
            all.push((format!("a buffer {role:?} for a {lifetime:?}"), Box::new(has)));
        }
    }
    for kind in KINDS {
        for group in GROUPS[..DENSE].iter().copied() {
            let has = move |sample: &Sample, plan: &StepPlan| {
                let of = |exchange: Collective| (exchange.kind, exchange.group) == (kind, group);
                plan.weights.mesh.size(group) > 1 && exchanges(sample).any(of)
            };
            all.push((format!("a collective, {kind} among the {group} group"), Box::new(has)));
        }
    }
    for element in [ElementType::F32, ElementType::Bf16, ElementType::U8, ElementType::U32] {
        let has = move |sample: &Sample, _: &StepPlan| {
            let of = |exchange: Collective| sample.program.buffers()[exchange.to.index()].element == element;
            exchanges(sample).any(of)
        };
        all.push((format!("a collective of {element}"), Box::new(has)));
    }
    for kind in KINDS.into_iter().filter(|kind| kind.combines()) {
        let has = move |sample: &Sample, _: &StepPlan| {
            let is_bf16 = |exchange: Collective| {
                sample.program.buffers()[exchange.to.index()].element == ElementType::Bf16
            };
            exchanges(sample).any(|exchange| exchange.kind == kind && is_bf16(exchange))
        };
        all.push((format!("a collective, {kind} of bf16"), Box::new(has)));
    }
    let mut add = |name: &str, has: fn(&Sample, &StepPlan) -> bool| all.push((name.into(), Box::new(has)));
    add("a dispatch among several ranks", |sample, plan| {
        exchanges(sample).any(|one| plan.weights.mesh.size(one.group) > 1 && counts(one, false))
    });
    add("a dispatch in several micro-batches", |sample, _| {
        sample.program.micro_batches() > 1 && exchanges(sample).any(|one| counts(one, false))
    });
    add("a dispatch with several slots for each rank", |sample, plan| {
        let slots = |counts: Counts| sample.program.buffers()[counts.given.index()].elements;
        exchanges(sample).any(|one| {
            one.counts.is_some_and(|counts| slots(counts) > plan.weights.mesh.size(one.group) as usize)
        })
    });
    add("rows that go back by the counts of a dispatch, and the same way again", |sample, _| {
        let given = exchanges(sample).find(|one| counts(*one, false)).and_then(|one| one.counts);
        let follows = |same: bool| {
            let is_same = |counts: Counts| Some(counts.given) == given.map(|given| given.given);
            exchanges(sample)
                .any(|one| one.counts.is_some_and(|counts| counts.known && is_same(counts) == same))
        };
        follows(true) && follows(false)
    });
    add("a collective of one rank with itself", |sample, plan| {
        exchanges(sample).any(|exchange| plan.weights.mesh.size(exchange.group) == 1)
    });
    add("a collective on a communicator of its own", |sample, plan| {
        sample.config.communicators == Some(4)
            && plan.tasks.iter().any(|task| matches!(task.op, Op::CollectiveCall(_)))
    });
    add("a collective in several micro-batches", |sample, _| {
        sample.program.micro_batches() > 1 && exchanges(sample).next().is_some()
    });
    add("a collective before the first call", |sample, _| sample.program.calls()[0].collective.is_some());
    add("a collective back into the buffer that was given", |sample, _| {
        exchanges(sample)
            .any(|one| exchanges(sample).any(|other| (one.from, one.to) == (other.to, other.from)))
    });
    add("a collective of an input, and of what an earlier step left", |sample, _| {
        let gives = |wanted: fn(&BufferSpec) -> bool| {
            exchanges(sample).any(|exchange| wanted(&sample.program.buffers()[exchange.from.index()]))
        };
        gives(|spec| spec.role == Role::Input) && gives(|spec| spec.lifetime == Lifetime::Carried)
    });
    add("a collective after a call whose planes are gathered ahead", |_, plan| {
        let exchanges = plan.tasks.iter().filter(|task| matches!(task.op, Op::CollectiveCall(_)));
        exchanges.count() > 0 && plan.tasks.iter().any(|task| task.release.is_some())
    });
    for shards in 1..=5 {
        let has = move |sample: &Sample, _: &StepPlan| sample.mesh().shards() == shards;
        all.push((format!("{shards} shards"), Box::new(has)));
    }
    for replicas in 1..=3 {
        let has = move |sample: &Sample, _: &StepPlan| sample.mesh().replicas() == replicas;
        all.push((format!("{replicas} replicas"), Box::new(has)));
    }
    for how in [
        TensorParallel::ColumnParallel,
        TensorParallel::RowParallel,
        TensorParallel::SplitTokens,
        TensorParallel::AlikeTokens,
    ] {
        let is_so = move |layout: &WeightLayout| layout.shard.tensor.is_some_and(|cut| cut.how == Some(how));
        for shards in [false, true] {
            let has = move |sample: &Sample, plan: &StepPlan| {
                (sample.mesh().shards() > 1) == shards && plan.weights.layouts.iter().any(is_so)
            };
            let of = if shards { "whose parts are sharded" } else { "with a part a rank" };
            all.push((format!("{how:?}, {of}"), Box::new(has)));
        }
    }
    let of_one_shard =
        |sample: &Sample, _: &StepPlan| sample.mesh().shards() == 1 && sample.mesh().replicas() > 1;
    all.push(("replicas of one rank each".into(), Box::new(of_one_shard)));
    all.extend(expert_features::features());
    all.extend(gradient_features::features());
    all.extend(matrix_features::features());
    all.extend(update_features::features());
    all.extend(scale_groups::features());
    all.extend(slices::features());
    all
}

/// What ranks give each other.
fn exchanges(sample: &Sample) -> impl Iterator<Item = Collective> {
    sample.program.calls().iter().filter_map(|call| call.collective)
}

/// Is it a dispatch, or what follows one?
fn counts(exchange: Collective, known: bool) -> bool {
    exchange.counts.is_some_and(|counts| counts.known == known)
}

/// Does a task add a gradient of a weight placed so to what earlier steps added up?
fn continues(plan: &StepPlan, placement: Placement) -> bool {
    let adds = |op: &Op| matches!(op, Op::Accumulate(Accumulate { weight, .. }) if plan.weights.layout(*weight).placement == placement);
    plan.accumulation.continues() && plan.tasks.iter().any(|task| adds(&task.op))
}

/// Does a custom optimizer update a weight beside which so many lists are kept?
fn updates(plan: &StepPlan, wanted: impl Fn(usize) -> bool) -> bool {
    let states = plan.tasks.iter().flat_map(|task| match &task.op {
        Op::Update(Update { states, .. }) => states.as_slice(),
        _ => &[],
    });
    states.into_iter().any(|state| wanted(state.kept.len()))
}

/// Does a plan dequantize such a part?
fn dequantizes(plan: &StepPlan, wanted: impl Fn(&DequantizePart) -> bool) -> bool {
    let parts = plan.tasks.iter().filter_map(|task| match &task.op {
        Op::Dequantize(Dequantize { parts }) => Some(parts),
        _ => None,
    });
    parts.flatten().any(wanted)
}

/// Are planes made whole on the compute lane, or on another one?
fn is_assembled(plan: &StepPlan, computes: bool) -> bool {
    let mut assembles = plan.tasks.iter().filter(|task| matches!(task.op, Op::Assemble(_)));
    assembles.any(|task| (task.lane == plan.compute_lane()) == computes)
}

/// Are dense values made on the compute lane, or on another one?
fn is_dequantized(plan: &StepPlan, computes: bool) -> bool {
    let mut dequantized = plan.tasks.iter().filter(|task| matches!(task.op, Op::Dequantize(_)));
    dequantized.any(|task| (task.lane == plan.compute_lane()) == computes)
}

/// Does a call of this phase use exactly what an earlier one, forward, uses?
fn repeats(sample: &Sample, phase: Phase) -> bool {
    let calls = sample.program.calls();
    let is_again = |(number, call): (usize, &Call)| {
        let mut earlier = calls[..number].iter().filter(|other| other.phase == Phase::Forward);
        call.phase == phase && !call.uses.is_empty() && earlier.any(|other| other.uses == call.uses)
    };
    calls.iter().enumerate().any(is_again)
}

fn reuses(sample: &Sample, reuse: Reuse) -> bool {
    sample.program.calls().iter().flat_map(|call| &call.uses).any(|usage| usage.reuse == Some(reuse))
}
