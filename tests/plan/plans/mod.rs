//! Plans as data: the tasks of the passes, and their places.

mod ahead;
mod calls_ahead;
mod collective_calls;
mod custom_optimizer;
mod joined;
mod matrices;
mod matrix_costs;
mod parts;
mod replicas;
mod scale_groups;
mod states;

use warpweft_base::id::{CallId, SlotId, TaskId};
use warpweft_format::{ElementType, Format, Orientation, Via};
use warpweft_plan::layout::{ALIGNMENT, Content, OptimizerSettings, Settings, Weights};
use warpweft_plan::model::{Access, Form, Mesh, Model, Phase, StepProgram};
use warpweft_plan::op::{Assemble, Dequantize, GatherChunk, Op};
use warpweft_plan::plan::{EdgeKind, GatherStart, Policy, ResidentLayout, StepPlan, Task};
use warpweft_plan::policy::{
    AcrossMicroBatches, AdamMode, Backward, ByteSize, Columnwise, Reduce, ReduceDtype, ReduceEvery,
};
use warpweft_session::config::Config;
use warpweft_session::session::{columnwise_saving, plan_program};

fn policy(depth: u32) -> Policy {
    Policy {
        prefetch: GatherStart::Depth(depth),
        chunk: None,
        budget: None,
        communicators: 2,
        backward: Backward::Regather,
        across_micro_batches: AcrossMicroBatches::default(),
        reduce_every: ReduceEvery::default(),
        reduce_delay: 2,
        derive_ahead: false,
        reduce_dtype: ReduceDtype::default(),
        reduce: Reduce::default(),
        columnwise: Columnwise::OnDemand,
        settings: Settings {
            via: Via::Bf16,
            optimizer: OptimizerSettings {
                mode: AdamMode::AdamW,
                epsilon: 1e-8,
                bias_correction: true,
                max_norm: 0.0,
            },
        },
    }
}

/// `layers` square weights in a chain, forward and backward, and one replicated bias.
fn chain(layers: usize, format: Format) -> StepProgram {
    let mut model = Model::builder();
    let weights: Vec<_> =
        (0..layers).map(|layer| model.sharded(&format!("w{layer}"), 64, 64, format).unwrap()).collect();
    let bias = model.replicated("bias", 1, 7).unwrap();
    let model = model.build();
    let mut program = StepProgram::builder("train", &model);
    let input = program.input("input", 8, ElementType::F32).unwrap();
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    let mut activations = vec![program.activation("x0", 8).unwrap()];
    program.call("embed", Phase::Forward).reads(input).writes(activations[0]).add().unwrap();
    for (layer, weight) in weights.iter().enumerate() {
        let output = program.activation(&format!("x{}", layer + 1), 8).unwrap();
        program
            .call(&format!("f{layer}"), Phase::Forward)
            .uses(*weight, Orientation::Rowwise, Form::Dense)
            .uses(bias, Orientation::Rowwise, Form::Dense)
            .reads(activations[layer])
            .writes(output)
            .add()
            .unwrap();
        activations.push(output);
    }
    let gradient = program.activation("g", 8).unwrap();
    program
        .call("loss", Phase::Forward)
        .reads(activations[layers])
        .writes(loss)
        .writes(gradient)
        .add()
        .unwrap();
    for (layer, weight) in weights.iter().enumerate().rev() {
        let mut call = program
            .call(&format!("b{layer}"), Phase::Backward)
            .uses(*weight, Orientation::Columnwise, Form::Dense)
            .gradient(*weight)
            .reads(activations[layer])
            .updates(gradient);
        if layer == 0 {
            call = call.gradient(bias);
        }
        call.add().unwrap();
    }
    program.build_training().unwrap()
}

fn position(plan: &StepPlan, wanted: impl Fn(&Op, &str) -> bool) -> usize {
    plan.tasks.iter().position(|task| wanted(&task.op, &task.subject)).expect("the task is planned")
}

#[test]
fn a_gather_is_issued_depth_calls_ahead_of_its_use() {
    for depth in 0..4 {
        let plan = StepPlan::build(&chain(6, Format::F32), &policy(depth), Mesh::new(2).unwrap()).unwrap();
        let gather = position(&plan, |op, subject| matches!(op, Op::AllGather(_)) && subject == "w4");
        let release = plan.tasks[gather].release.expect("it is released by a call");
        assert_eq!(plan.task(release).subject, ["f3", "f2", "f1", "f0"][depth as usize]);
    }
}

/// PL-2: one assemble for each gather, chunks or not, right before its first reader and on that reader's lane;
/// none where everybody dequantizes what arrived.
#[test]
fn gathered_planes_are_made_whole_right_before_their_first_reader_on_its_lane() {
    let mut on = [0; 2];
    let formats = [Format::NVFP4_2D, Format::F32];
    let ways = [(0, None), (1, None), (3, None), (2, Some(1024))];
    for (format, (depth, chunk)) in formats.into_iter().flat_map(|format| ways.map(|way| (format, way))) {
        let policy = Policy { chunk, ..policy(depth) };
        let plan = StepPlan::build(&chain(6, format), &policy, Mesh::new(2).unwrap()).unwrap();
        let begins = |op: &Op| match op {
            Op::AllGather(_) => true,
            Op::GatherChunk(GatherChunk { chunk, .. }) => chunk.begin == 0,
            _ => false,
        };
        let count = |wanted: &dyn Fn(&Op) -> bool| plan.tasks.iter().filter(|task| wanted(&task.op)).count();
        let beside = |op: &Op| matches!(op, Op::Dequantize(Dequantize { parts }) if parts[0].own.is_some());
        assert_eq!(count(&begins), count(&|op| matches!(op, Op::Assemble(_))) + count(&beside));
        assert_eq!(
            count(&beside) > 0,
            format == Format::NVFP4_2D,
            "forward, of a gather that backward repeats"
        );
        for (position, task) in plan.tasks.iter().enumerate() {
            let Op::Assemble(Assemble { parts }) = &task.op else { continue };
            let reader = &plan.tasks[position + 1];
            let reads = |(slot, access): &(SlotId, Access)| *slot == parts[0].to && access.reads();
            assert!(reader.op.accesses().iter().any(reads), "{} after {}", reader.op.name(), task.subject);
            assert_eq!(task.lane, reader.lane);
            assert!(task.release.is_none() && task.wire_bytes == 0 && task.collective.is_none());
            on[task.lane.index()] += 1;
        }
    }
    assert!(on.iter().all(|count| *count > 0), "for calls and for transpositions: {on:?}");
}

#[test]
fn equal_inputs_give_equal_plans_and_fingerprints() {
    let mesh = Mesh::new(3).unwrap();
    let one = StepPlan::build(&chain(4, Format::F32), &policy(2), mesh).unwrap();
    let two = StepPlan::build(&chain(4, Format::F32), &policy(2), mesh).unwrap();
    assert_eq!(one, two);
    assert_eq!(one.fingerprint(), two.fingerprint());
    let deeper = StepPlan::build(&chain(4, Format::F32), &policy(3), mesh).unwrap();
    assert_ne!(one.fingerprint(), deeper.fingerprint());
}

/// PL-1. The test runs itself in a second process, which prints what it finds.
#[test]
fn two_processes_agree_on_the_fingerprint_of_a_plan() {
    const CHILD: &str = "PRINT_THE_FINGERPRINT";
    let plan = StepPlan::build(&chain(3, Format::NVFP4_2D), &policy(2), Mesh::new(4).unwrap()).unwrap();
    let fingerprint = format!("fingerprint {:016x}", plan.fingerprint());
    if std::env::var_os(CHILD).is_some() {
        println!("\n{fingerprint}");
        return;
    }
    let other = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "plans::two_processes_agree_on_the_fingerprint_of_a_plan", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8(other.stdout).unwrap();
    assert!(said.contains(&fingerprint), "{said}");
}

#[test]
fn a_budget_below_the_plan_names_what_is_alive() {
    let mesh = Mesh::new(2).unwrap();
    // Holds of this chain take more than what is alive at one time.
    let longer = |layers: &usize| {
        let bounds = StepPlan::build(&chain(*layers, Format::F32), &policy(2), mesh).unwrap().bounds;
        bounds.transient_bytes > bounds.live_bytes
    };
    let program = chain((4..20).find(longer).unwrap(), Format::F32);
    let free = StepPlan::build(&program, &policy(2), mesh).unwrap();
    let tight = Policy { budget: Some(free.bounds.transient_bytes), ..policy(2) };
    StepPlan::build(&program, &tight, mesh).unwrap();
    // A little less makes tasks wait for memory; less than what is alive at one time is refused.
    let waits = Policy { budget: Some(free.bounds.transient_bytes - 1), ..policy(2) };
    let waiting = StepPlan::build(&program, &waits, mesh).unwrap();
    assert!(waiting.bounds.transient_bytes < free.bounds.transient_bytes);
    assert_eq!(waiting.bounds.live_bytes, free.bounds.live_bytes);
    let short = Policy { budget: Some(free.bounds.live_bytes - 1), ..policy(2) };
    let error = StepPlan::build(&program, &short, mesh).unwrap_err().to_string();
    assert!(error.contains("memory.budget") && error.contains("(16.00 KiB)"), "{error}");
}

/// PL-6: sharing bytes costs little beside the bound no layout can beat.
#[test]
fn the_arena_stays_close_to_the_live_bytes() {
    for depth in 0..4 {
        let program = chain(12, Format::NVFP4_2D);
        let plan = StepPlan::build(&program, &policy(depth), Mesh::new(4).unwrap()).unwrap();
        let bounds = plan.bounds;
        assert!(bounds.transient_bytes >= bounds.live_bytes);
        assert!(bounds.transient_bytes < bounds.live_bytes * 3 / 2, "depth {depth}: {bounds:?}");
        let sum: usize = plan.transient().map(|slot| plan.arena.region(slot).bytes).sum();
        assert!(bounds.transient_bytes < sum / 3, "slots share bytes");
    }
}

#[test]
fn a_weight_still_there_is_not_gathered_again() {
    let mut model = Model::builder();
    let tied = model.sharded("tied", 64, 64, Format::F32).unwrap();
    let model = model.build();
    let mut program = StepProgram::builder("evaluate", &model);
    for call in ["first", "second", "third"] {
        program.call(call, Phase::Forward).uses(tied, Orientation::Rowwise, Form::Dense).add().unwrap();
    }
    let plan =
        StepPlan::build(&program.build_evaluation().unwrap(), &policy(1), Mesh::new(2).unwrap()).unwrap();
    let gathers = plan.tasks.iter().filter(|task| matches!(task.op, Op::AllGather(_))).count();
    assert_eq!(gathers, 1);
}

#[test]
fn keeping_weights_or_their_columnwise_copies_trades_gathers_for_memory() {
    let mesh = Mesh::new(2).unwrap();
    let program = chain(32, Format::NVFP4_2D);
    let gathered = |policy: &Policy| {
        let plan = StepPlan::build(&program, policy, mesh).unwrap();
        let gathers = plan.tasks.iter().filter(|task| matches!(task.op, Op::AllGather(_))).count();
        (gathers, plan.bounds.transient_bytes)
    };
    let (again, small) = gathered(&policy(1));
    let (kept, large) = gathered(&Policy { backward: Backward::Keep, ..policy(1) });
    let (copied, larger) = gathered(&Policy { columnwise: Columnwise::Keep, ..policy(1) });
    assert_eq!((kept, copied), (32, 32));
    assert!(again > 32 && large > small && larger > small, "{again} {small} {large} {larger}");
    let config = Config { reduce_delay: policy(1).reduce_delay, ..Config::default() };
    let saving = |config: &Config| {
        let plan = plan_program(&program, config, 2).unwrap();
        columnwise_saving(&plan, &program, config, None).unwrap()
    };
    assert_eq!(saving(&config), Some(larger - small));
    let mut tight = config.clone();
    tight.memory.budget = Some(ByteSize::new(small as u64));
    assert_eq!(saving(&tight), None);
    let mut keeping = config;
    keeping.columnwise = Columnwise::Keep;
    assert_eq!(saving(&keeping), Some(0));
}

#[test]
fn a_plan_prints_every_task_and_draws_every_fence() {
    let plan = StepPlan::build(&chain(3, Format::NVFP4_2D), &policy(1), Mesh::new(2).unwrap()).unwrap();
    let table = plan.to_string();
    assert_eq!(table.lines().count(), plan.tasks.len() + 3 + plan.notes.len());
    let dot = plan.to_dot();
    let fences: usize = plan.tasks.iter().map(|task| task.waits.len()).sum();
    assert_eq!(dot.matches("style=bold").count(), fences);
    assert!(plan.tasks.iter().all(|task| dot.contains(&task.subject)));
}

#[test]
fn a_policy_out_of_range_is_refused_with_its_key() {
    let mesh = Mesh::new(2).unwrap();
    let error = StepPlan::build(&chain(1, Format::F32), &Policy { communicators: 5, ..policy(0) }, mesh);
    assert!(error.unwrap_err().to_string().contains("communicators"));
}

/// The prologue has a name of its own that no program can get in the way of.
#[test]
fn a_program_may_be_called_prologue() {
    let mut model = Model::builder();
    let weight = model.sharded("w", 64, 64, Format::NVFP4_2D).unwrap();
    let model = model.build();
    let mut program = StepProgram::builder("prologue", &model);
    let input = program.input("input", 8, ElementType::F32).unwrap();
    let call = program.call("read", Phase::Forward).uses(weight, Orientation::Rowwise, Form::Planes);
    call.reads(input).add().unwrap();
    let program = program.build_evaluation().unwrap();
    let weights = Weights::new(model.weights(), Mesh::new(2).unwrap());
    let resident = ResidentLayout::new(&weights, &[&program]).unwrap();
    StepPlan::prologue(&weights, &resident, &policy(1)).unwrap();
    StepPlan::within(&program, &weights, &resident, &policy(1)).unwrap();
}

/// The arena's law: what shares bytes never lives at the same time, and no gap is left below a slot
/// that nothing held.
#[test]
fn slots_share_bytes_only_at_different_times_and_lie_as_low_as_they_can() {
    for depth in [0, 2, 5] {
        let program = chain(40, Format::NVFP4_2D);
        let plan = StepPlan::build(&program, &policy(depth), Mesh::new(4).unwrap()).unwrap();
        let mut lives = vec![None; plan.arena.slots.len()];
        for (task, planned) in plan.entries() {
            for (slot, _) in planned.op.accesses() {
                let first = lives[slot.index()].map_or(task, |(first, _)| first);
                lives[slot.index()] = Some((first, task));
            }
        }
        let transient: Vec<_> = plan.transient().collect();
        let mut shared = 0;
        for (position, one) in transient.iter().enumerate() {
            let region = plan.arena.region(*one);
            for other in &transient[..position] {
                if !region.overlaps(plan.arena.region(*other)) {
                    continue;
                }
                shared += 1;
                let (Some(mine), Some(theirs)) = (lives[one.index()], lives[other.index()]) else {
                    panic!("{one} and {other} are accessed");
                };
                assert!(mine.1 < theirs.0 || theirs.1 < mine.0, "{one} and {other} live at once");
            }
            let touches = |other: &&SlotId| {
                plan.arena.region(**other).end().next_multiple_of(ALIGNMENT) == region.offset
            };
            let lowest = region.offset == plan.bounds.resident_bytes;
            assert!(lowest || transient.iter().any(|other| touches(&other)), "nothing holds {one} up");
        }
        assert!(shared > transient.len(), "sharing is what the layout is for");
    }
}

/// Every gather that gets its bytes only after its release is in some note, found here by looking at every edge.
#[test]
fn a_plan_notes_every_gather_whose_memory_comes_late() {
    let mut noted = 0;
    for (depth, communicators) in [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2), (2, 2)] {
        let free = Policy { communicators, ..policy(depth) };
        let program = chain(12, Format::NVFP4_2D);
        let mesh = Mesh::new(2).unwrap();
        let plan = StepPlan::build(&program, &free, mesh).unwrap();
        // In as little memory as there can be, tasks wait for it.
        let tight = Policy { budget: Some(plan.bounds.live_bytes), ..free };
        let plan = StepPlan::build(&program, &tight, mesh).unwrap_or(plan);
        let edges = plan.edges();
        let is_late = |(id, task): &(TaskId, &Task)| {
            matches!(task.op, Op::AllGather(_))
                && edges.iter().any(|edge| {
                    edge.to == *id
                        && edge.kind == EdgeKind::Credit
                        && task.release.is_none_or(|by| by < edge.from)
                })
        };
        let late: Vec<&str> = plan.entries().filter(is_late).map(|(_, task)| task.subject.as_str()).collect();
        // A note begins with their number, or is about one.
        let count = |note: &String| note.split(' ').next().unwrap().parse().unwrap_or(1);
        assert_eq!(plan.notes.iter().map(count).sum::<usize>(), late.len(), "{:?}", plan.notes);
        let names_one = |note: &String| late.iter().any(|subject| note.contains(subject));
        assert!(plan.notes.iter().all(names_one), "{:?}", plan.notes);
        assert!(late.first().is_none_or(|first| plan.notes[0].contains(first)), "{:?}", plan.notes);
        noted += late.len();
    }
    assert!(noted > 0, "some gather of these plans comes late");
}

#[test]
fn an_input_comes_right_before_its_first_reader_and_an_output_goes_right_after_its_last_writer() {
    let mut model = Model::builder();
    let weight = model.sharded("w", 64, 64, Format::F32).unwrap();
    let model = model.build();
    let mut program = StepProgram::builder("evaluate", &model);
    let input = program.input("input", 8, ElementType::F32).unwrap();
    let output = program.output("output", 8, ElementType::F32).unwrap();
    for (name, touches) in [("early", false), ("middle", true), ("late", true), ("last", false)] {
        let call = program.call(name, Phase::Forward).uses(weight, Orientation::Rowwise, Form::Dense);
        let call = if touches { call.reads(input).writes(output) } else { call };
        call.add().unwrap();
    }
    let plan =
        StepPlan::build(&program.build_evaluation().unwrap(), &policy(1), Mesh::new(2).unwrap()).unwrap();
    let compute: Vec<&str> = plan
        .tasks
        .iter()
        .filter(|task| task.lane == plan.compute_lane())
        .filter(|task| !matches!(task.op, Op::ClearFault(_) | Op::Assemble(_)))
        .map(|task| task.subject.as_str())
        .collect();
    assert_eq!(compute, ["early", "input", "middle", "late", "output", "last"]);
}

/// Conformance H12, as far as it goes without 60 GiB: the size at which 32-bit arithmetic breaks. Nothing is
/// reserved; sizes, offsets, hazards and byte counts of the whole plan are worked out and verified.
#[test]
fn h12_a_weight_of_more_than_two_to_the_thirty_one_elements_is_planned_with_exact_sizes() {
    const ROWS: usize = 64_001;
    const COLS: usize = 36_864;
    const ELEMENTS: usize = 2_359_332_864;
    assert_eq!(ROWS * COLS, ELEMENTS);
    let mut model = Model::builder();
    let large = model.sharded("large", ROWS, COLS, Format::Bf16).unwrap();
    let small = model.replicated("after", 1, 7).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    let call = program.call("fit", Phase::Backward).uses(large, Orientation::Rowwise, Form::Dense);
    call.gradient(large).gradient(small).add().unwrap();
    let program = program.build_training().unwrap();
    let plan = StepPlan::build(&program, &policy(1), Mesh::new(1).unwrap()).unwrap();
    let region = |content| plan.arena.region(plan.arena.find(content).unwrap());
    for content in [
        Content::Master(large),
        Content::first_moment(large),
        Content::second_moment(large),
        Content::MainGrad(large),
        Content::Gradient(large, CallId::new(0)),
        Content::Dense(large, Orientation::Rowwise, ElementType::F32),
    ] {
        assert_eq!(region(content).bytes, ELEMENTS * 4, "{content:?}");
    }
    assert_eq!(region(Content::Shard(large, Orientation::Rowwise)).bytes, ELEMENTS * 2);
    assert!(region(Content::Master(small)).offset > ELEMENTS * 18, "it lies after all of them");
    assert_eq!(plan.bounds.resident_bytes, plan.arena.resident_bytes);
    assert!(plan.bounds.live_bytes > ELEMENTS * 8);
}

/// A bf16 copy is one of its own beside an f32 one of the same planes, half its size; bf16 weights need none.
#[test]
fn dense_uses_in_bf16_have_copies_of_their_own() {
    let mut model = Model::builder();
    let fp4 = model.sharded("fp4", 64, 64, Format::NVFP4_2D).unwrap();
    let plain = model.sharded("plain", 64, 64, Format::Bf16).unwrap();
    let model = model.build();
    let mut program = StepProgram::builder("evaluate", &model);
    for (name, form) in [("whole", Form::Dense), ("half", Form::DenseBf16), ("again", Form::DenseBf16)] {
        let call = program.call(name, Phase::Forward).uses(fp4, Orientation::Rowwise, form);
        call.uses(plain, Orientation::Rowwise, Form::DenseBf16).add().unwrap();
    }
    let program = program.build_evaluation().unwrap();
    let plan = StepPlan::build(&program, &policy(1), Mesh::new(2).unwrap()).unwrap();
    let copies: Vec<_> = plan
        .tasks
        .iter()
        .filter_map(|task| match &task.op {
            Op::Dequantize(Dequantize { parts }) => Some(parts),
            _ => None,
        })
        .flatten()
        .map(|part| (part.weight, part.values, plan.arena.region(part.to).bytes))
        .collect();
    let expected = [(fp4, ElementType::F32, 64 * 64 * 4), (fp4, ElementType::Bf16, 64 * 64 * 2)];
    assert_eq!(copies, expected);
}
