//! Dispatch and combine in whole sessions, issued and captured: rows come to their experts and back, and a slot that
//! overflows skips a step.
//!
//! Law: closures copy and compute nothing, so what is expected is what ranks were given. Of rows after the counts
//! nothing is said.

use bytemuck::Pod;
use half::bf16;
use warpweft_base::id::RankId;
use warpweft_format::{Element, ElementType, Format, Orientation};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Collective, Counts, Form, Group, Mesh, Model, Phase, StepProgram};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Outcome, Session, SessionError, StepReport};

use super::harness::within_limit;
use crate::device::most_captured_ranks;
use crate::products::{Surface, copy_buffer, copy_gradient, settled, start};

const CAPACITY: usize = 6;
/// Slots of a rank for each of its group.
const SLOTS: usize = 3;
const WIDTH: usize = 5;
/// Elements of the one weight.
const WEIGHT: usize = 8;
/// The second and the fourth overflow.
const STEPS: usize = 7;

/// What goes through a program: rows, as values of this type.
trait Row: Element + Pod + PartialEq + std::fmt::Debug {
    fn of(number: usize) -> Self;
}

impl Row for f32 {
    fn of(number: usize) -> Self {
        number as Self
    }
}

impl Row for bf16 {
    fn of(number: usize) -> Self {
        Self::from_bits(number as u16)
    }
}

fn program<T: Row>(ranks: usize, group: Group) -> StepProgram {
    let mut model = Model::builder();
    let weight = model.sharded("w", 2, WEIGHT / 2, Format::F32).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    let (forward, backward) = (Phase::Forward, Phase::Backward);
    let slots = SLOTS * ranks;
    let elements = slots * CAPACITY * WIDTH;
    let rows = program.input("rows", elements, T::TYPE).unwrap();
    let wanted = program.input("wanted", slots, ElementType::U32).unwrap();
    let slope = program.input("slope", WEIGHT, ElementType::F32).unwrap();
    let [result, there] = ["result", "there"].map(|name| program.output(name, elements, T::TYPE).unwrap());
    let took = program.output("took", slots, ElementType::U32).unwrap();
    let [given, taken] =
        ["given", "taken"].map(|name| program.activation_in(name, slots, ElementType::U32).unwrap());
    let [sent, brought, made, back, slopes, slopes_there] =
        ["sent", "brought", "made", "back", "slopes", "slopes there"]
            .map(|name| program.activation_in(name, elements, T::TYPE).unwrap());
    let call = program.call("route", forward).uses(weight, Orientation::Rowwise, Form::Dense);
    call.reads(rows).reads(wanted).writes(sent).writes(given).add().unwrap();
    let dispatch = Collective::dispatch(sent, brought, Counts::new(given, taken, CAPACITY)).among(group);
    program.collective("dispatch", forward, dispatch).unwrap();
    let call = program.call("experts", forward).reads(brought).reads(taken);
    call.writes(made).writes(took).add().unwrap();
    program.collective("combine", forward, dispatch.back(made, back)).unwrap();
    let call = program.call("collect", forward).reads(back).reads(given);
    call.writes(result).writes(slopes).add().unwrap();
    program.collective("slopes", backward, dispatch.again(slopes, slopes_there)).unwrap();
    let call = program.call("fit", backward).reads(slopes_there).reads(taken).reads(slope);
    call.writes(there).gradient(weight).add().unwrap();
    program.build_training().unwrap()
}

fn run<T: Row>(call: &Call, context: &ComputeContext<'_, Surface>) -> Result<(), ComputeError> {
    match call.name.as_str() {
        "route" => {
            copy_buffer::<T>(context, ["rows", "sent"])?;
            copy_buffer::<u32>(context, ["wanted", "given"])
        }
        "experts" => {
            copy_buffer::<T>(context, ["brought", "made"])?;
            copy_buffer::<u32>(context, ["taken", "took"])
        }
        "collect" => {
            copy_buffer::<T>(context, ["back", "result"])?;
            copy_buffer::<T>(context, ["back", "slopes"])
        }
        _ => {
            copy_buffer::<T>(context, ["slopes there", "there"])?;
            copy_gradient(context, ["slope", "w"])
        }
    }
}

fn overflows(step: usize) -> bool {
    step == 1 || step == 3
}

/// Rows that `rank` has in each slot, uneven or in all none or as many as there is room for. The last rank of all has
/// too many in one of them, in a step that overflows.
fn wanted(mesh: Mesh, group: Group, step: usize, rank: RankId) -> Vec<u32> {
    let count = |slot: usize| match step % 4 {
        2 => 0,
        0 if step > 0 => CAPACITY,
        _ => (5 * rank.index() + 3 * slot + step) % (CAPACITY + 1),
    };
    let mut all: Vec<u32> = (0..SLOTS * mesh.size(group) as usize).map(|slot| count(slot) as u32).collect();
    if overflows(step) && rank.number() + 1 == mesh.ranks() {
        all[1] = CAPACITY as u32 + 4;
    }
    all
}

/// Values that no other rank, step or place has, as far as a type goes.
fn rows<T: Row>(elements: usize, step: usize, rank: RankId) -> Vec<T> {
    (0..elements).map(|at| T::of((STEPS * rank.index() + step) * elements + at)).collect()
}

/// The filled rows of a slot.
fn filled<T>(all: &[T], slot: usize, count: u32) -> &[T] {
    &all[slot * CAPACITY * WIDTH..][..count as usize * WIDTH]
}

fn check<T: Row>(report: &StepReport, mesh: Mesh, group: Group, step: usize) {
    let elements = SLOTS * mesh.size(group) as usize * CAPACITY * WIDTH;
    for rank in mesh.iter() {
        let [result, there] = ["result", "there"].map(|name| report.output::<T>(rank, name).unwrap());
        let took = report.output::<u32>(rank, "took").unwrap();
        let (own, counts) = (rows::<T>(elements, step, rank), wanted(mesh, group, step, rank));
        for (slot, count) in counts.into_iter().enumerate() {
            let what = format!("{mesh}, {rank}, step {step}, slot {slot}");
            assert_eq!(filled(&result, slot, count), filled(&own, slot, count), "back: {what}");
        }
        let place = mesh.position(rank, group) as usize;
        for (giver, member) in mesh.members(rank, group).enumerate() {
            let (theirs, counts) = (rows::<T>(elements, step, member), wanted(mesh, group, step, member));
            for slot in 0..SLOTS {
                let (here, there_at) = (SLOTS * giver + slot, SLOTS * place + slot);
                let count = counts[there_at];
                let what = format!("{mesh}, {rank}, step {step}, slot {here}");
                assert_eq!(took[here], count, "{what}");
                assert_eq!(filled(&there, here, count), filled(&theirs, there_at, count), "there: {what}");
            }
        }
    }
}

async fn check_session<T: Row>(mesh: Mesh, group: Group, capture: Capture) {
    let mut config = settled(Config { capture, ..Config::default() });
    // The checking layer would refuse what is copied of rows after the counts.
    config.check = false;
    config.mesh.dp_replicate = Some(mesh.replicas());
    (config.mesh.ep, config.mesh.ep_shard) = (mesh.expert(), Some(mesh.expert_shards()));
    let closures = |_: RankId| |call: &Call, context: &ComputeContext<'_, Surface>| run::<T>(call, context);
    let builder = Session::builder(config, closures).program(program::<T>(mesh.size(group) as usize, group));
    let builder = builder.initialize(|_, values| values.fill(1.0));
    let mut session = start(builder, mesh.ranks()).await;
    let elements = SLOTS * mesh.size(group) as usize * CAPACITY * WIDTH;
    let mut updates = 0;
    for step in 0..STEPS {
        for rank in mesh.iter() {
            session.write_input("train", rank, "rows", &rows::<T>(elements, step, rank)).unwrap();
            session.write_input("train", rank, "wanted", &wanted(mesh, group, step, rank)).unwrap();
            session.write_input("train", rank, "slope", &[0.5_f32; WEIGHT]).unwrap();
        }
        let ended = session.step("train").await;
        if overflows(step) {
            let error = ended.unwrap_err();
            let SessionError::Closure { step: at, rank, call, message, panicked: None } = &error else {
                panic!("{error}")
            };
            let last = mesh.iter().last().unwrap();
            assert_eq!((*at, *rank, call.as_str()), (step as u64, last, "route"));
            let says = "`given` counts 10 rows in slot 1, which is for rank 0 of the";
            assert!(message.starts_with(says), "{message}");
            let group = format!("{group} group, but `dispatch` has a capacity of {CAPACITY}; declare");
            assert!(message.contains(&group), "{message}");
            continue;
        }
        updates += 1;
        let report = ended.unwrap();
        let Outcome::Updated { optimizer_step, .. } = report.outcome else { panic!("{:?}", report.outcome) };
        assert_eq!(optimizer_step, updates, "{mesh}, {capture:?}, step {step}");
        let is_replayed = capture == Capture::Step && step > 0;
        assert_eq!(report.segments, usize::from(is_replayed), "{mesh}, {capture:?}, step {step}");
        check::<T>(&report, mesh, group, step);
    }
    session.close().await.unwrap();
}

fn check_all(worlds: impl IntoIterator<Item = (Mesh, Group)>, capture: Capture) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    for (mesh, group) in worlds {
        runtime.block_on(check_session::<f32>(mesh, group, capture));
        runtime.block_on(check_session::<bf16>(mesh, group, capture));
    }
}

/// Flat, and meshes with experts, of few ranks first: a body goes as far as there are GPUs, or as ranks may share them.
fn worlds() -> Vec<(Mesh, Group)> {
    let flat = |ranks| (Mesh::new(ranks).unwrap(), Group::World);
    let experts = |ranks, replicas, ep, ep_shard| {
        let mesh = Mesh::hybrid(ranks, replicas).and_then(|mesh| mesh.with_experts(ep, Some(ep_shard)));
        (mesh.unwrap(), Group::Expert)
    };
    let meshes = [experts(2, 1, 2, 1), experts(4, 1, 2, 2), experts(4, 1, 4, 1), experts(4, 2, 2, 1)];
    [flat(1), flat(2)].into_iter().chain(meshes).chain([experts(8, 2, 2, 2), experts(8, 1, 4, 2)]).collect()
}

/// CO-2, EX-2
fn rows_reach_their_experts_and_come_back_and_a_slot_that_overflows_skips_a_step() {
    within_limit(|| check_all(worlds(), Capture::Off));
}

/// EX-1: a step that was captured goes by the counts that it finds.
fn captured_dispatches_go_by_the_counts_of_their_step() {
    within_limit(|| {
        let fits = |(mesh, _): &(Mesh, Group)| mesh.ranks() <= most_captured_ranks();
        check_all(worlds().into_iter().filter(fits), Capture::Step);
    });
}

bodies! {
    rows_reach_their_experts_and_come_back_and_a_slot_that_overflows_skips_a_step,
    captured_dispatches_go_by_the_counts_of_their_step,
}
