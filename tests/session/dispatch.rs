//! Dropless dispatch and combine in sessions: rows reach their experts and come back, and a full slot skips the step.

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Collective, Counts, Form, Group, Mesh, Model, Phase, StepProgram};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Outcome, Session, SessionError};
use warpweft_testing::trainer::within_a_minute;

/// Experts of a group, as many for each rank.
const EXPERTS: usize = 8;
const CAPACITY: usize = 6;
const TOKENS: usize = 10;
const WIDTH: usize = 3;

fn program(mesh: Mesh, group: Group, micro_batches: u32) -> StepProgram {
    let mut model = Model::builder();
    let weight = model.sharded("w", 4, WIDTH, Format::F32).unwrap();
    let mut program = StepProgram::builder("train", &model.build());
    program.micro_batches(micro_batches).unwrap();
    let (forward, backward) = (Phase::Forward, Phase::Backward);
    let rows = EXPERTS * CAPACITY * WIDTH;
    let tokens = program.input("tokens", TOKENS * WIDTH, ElementType::F32).unwrap();
    let choice = program.input("choice", TOKENS, ElementType::U32).unwrap();
    let result = program.output("result", TOKENS * WIDTH, ElementType::F32).unwrap();
    let [given, taken] =
        ["given", "taken"].map(|name| program.activation_in(name, EXPERTS, ElementType::U32).unwrap());
    let [sent, brought, made, back, slopes, slopes_there] =
        ["sent", "brought", "made", "back", "slopes", "slopes there"]
            .map(|name| program.activation(name, rows).unwrap());
    let call = program.call("route", forward).uses(weight, Orientation::Rowwise, Form::Dense);
    call.reads(tokens).reads(choice).writes(sent).writes(given).add().unwrap();
    assert_eq!(mesh.size(group) as usize * (EXPERTS / mesh.size(group) as usize), EXPERTS);
    let dispatch = Collective::dispatch(sent, brought, Counts::new(given, taken, CAPACITY)).among(group);
    program.collective("dispatch", forward, dispatch).unwrap();
    program.call("expert", forward).reads(brought).reads(taken).writes(made).add().unwrap();
    program.collective("combine", forward, dispatch.back(made, back)).unwrap();
    let call = program.call("collect", forward).reads(back).reads(given).reads(choice);
    call.writes(result).writes(slopes).add().unwrap();
    program.collective("slopes", backward, dispatch.again(slopes, slopes_there)).unwrap();
    let call = program.call("fit", backward).reads(slopes_there).reads(taken).gradient(weight);
    call.add().unwrap();
    program.build_training().unwrap()
}

/// The expert's own factor.
fn factor(expert: usize) -> f32 {
    expert as f32 + 2.0
}

/// For every filled row of slots with these counts: its slot and where it begins.
fn filled(counts: &[u32]) -> impl Iterator<Item = (usize, usize)> {
    let slots = counts.iter().enumerate();
    slots.flat_map(|(slot, count)| {
        (0..*count as usize).map(move |row| (slot, WIDTH * (CAPACITY * slot + row)))
    })
}

/// Where each token's row is, in the order of tokens.
fn places(choice: &[u32]) -> Vec<usize> {
    let mut next = [0; EXPERTS];
    let place = |expert: &u32| {
        let row = next[*expert as usize];
        next[*expert as usize] += 1;
        WIDTH * (CAPACITY * *expert as usize + row)
    };
    choice.iter().map(place).collect()
}

fn run(
    (mesh, group): (Mesh, Group),
    call: &Call,
    context: &ComputeContext<'_, CpuSurface>,
) -> Result<(), ComputeError> {
    let floats = |name: &str| context.read_named::<f32>(name);
    let counts = |name: &str| context.read_named::<u32>(name);
    let local = EXPERTS / mesh.size(group) as usize;
    let place = mesh.position(context.rank(), group) as usize;
    match call.name.as_str() {
        "route" => {
            let (tokens, choice) = (floats("tokens")?, counts("choice")?);
            let mut sent = context.write_named::<f32>("sent")?;
            let mut given = context.write_named::<u32>("given")?;
            given.fill(0);
            for (token, (expert, at)) in tokens.chunks(WIDTH).zip(choice.iter().zip(places(&choice))) {
                given[*expert as usize] += 1;
                // Too many for a slot are counted and not kept.
                if given[*expert as usize] as usize <= CAPACITY {
                    sent[at..at + WIDTH].copy_from_slice(token);
                }
            }
        }
        "expert" => {
            let (brought, taken) = (floats("brought")?, counts("taken")?);
            let mut made = context.write_named::<f32>("made")?;
            for (slot, at) in filled(&taken) {
                let by = factor(place * local + slot % local);
                made[at..at + WIDTH].iter_mut().zip(&brought[at..]).for_each(|(made, x)| *made = by * x);
            }
        }
        "collect" => {
            let (back, choice, given) = (floats("back")?, counts("choice")?, counts("given")?);
            let mut result = context.write_named::<f32>("result")?;
            let mut slopes = context.write_named::<f32>("slopes")?;
            for (token, at) in result.chunks_mut(WIDTH).zip(places(&choice)) {
                token.copy_from_slice(&back[at..at + WIDTH]);
            }
            filled(&given).for_each(|(_, at)| slopes[at..at + WIDTH].fill(1.0));
        }
        _ => {
            let (slopes, taken) = (floats("slopes there")?, counts("taken")?);
            let sum: f32 = filled(&taken).map(|(_, at)| slopes[at..at + WIDTH].iter().sum::<f32>()).sum();
            context.gradient_named("w")?.fill(sum);
        }
    }
    Ok(())
}

/// The expert of a token; in a step that overflows, all of rank 2 have one.
fn choice(step: u32, rank: usize, token: usize, overflows: bool) -> u32 {
    if overflows && rank == 2 {
        return 3;
    }
    ((3 * token + rank + step as usize) % EXPERTS) as u32
}

fn token(step: u32, rank: usize, at: usize) -> f32 {
    (rank * 1000 + at) as f32 + 0.25 * step as f32
}

fn feed(session: &mut Session, mesh: Mesh, (step, micro_batches): (u32, u32), overflows: bool) {
    for rank in mesh.iter() {
        let all = || (0..micro_batches).map(|batch| step * micro_batches + batch);
        let tokens: Vec<f32> =
            all().flat_map(|step| (0..TOKENS * WIDTH).map(move |at| token(step, rank.index(), at))).collect();
        let choices: Vec<u32> = all()
            .flat_map(|step| (0..TOKENS).map(move |token| choice(step, rank.index(), token, overflows)))
            .collect();
        session.write_input("train", rank, "tokens", &tokens).unwrap();
        session.write_input("train", rank, "choice", &choices).unwrap();
    }
}

async fn started(mesh: Mesh, group: Group, micro_batches: u32, capture: Capture) -> Session {
    let mut config = Config { capture, check: true, ..Config::default() };
    config.mesh.dp_replicate = Some(mesh.replicas());
    let closures = move |_: RankId| {
        move |call: &Call, context: &ComputeContext<'_, CpuSurface>| run((mesh, group), call, context)
    };
    let builder = Session::builder(config, closures).program(program(mesh, group, micro_batches));
    let builder = builder.initialize(|_, values| values.fill(1.0));
    builder.start_cpu(mesh.ranks()).await.unwrap()
}

/// EX-1. What lies after the counts is spoiled, so whoever read it would give no number.
#[test]
fn rows_come_back_from_the_experts_that_were_chosen_for_them() {
    within_a_minute(async {
        let (flat, pairs) = (Mesh::new(4).unwrap(), Mesh::hybrid(4, 2).unwrap());
        let worlds = [(Mesh::new(1).unwrap(), Group::World), (flat, Group::World), (pairs, Group::Shard)];
        for ((mesh, group), capture) in
            worlds.into_iter().flat_map(|world| [Capture::Off, Capture::Step].map(|how| (world, how)))
        {
            for micro_batches in [1, 2] {
                let mut session = started(mesh, group, micro_batches, capture).await;
                for step in 0..4 {
                    feed(&mut session, mesh, (step, micro_batches), false);
                    let report = session.step("train").await.unwrap();
                    assert!(matches!(report.outcome, Outcome::Updated { .. }), "{:?}", report.outcome);
                    for rank in mesh.iter() {
                        let of_batch = |batch: u32| {
                            let step = step * micro_batches + batch;
                            (0..TOKENS * WIDTH).map(move |at| {
                                let expert = choice(step, rank.index(), at / WIDTH, false);
                                factor(expert as usize) * token(step, rank.index(), at)
                            })
                        };
                        let expected: Vec<f32> = (0..micro_batches).flat_map(of_batch).collect();
                        assert_eq!(report.output::<f32>(rank, "result").unwrap(), expected);
                    }
                }
                session.close().await.unwrap();
            }
        }
    });
}

/// CO-2, EX-2
#[test]
fn a_slot_that_overflows_skips_the_step_on_all_ranks_and_says_whose_it_is() {
    within_a_minute(async {
        for capture in [Capture::Off, Capture::Step] {
            let mesh = Mesh::new(4).unwrap();
            let mut session = started(mesh, Group::World, 1, capture).await;
            let mut updates = 0;
            for step in 0..5 {
                let overflows = step == 1 || step == 3;
                feed(&mut session, mesh, (step, 1), overflows);
                let ended = session.step("train").await;
                if !overflows {
                    updates += 1;
                    let Outcome::Updated { optimizer_step, .. } = ended.unwrap().outcome else { panic!() };
                    assert_eq!(optimizer_step, updates);
                    continue;
                }
                let error = ended.unwrap_err();
                let SessionError::Closure { step: at, rank, call, message, panicked: None } = &error else {
                    panic!("{error}")
                };
                assert_eq!((*at, *rank, call.as_str()), (u64::from(step), RankId::new(2), "route"));
                let says = "`given` counts 10 rows in slot 3, which is for rank 1 of the world group, but `dispatch` has a capacity of 6; declare a capacity of 10 or more";
                assert!(message.starts_with(says), "{message}");
            }
            session.close().await.unwrap();
        }
    });
}
