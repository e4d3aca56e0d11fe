//! Collectives of buffers in whole sessions, whose programs have nothing else, issued and captured.
//!
//! Law: what is expected is computed from what ranks give, as where collectives are driven by hand. No closure runs.

use warpweft_base::id::{BufferId, RankId};
use warpweft_format::ElementType;
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{
    Call, Collective, CollectiveKind, Mesh, Model, Phase, ProgramBuilder, StepProgram,
};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Outcome, Session};

use super::collective_calls::{GROUPS, given, received};
use super::harness::within_limit;
use crate::device::most_captured_ranks;
use crate::products::{Surface, settled, start};

/// Elements that ranks of a session give each other in an all-to-all.
const PART: usize = 11;

/// What becomes of values that are combined.
const ADDED: [CollectiveKind; 5] = [
    CollectiveKind::Sum,
    CollectiveKind::AllToAll,
    CollectiveKind::Max,
    CollectiveKind::ReduceScatter,
    CollectiveKind::AllGather,
];

/// For each group values that move, there and back again, and values that are combined.
fn declared(mesh: Mesh, micro_batches: u32) -> StepProgram {
    let mut program = StepProgram::builder("collective", &Model::builder().build());
    program.micro_batches(micro_batches).unwrap();
    for group in GROUPS {
        let all = PART * mesh.size(group) as usize;
        let between = |program: &mut ProgramBuilder, number: usize, element, elements| {
            program.activation_in(&format!("{group} {number}"), elements, element).unwrap()
        };
        let chain = |program: &mut ProgramBuilder, buffers: &[BufferId], kinds: &[CollectiveKind]| {
            for (pair, kind) in buffers.windows(2).zip(kinds) {
                let collective = Collective::new(*kind, pair[0], pair[1]).among(group);
                let name = format!("{kind} {group} {}", pair[1]);
                program.collective(&name, Phase::Forward, collective).unwrap();
            }
        };
        let moved = [
            program.input(&format!("{group} moves"), PART, ElementType::Bf16).unwrap(),
            between(&mut program, 1, ElementType::Bf16, all),
            program.output(&format!("{group} moved"), all, ElementType::Bf16).unwrap(),
        ];
        chain(&mut program, &moved, &[CollectiveKind::AllGather, CollectiveKind::AllToAll]);
        let combined = [
            program.input(&format!("{group} adds"), all, ElementType::F32).unwrap(),
            between(&mut program, 2, ElementType::F32, all),
            between(&mut program, 3, ElementType::F32, all),
            between(&mut program, 4, ElementType::F32, all),
            between(&mut program, 5, ElementType::F32, PART),
            program.output(&format!("{group} added"), all, ElementType::F32).unwrap(),
        ];
        chain(&mut program, &combined, &ADDED);
    }
    program.build_evaluation().unwrap()
}

async fn check_session(mesh: Mesh, micro_batches: u32, capture: Capture) {
    let mut config = settled(Config { capture, ..Config::default() });
    config.mesh.replicate = mesh.replicas();
    config.mesh.tp = mesh.tensor();
    let closures = |_: RankId| {
        |call: &Call, _: &ComputeContext<'_, Surface>| -> Result<(), ComputeError> {
            panic!("a closure ran for the collective `{}`", call.name)
        }
    };
    let builder = Session::builder(config, closures).program(declared(mesh, micro_batches));
    let mut session = start(builder, mesh.ranks()).await;
    for step in 0..4 {
        let input = |kind: CollectiveKind, rank: RankId, batch: u32, bytes: usize| {
            given(kind, bytes, rank.index(), (step * micro_batches + batch) as usize)
        };
        let batches = || 0..micro_batches;
        for (rank, group) in mesh.iter().flat_map(|rank| GROUPS.map(|group| (rank, group))) {
            let all = PART * mesh.size(group) as usize;
            let moves: Vec<u8> =
                batches().flat_map(|batch| input(CollectiveKind::AllGather, rank, batch, 2 * PART)).collect();
            let adds: Vec<u8> =
                batches().flat_map(|batch| input(CollectiveKind::Sum, rank, batch, 4 * all)).collect();
            session.write_input_bytes("collective", rank, &format!("{group} moves"), &moves).unwrap();
            session.write_input_bytes("collective", rank, &format!("{group} adds"), &adds).unwrap();
        }
        let report = session.step("collective").await.unwrap();
        assert_eq!(report.outcome, Outcome::Evaluated);
        let is_replayed = capture == Capture::Step && step > 0;
        assert_eq!(report.segments, usize::from(is_replayed), "{mesh}, {capture:?}, step {step}");
        for (rank, group) in mesh.iter().flat_map(|rank| GROUPS.map(|group| (rank, group))) {
            let chained = |first, kinds: &[CollectiveKind], bytes: usize, batch: u32| {
                let mut all: Vec<Vec<u8>> =
                    mesh.iter().map(|rank| input(first, rank, batch, bytes)).collect();
                for kind in kinds {
                    let get = |rank: RankId| {
                        let members = mesh.members(rank, group);
                        let gave: Vec<&[u8]> = members.map(|member| &all[member.index()][..]).collect();
                        received(*kind, &gave, mesh.position(rank, group) as usize)
                    };
                    all = mesh.iter().map(get).collect();
                }
                all.swap_remove(rank.index())
            };
            let moved = [CollectiveKind::AllGather, CollectiveKind::AllToAll];
            let added = ADDED;
            let all = 4 * PART * mesh.size(group) as usize;
            let moved: Vec<u8> =
                batches().flat_map(|batch| chained(moved[0], &moved, 2 * PART, batch)).collect();
            let added: Vec<u8> = batches().flat_map(|batch| chained(added[0], &added, all, batch)).collect();
            for (name, expected) in [("moved", moved), ("added", added)] {
                let found = report.output_bytes(rank, &format!("{group} {name}")).unwrap();
                assert!(found == expected, "{group} {name}: {mesh}, {rank}, {capture:?}, step {step}");
            }
        }
    }
    session.close().await.unwrap();
}

/// EX-1. No closure runs, with one micro-batch and with several.
fn sessions_of_collectives_alone_give_every_rank_what_its_group_gave_issued_and_captured() {
    within_limit(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let most = most_captured_ranks();
        let mut worlds = vec![Mesh::new(1).unwrap(), Mesh::new(most).unwrap()];
        worlds.extend(Mesh::hybrid(most, 2).ok());
        for (mesh, micro_batches) in worlds.into_iter().flat_map(|mesh| [(mesh, 1), (mesh, 3)]) {
            for capture in [Capture::Off, Capture::Step] {
                runtime.block_on(check_session(mesh, micro_batches, capture));
            }
        }
    });
}

bodies! {
    sessions_of_collectives_alone_give_every_rank_what_its_group_gave_issued_and_captured,
}
