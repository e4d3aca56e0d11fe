//! Makes a task of every gather that is needed, where the timetable requests it.
//!
//! Law (PL-2): every use has exactly one producing gather; what is requested at one stage for one call is one
//! task, but each declared group one of its own, and what comes from other ranks too. A gather requested at stage s
//! is released by the end of the call before s. A policy with a chunk bounds what is no group: weights of a call
//! share a task up to its size, and a weight of more is several tasks, in the order of their bytes, all released like
//! the whole; they stand in T evenly from stage s to the one before their use, so what is requested meanwhile gets in
//! between. None is made where the latest one serves ([`Latest`]). Which planes are needed, and when each is
//! requested, is decided in [`super::super::prefetch`].

use std::collections::HashMap;

use super::super::draft::{Carrier, Draft, DraftTask, Section, Supply};
use super::super::prefetch::{Demand, Timetable};
use super::latest::Latest;
use super::publish::publish;
use super::{of_group, peers, sent, weights_of};
use crate::layout::{ALIGNMENT, Content};
use crate::model::{Group, Placement};
use crate::op::{AllGather, Chunk, GatherChunk, GatherPart, Op};
use warpweft_base::id::{CallId, GroupId, WeightId};
use warpweft_format::Orientation;

/// One gather in the making.
struct Collected<'a> {
    issue: usize,
    cut: Option<Cut>,
    over: Group,
    name: &'a str,
    parts: Vec<GatherPart>,
    /// Bytes that each rank gives.
    given: usize,
}

/// The gathers of one call in the making.
#[derive(Default)]
struct OfCall<'a> {
    all: Vec<Collected<'a>>,
    /// Which of them takes what is requested at a stage: of a group, or of none, and from which ranks.
    open: HashMap<(usize, Option<GroupId>, Group), usize>,
}

/// A gather that is cut into chunks.
#[derive(Clone, Copy)]
struct Cut {
    /// Bytes of a rank's shard.
    whole: usize,
    /// Of them, those of every chunk but the last.
    each: usize,
    /// The stage of the first chunk.
    issue: usize,
    /// The last stage that is before the use.
    latest: usize,
}

impl Cut {
    /// The most chunks of one gather: a size whose unit was forgotten must not make a plan of a million tasks.
    const MOST: usize = 256;

    /// How the gather of a demand is cut; `None` if it is not.
    fn of(draft: &Draft<'_>, demand: &Demand<'_>, issue: usize) -> Option<Self> {
        let chunk = draft.policy.chunk.filter(|_| demand.group.is_none())?;
        let layout = draft.weights.layout(demand.weight);
        let (ranks, whole) = (layout.shard.ranks as usize, layout.published_bytes(demand.orientation));
        let least = whole.div_ceil(Self::MOST).next_multiple_of(ALIGNMENT);
        let each = (chunk / ranks / ALIGNMENT * ALIGNMENT).max(least);
        let latest = demand.stage.saturating_sub(1).max(issue);
        (whole.saturating_mul(ranks) > chunk && whole > each).then_some(Self { whole, each, issue, latest })
    }

    /// Every chunk with its stage.
    fn chunks(self) -> impl DoubleEndedIterator<Item = (usize, Chunk)> {
        let count = self.whole.div_ceil(self.each);
        (0..count).map(move |number| {
            let begin = number * self.each;
            let stage = self.issue + (self.latest - self.issue) * number / (count - 1).max(1);
            (stage, Chunk { begin, end: self.whole.min(begin + self.each) })
        })
    }
}

/// `timetable` has one stage for every demand.
pub(in super::super) fn gather(draft: &mut Draft<'_>, demands: &[Demand<'_>], timetable: &Timetable) {
    replicated(draft);
    let mut latest: Latest<(WeightId, Orientation)> = Latest::new();
    let mut timed = timetable.issues.iter().zip(&timetable.kept);
    for of_call in demands.chunk_by(|one, other| one.stage == other.stage) {
        let mut collected = OfCall::default();
        for (demand, (issue, kept)) in of_call.iter().zip(&mut timed) {
            let (stage, planes) = (demand.stage, (demand.weight, demand.orientation));
            let make = || collect(draft, &mut collected, demand, *issue);
            let supply = latest.serve(planes, stage, *issue, demand.keeps || *kept, make);
            draft.supplies[stage][demand.position] = Some(supply);
        }
        for gather in collected.all {
            publish(draft, gather.issue, &gather.parts);
            add(draft, gather);
        }
    }
}

/// Replicated weights are read where they are.
fn replicated(draft: &mut Draft<'_>) {
    for (stage, _, call) in draft.stages_of_calls() {
        for (position, usage) in call.uses.iter().enumerate() {
            if draft.weights.layout(usage.weight).placement == Placement::Replicated {
                let slot = draft.slot(Content::Master(usage.weight));
                draft.supplies[stage][position] = Some(Supply { slot, stage: 0, gather: slot });
            }
        }
    }
}

/// Puts the planes of a demand into the gather that takes them, or into one of their own.
fn collect<'a>(
    draft: &mut Draft<'_>,
    collected: &mut OfCall<'a>,
    demand: &Demand<'a>,
    issue: usize,
) -> Supply {
    let Demand { weight, orientation, name, call, group, .. } = *demand;
    let to = draft.transient(
        format!("{name} gathered {orientation} for {}", call.label()),
        Content::Gathered(weight, orientation),
    );
    let part = GatherPart { weight, orientation, from: sent(draft, weight, orientation), to };
    let layout = draft.weights.layout(weight);
    let (ranks, over) = (layout.shard.ranks as usize, layout.shard.group());
    let given = layout.published_bytes(orientation);
    let most = draft.policy.chunk.filter(|_| group.is_none()).unwrap_or(usize::MAX);
    let OfCall { all, open } = collected;
    let taker = open.get(&(issue, group, over)).and_then(|place| all.get_mut(*place));
    let all_given = |taker: &Collected<'_>| taker.given.saturating_add(given);
    if let Some(taker) = taker.filter(|taker| all_given(taker).saturating_mul(ranks) <= most) {
        taker.given = all_given(taker);
        taker.parts.push(part);
        return Supply { slot: to, stage: issue, gather: taker.parts[0].to };
    }
    let cut = Cut::of(draft, demand, issue);
    if cut.is_none() {
        open.insert((issue, group, over), all.len());
    }
    all.push(Collected { issue, cut, over, name, parts: vec![part], given });
    let last = cut.and_then(|cut| cut.chunks().next_back());
    Supply { slot: to, stage: last.map_or(issue, |(stage, _)| stage), gather: to }
}

fn add(draft: &mut Draft<'_>, gather: Collected<'_>) {
    let Collected { issue, cut, over: group, name, parts, given } = gather;
    let peers = peers(draft.weights.mesh, group);
    let release = issue.checked_sub(1).map(CallId::at);
    if let (Some(cut), [part]) = (cut, parts.as_slice()) {
        for (stage, chunk) in cut.chunks() {
            let (op, bytes) =
                (Op::GatherChunk(GatherChunk { group, part: *part, chunk }), chunk.end - chunk.begin);
            let mut task = DraftTask::collective(op, name, Carrier::Gather, bytes.saturating_mul(peers));
            task.release = release;
            draft.add(stage, Section::Gathers, task);
        }
        return;
    }
    let subject = of_group(name, weights_of(&parts));
    let op = Op::AllGather(AllGather { group, parts });
    let mut task = DraftTask::collective(op, subject, Carrier::Gather, given.saturating_mul(peers));
    task.release = release;
    draft.add(issue, Section::Gathers, task);
}
