//! Collectives of buffers in whole sessions, whose programs have nothing else, issued and captured.
//!
//! Law: what is expected is computed from what ranks give, as where collectives are driven by hand. No closure runs.

use warpweft_base::id::RankId;
use warpweft_format::ElementType;
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Collective, CollectiveKind, Group, Mesh, Model, Phase, StepProgram};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Outcome, Session};

use super::collective_calls::{GROUPS, given, received};
use super::harness::within_limit;
use crate::device::most_captured_ranks;
use crate::products::{Surface, settled, start};

/// Elements that ranks of a session give each other where each gets another part.
const PART: usize = 11;

/// Values of a session that go from one collective to the next.
struct Chain {
    name: &'static str,
    element: ElementType,
    kinds: &'static [CollectiveKind],
}

/// There and back again.
const MOVED: [CollectiveKind; 2] = [CollectiveKind::AllGather, CollectiveKind::AllToAll];

const ADDED: [CollectiveKind; 5] = [
    CollectiveKind::Sum,
    CollectiveKind::AllToAll,
    CollectiveKind::Max,
    CollectiveKind::ReduceScatter,
    CollectiveKind::AllGather,
];

const CHAINS: [Chain; 3] = [
    Chain { name: "moved", element: ElementType::Bf16, kinds: &MOVED },
    Chain { name: "added", element: ElementType::F32, kinds: &ADDED },
    Chain { name: "added in bf16", element: ElementType::Bf16, kinds: &ADDED },
];

impl Chain {
    /// Elements of every buffer on the way, the input first.
    fn elements(&self, ranks: u32) -> Vec<usize> {
        let all = PART * ranks as usize;
        let first = if self.kinds[0] == CollectiveKind::AllGather { PART } else { all };
        let next = |before: &mut usize, kind: &CollectiveKind| {
            *before = kind.received(*before, ranks).unwrap();
            Some(*before)
        };
        [first].into_iter().chain(self.kinds.iter().scan(first, next)).collect()
    }
}

/// Every chain for every group.
fn declared(mesh: Mesh, micro_batches: u32) -> StepProgram {
    let mut program = StepProgram::builder("collective", &Model::builder().build());
    program.micro_batches(micro_batches).unwrap();
    for (group, Chain { name, element, kinds }, elements) in GROUPS.into_iter().flat_map(|group| {
        CHAINS.into_iter().map(move |chain| {
            let elements = chain.elements(mesh.size(group));
            (group, chain, elements)
        })
    }) {
        let mut from = program.input(&format!("{group} is {name}"), elements[0], element).unwrap();
        for (number, (kind, elements)) in kinds.iter().zip(&elements[1..]).enumerate() {
            let to = match number + 1 == kinds.len() {
                true => program.output(&format!("{group} {name}"), *elements, element),
                false => program.activation_in(&format!("{group} {name} {number}"), *elements, element),
            };
            let collective = Collective::new(*kind, from, to.unwrap()).among(group);
            program.collective(&format!("{group} {name} by {number}"), Phase::Forward, collective).unwrap();
            from = collective.to;
        }
    }
    program.build_evaluation().unwrap()
}

async fn check_session(mesh: Mesh, micro_batches: u32, capture: Capture) {
    let mut config = settled(Config { capture, ..Config::default() });
    config.mesh.dp_replicate = Some(mesh.replicas());
    (config.mesh.cp, config.mesh.tp) = (mesh.context(), mesh.tensor());
    let closures = |_: RankId| {
        |call: &Call, _: &ComputeContext<'_, Surface>| -> Result<(), ComputeError> {
            panic!("a closure ran for the collective `{}`", call.name)
        }
    };
    let builder = Session::builder(config, closures).program(declared(mesh, micro_batches));
    let mut session = start(builder, mesh.ranks()).await;
    for step in 0..4 {
        let input = |chain: &Chain, group: Group, rank: RankId, batch: u32| {
            let bytes = chain.elements(mesh.size(group))[0] * chain.element.bytes();
            given(chain.kinds[0], chain.element, bytes, rank.index(), (step * micro_batches + batch) as usize)
        };
        let batches = || 0..micro_batches;
        for (rank, group) in mesh.iter().flat_map(|rank| GROUPS.map(|group| (rank, group))) {
            for chain in &CHAINS {
                let all: Vec<u8> = batches().flat_map(|batch| input(chain, group, rank, batch)).collect();
                let name = format!("{group} is {}", chain.name);
                session.write_input_bytes("collective", rank, &name, &all).unwrap();
            }
        }
        let report = session.step("collective").await.unwrap();
        assert_eq!(report.outcome, Outcome::Evaluated);
        let is_replayed = capture == Capture::Step && step > 0;
        assert_eq!(report.segments, usize::from(is_replayed), "{mesh}, {capture:?}, step {step}");
        for (rank, group) in mesh.iter().flat_map(|rank| GROUPS.map(|group| (rank, group))) {
            let chained = |chain: &Chain, batch: u32| {
                let mut all: Vec<Vec<u8>> =
                    mesh.iter().map(|rank| input(chain, group, rank, batch)).collect();
                for kind in chain.kinds {
                    let get = |rank: RankId| {
                        let members = mesh.members(rank, group);
                        let gave: Vec<&[u8]> = members.map(|member| &all[member.index()][..]).collect();
                        received(*kind, chain.element, &gave, mesh.position(rank, group) as usize)
                    };
                    all = mesh.iter().map(get).collect();
                }
                all.swap_remove(rank.index())
            };
            for chain in &CHAINS {
                let expected: Vec<u8> = batches().flat_map(|batch| chained(chain, batch)).collect();
                let name = format!("{group} {}", chain.name);
                let found = report.output_bytes(rank, &name).unwrap();
                assert!(found == expected, "{name}: {mesh}, {rank}, {capture:?}, step {step}");
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
