//! A checkpoint store that fails at one rank: all ranks fail alike, with the reason.

use std::error::Error;
use std::fmt::{Display, Formatter};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use warpweft_backend::cpu::{CpuOptions, CpuSurface, CpuWorld};
use warpweft_base::id::{CarriedId, RankId, WeightId};
use warpweft_format::Format;
use warpweft_plan::compute::{Compute, ComputeContext, ComputeFactory};
use warpweft_plan::layout::Weights;
use warpweft_plan::model::{Call, Mesh};
use warpweft_plan::plan::{Policy, ResidentLayout, StepPlan};
use warpweft_session::checkpoint::ranks::{Alive, PartReader, PartWriter, RankPart, RankState, SaveId};
use warpweft_session::checkpoint::{CheckpointError, StatePart};
use warpweft_session::exec::{CaptureMode, Handover, Rank, Refusal, World};
use warpweft_testing::trainer::{Trainer, ended, initial};

use super::config;

const RANKS: u32 = 3;

/// At what a keeper fails, of rank 1 or, to complete, of rank 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fails {
    Never,
    Begin,
    Write,
    Complete,
    Doubt,
    Read,
}

/// Why a keeper refuses: a kind of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Closed(Fails);

impl Display for Closed {
    fn fmt(&self, out: &mut Formatter<'_>) -> std::fmt::Result {
        write!(out, "no {:?} today", self.0)
    }
}

impl Error for Closed {}

/// What a rank says of a refusal: who, in which words, and, by the kind, at what, where it is the rank's own.
fn said(refusal: Refusal) -> (RankId, String, Option<Fails>) {
    let (rank, error) = refusal;
    let cause = match &error {
        CheckpointError::InDoubt { source, .. } => source,
        other => other,
    };
    let kind = match cause {
        CheckpointError::Other { source } => source.downcast_ref::<Closed>().map(|closed| closed.0),
        _ => None,
    };
    (rank, error.to_string(), kind)
}

/// What all ranks say that get word of one that fails.
fn heard(named: Option<(RankId, Fails)>) -> Vec<Option<(RankId, String, Option<Fails>)>> {
    let text = |fails| match CheckpointError::other(Closed(fails)) {
        cause if fails == Fails::Doubt => in_doubt(cause).to_string(),
        cause => cause.to_string(),
    };
    let of_rank = |rank| named.map(|(at, fails)| (at, text(fails), (at == rank).then_some(fails)));
    (0..RANKS).map(RankId::new).map(of_rank).collect()
}

/// What is said where there may be a checkpoint all the same.
fn in_doubt(source: CheckpointError) -> CheckpointError {
    let removal = Arc::new(std::io::Error::other("the disk"));
    CheckpointError::InDoubt { path: "checkpoint.json".into(), source: Box::new(source), removal }
}

/// The calls that a keeper got, in any order.
#[derive(Clone, Debug, Default, PartialEq)]
struct Request {
    written: Vec<RankId>,
    completed: Vec<RankId>,
    kept: Vec<RankId>,
    withdrawn: Vec<RankId>,
}

#[derive(Debug)]
struct Keeper {
    fails: Fails,
    requested: Mutex<Request>,
}

impl Keeper {
    fn refuses(&self, fails: Fails, rank: RankId) -> Result<(), CheckpointError> {
        let at =
            if [Fails::Complete, Fails::Doubt].contains(&fails) { RankId::new(0) } else { RankId::new(1) };
        if (self.fails, rank) == (fails, at) { Err(CheckpointError::other(Closed(fails))) } else { Ok(()) }
    }

    fn note(&self, note: impl FnOnce(&mut Request)) {
        note(&mut self.requested.lock().unwrap());
    }
}

impl PartWriter for Keeper {
    fn begin(&self, rank: RankId) -> Result<u64, CheckpointError> {
        self.refuses(Fails::Begin, rank).map(|()| u64::from(rank.number()))
    }

    fn write(&self, save: SaveId, state: &dyn RankState) -> Result<u64, CheckpointError> {
        assert_eq!(save, SaveId::of(&[0, 1, 2]), "it follows from what all said");
        self.refuses(Fails::Write, state.rank())?;
        let weight = WeightId::new(0);
        let values = state.rows(weight, StatePart::Master).unwrap().len();
        assert_eq!(state.rows(weight, StatePart::FIRST_MOMENT).unwrap().len(), values);
        assert_eq!(state.rows(weight, StatePart::SECOND_MOMENT).unwrap(), vec![0.0; values]);
        assert_eq!((state.optimizer_step().unwrap(), state.delayed(weight).unwrap()), (0, None));
        assert!(state.carried(CarriedId::new(9)).unwrap().is_empty());
        state.alive().unwrap();
        self.note(|requested| requested.written.push(state.rank()));
        Ok(u64::from(10 + state.rank().number()))
    }

    fn complete(&self, _: SaveId, parts: &[u64], state: &dyn RankState) -> Result<(), CheckpointError> {
        assert_eq!(parts, [10, 11, 12], "what writing each of them gave");
        self.refuses(Fails::Complete, state.rank())?;
        self.refuses(Fails::Doubt, state.rank()).map_err(in_doubt)?;
        self.note(|requested| requested.completed.push(state.rank()));
        Ok(())
    }

    fn keep(&self, _: SaveId, rank: RankId) {
        self.note(|requested| requested.kept.push(rank));
    }

    fn withdraw(&self, _: SaveId, rank: RankId) {
        self.note(|requested| requested.withdrawn.push(rank));
    }
}

impl PartReader for Keeper {
    fn digest(&self) -> u64 {
        7
    }

    fn read(&self, rank: RankId, alive: &Alive<'_>) -> Result<RankPart, CheckpointError> {
        alive().unwrap();
        self.refuses(Fails::Read, rank)?;
        // Of rows that no rank has: it would be refused with the end of the world if any took it in.
        Ok(RankPart::default())
    }
}

fn closures() -> ComputeFactory<CpuSurface> {
    let nothing = |_: &Call, _: &ComputeContext<'_, CpuSurface>| Ok(());
    Arc::new(move |_| Ok(Box::new(nothing) as Box<dyn Compute<CpuSurface>>))
}

/// What every rank's handover has after `ask`, and what the keeper was asked.
fn requested<T: Send + 'static>(
    fails: Fails,
    ask: impl Fn(&mut Rank<warpweft_backend::cpu::CpuBackend>, &mut Handover, Arc<Keeper>) -> T
    + Copy
    + Send
    + 'static,
) -> (Vec<T>, Request) {
    ended(move || {
        let trainer = Trainer::new(2, Format::NVFP4_2D);
        let mesh = Mesh::new(RANKS).unwrap();
        let weights = Weights::new(trainer.model.weights(), mesh);
        let resident = ResidentLayout::new(&weights, &[&trainer.train]).unwrap();
        let policy = Policy::from(&config());
        let prologue = Arc::new(StepPlan::prologue(&weights, &resident, &policy).unwrap());
        let plan = Arc::new(StepPlan::within(&trainer.train, &weights, &resident, &policy).unwrap());
        let device = CpuWorld::new(mesh, CpuOptions::default()).unwrap();
        let world = Arc::new(World::new(RANKS, Duration::from_secs(60)));
        let keeper = Arc::new(Keeper { fails, requested: Mutex::default() });
        let told = std::thread::scope(|scope| {
            let ranks = mesh.iter().map(|rank| {
                let (backend, world, keeper) =
                    (device.backend(rank).unwrap(), Arc::clone(&world), Arc::clone(&keeper));
                let (prologue, plans) = (Arc::clone(&prologue), vec![Arc::clone(&plan)]);
                scope.spawn(move || {
                    let closures = closures();
                    let mut rank =
                        Rank::new(backend, world, prologue, plans, CaptureMode::Off, &closures).unwrap();
                    let fill = |rows: warpweft_session::checkpoint::ranks::MasterRows<'_>,
                                values: &mut [f32]| {
                        initial(rows, values);
                        Ok(())
                    };
                    rank.initialize(&(Arc::new(fill) as warpweft_session::exec::Initializer), None).unwrap();
                    ask(&mut rank, &mut Handover::default(), keeper)
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let mut requested = keeper.requested.lock().unwrap().clone();
        for list in
            [&mut requested.written, &mut requested.completed, &mut requested.kept, &mut requested.withdrawn]
        {
            list.sort();
        }
        (told, requested)
    })
}

/// CK-1, CK-2.
#[test]
fn a_rank_that_fails_at_any_moment_of_a_save_is_named_to_all_and_parts_are_left_only_in_doubt() {
    let all: Vec<RankId> = (0..RANKS).map(RankId::new).collect();
    let [first, one] = [0, 1].map(RankId::new);
    for (fails, written, withdrawn, named) in [
        (Fails::Never, all.clone(), vec![], None),
        (Fails::Begin, vec![], vec![], Some((one, Fails::Begin))),
        (Fails::Write, vec![first, RankId::new(2)], all.clone(), Some((one, Fails::Write))),
        (Fails::Complete, all.clone(), all.clone(), Some((first, Fails::Complete))),
        (Fails::Doubt, all.clone(), vec![], Some((first, Fails::Doubt))),
    ] {
        let (told, found) = requested(fails, |rank, handover, keeper| {
            handover.part.writer = Some(keeper);
            rank.save_part(handover).unwrap();
            handover.part.refusal.take().map(said)
        });
        assert_eq!(told, heard(named), "{fails:?}");
        let completed = if fails == Fails::Never { vec![first] } else { vec![] };
        let kept = if [Fails::Never, Fails::Doubt].contains(&fails) { all.clone() } else { vec![] };
        assert_eq!(found, Request { written, completed, kept, withdrawn }, "{fails:?}");
    }
}

/// CK-2: the others, who could, import nothing either.
#[test]
fn a_rank_that_refuses_what_it_read_is_named_to_all_and_none_imports() {
    let (told, _) = requested(Fails::Read, |rank, handover, keeper| {
        handover.part.reader = Some(keeper);
        rank.import_part(handover).unwrap();
        let refused = handover.part.refusal.take().map(said);
        rank.export(handover).unwrap();
        let masters: f32 = handover
            .transfer
            .own
            .shards
            .iter()
            .flat_map(|shard| &shard.master)
            .map(|value| value.abs())
            .sum();
        assert!(masters > 0.0, "they are as they were");
        refused
    });
    assert_eq!(told, heard(Some((RankId::new(1), Fails::Read))));
    let (told, _) = requested(Fails::Never, |rank, handover, keeper| {
        handover.part.reader = Some(keeper);
        rank.import_part(handover).unwrap_err().to_string()
    });
    assert!(told.iter().all(|said| said.contains("0 weights of a checkpoint, and place for 3")), "{told:?}");
}

/// A save that never happened is no success.
#[test]
fn a_rank_that_nobody_keeps_parts_for_says_so() {
    let (told, _) = requested(Fails::Never, |rank, handover, _| {
        [rank.save_part(handover), rank.import_part(handover)].map(|told| told.unwrap_err().to_string())
    });
    for [saved, imported] in told {
        assert!(saved.contains("no writer of parts") && saved.contains("handover first"), "{saved}");
        assert!(imported.contains("no reader of parts"), "{imported}");
    }
}
