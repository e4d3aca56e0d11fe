//! Paced links: a transfer takes the time that the link is set to.

use std::time::Duration;

use warpweft_backend::cpu::{CpuOptions, Pace};
use warpweft_format::Format;
use warpweft_plan::layout::Content;
use warpweft_plan::op::Op;

use crate::bodies::harness::{LINK, Plan, ROWWISE, Rank, W, sharded};
use crate::device::on_every_rank;

#[test]
fn a_paced_link_holds_a_collective_for_latency_and_bytes() {
    let (ranks, rows, cols) = (2, 64, 256);
    let mut plan = Plan::new(ranks, &[sharded(rows, cols, Format::F32)]);
    let from = plan.resident("shard", Content::Shard(W, ROWWISE));
    let to = plan.transient("gathered", Content::Gathered(W, ROWWISE));
    plan.op(LINK, Op::gather(W, ROWWISE, from, to));
    // 32 KiB from the one peer at 1 MiB/s: 31 ms, and 5 ms on top.
    let link = Pace { bytes_per_s: 1024.0 * 1024.0, latency: Duration::from_millis(5) };
    let received = (rows / 2 * cols * 4) as f64;
    let least = Duration::from_secs_f64(received / link.bytes_per_s) + link.latency;
    let intervals = on_every_rank(plan, CpuOptions { link: Some(link) }, move |backend, plan| {
        let mut rank = Rank::start(backend, plan, None).unwrap();
        if rank.number() == 1 {
            // Waiting for a late peer is skew, not transfer.
            std::thread::sleep(Duration::from_millis(20));
        }
        rank.step().unwrap();
        rank.intervals()[0]
    });
    assert_eq!(intervals[0].joined, intervals[1].joined);
    for interval in &intervals {
        assert!(interval.begin <= interval.joined);
        assert!(Duration::from_nanos(interval.end - interval.joined) >= least, "{interval:?}");
    }
}
