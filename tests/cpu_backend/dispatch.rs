//! The checking layer spoils what lies after the counts of a dispatch.

use warpweft_backend::cpu::CpuOptions;
use warpweft_backend::{Backend, Checked};
use warpweft_plan::layout::Region;
use warpweft_plan::model::Mesh;

use crate::bodies::dispatch::{Rest, after, before, planned};
use crate::bodies::harness::Rank;
use crate::device::on_every_rank;

#[test]
fn the_checking_layer_spoils_what_lies_after_the_counts() {
    let mesh = Mesh::hybrid(4, 2).unwrap();
    let (plan, all) = planned(mesh);
    let gave = all.clone();
    let found = on_every_rank(plan.clone(), CpuOptions::default(), move |backend, plan| {
        let mut rank = Rank::start(Checked::new(backend), plan, None).unwrap();
        let whole = Region { offset: 0, bytes: rank.plan.arena.bytes() };
        let bytes = before(&rank.plan, &gave, rank.number(), 0);
        rank.backend.upload(&rank.memory, whole, &bytes).unwrap();
        rank.step().unwrap();
        let mut bytes = vec![0; whole.bytes];
        rank.backend.download(&rank.memory, whole, &mut bytes).unwrap();
        bytes
    });
    let had: Vec<_> = (0..found.len()).map(|rank| before(&plan, &all, rank, 0)).collect();
    for (rank, found) in found.iter().enumerate() {
        assert!(*found == after(&plan, &all, &had, (rank, 0), Rest::Spoiled), "rank {rank}");
    }
}
