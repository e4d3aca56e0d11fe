//! One reduction in the making: what travels and what is summed, level after level.
//!
//! Law: gradients that one call completes, and that are alike, are one collective and one sum at each level. The last
//! level goes into the main grad, unless replicas sum its rows by an all-reduce, which an accumulation follows.

use std::collections::HashMap;

use super::super::super::draft::Draft;
use crate::layout::Content;
use crate::model::{Group, ShardLayout};
use crate::op::{ReducePart, SumPart, SumTarget, WireType};
use warpweft_base::id::{CallId, GroupId, LevelId, SlotId, WeightId};

/// One of the contributions to a main grad.
#[derive(Clone, Copy)]
pub(super) struct Contribution {
    /// The first call whose gradient is in it.
    pub(super) call: CallId,
    /// Does it begin the sum?
    pub(super) begins: bool,
    /// Does none of the step come after it?
    pub(super) ends: bool,
}

/// One reduction in the making.
pub(super) struct Collected {
    pub(super) name: String,
    pub(super) alike: Alike,
    /// Is it complete only one step after its call, because it is added to others or rounded there?
    pub(super) completed_later: bool,
    /// The groups it is summed over, one after the other.
    pub(super) levels: Vec<SumLevel>,
    /// Sums over the ranks with the same rows; none where a rank alone has them.
    pub(super) over_copies: Vec<CopiesSum>,
    /// What is accumulated by a task of its own.
    pub(super) rows: Vec<Rows>,
}

/// One level of a reduction; where there are no levels, all of it.
pub(super) struct SumLevel {
    pub(super) group: Group,
    /// In what its gradients, or the sums of the level before, travel.
    pub(super) wire: WireType,
    /// Elements that a rank gives each other one, for each slice.
    pub(super) elements: usize,
    /// What travels; empty where a replica is one rank that sums by itself.
    pub(super) parts: Vec<ReducePart>,
    /// What is summed on the rank; empty where the collective sums.
    pub(super) sums: Vec<SumPart>,
}

/// The sum of rows over all ranks that have them.
pub(super) struct CopiesSum {
    pub(super) group: Group,
    /// Elements of each pair's rows.
    pub(super) elements: Vec<usize>,
    /// From a rank's rows to their sums.
    pub(super) pairs: Vec<(SlotId, SlotId)>,
}

/// In what gradients agree that one collective reduces.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Alike {
    /// The type in which they travel.
    pub(super) wire: WireType,
    /// The ranks that their weights are sharded over.
    pub(super) over: Group,
    /// How often a sum counts a token.
    pub(super) counts_tokens: u32,
}

/// The reductions that a call completes, and which of them is that of a group's gradients that are alike.
#[derive(Default)]
pub(super) struct OfCall {
    pub(super) all: Vec<Collected>,
    pub(super) groups: HashMap<(GroupId, Alike), usize>,
}

/// Rows of a gradient over all ranks, to be accumulated.
pub(super) struct Rows {
    pub(super) weight: WeightId,
    pub(super) from: SlotId,
    pub(super) first: bool,
    /// Where squares of the main grad go, if it is complete then.
    pub(super) squares: Option<SlotId>,
}

impl OfCall {
    /// The reduction that a gradient of this group goes into.
    pub(super) fn joined_by(&mut self, group: Option<GroupId>, name: &str, alike: Alike) -> &mut Collected {
        let next = self.all.len();
        let place = group.map_or(next, |group| *self.groups.entry((group, alike)).or_insert(next));
        if place == next {
            self.all.push(Collected::new(name, alike));
        }
        &mut self.all[place]
    }
}

impl Collected {
    fn new(name: &str, alike: Alike) -> Self {
        Self {
            name: name.to_owned(),
            alike,
            completed_later: false,
            levels: Vec::new(),
            over_copies: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// The level with this number, of this group.
    fn level(
        &mut self,
        number: usize,
        (group, wire): (Group, WireType),
        shard: &ShardLayout,
    ) -> &mut SumLevel {
        if number == self.levels.len() {
            self.levels.push(SumLevel { group, wire, elements: 0, parts: Vec::new(), sums: Vec::new() });
        }
        let level = &mut self.levels[number];
        level.elements = level.elements.saturating_add(shard.summed_over(group).elements());
        level
    }

    /// Adds the way of one gradient, which lies in `from` as it travels.
    pub(super) fn take(
        &mut self,
        draft: &mut Draft<'_>,
        weight: WeightId,
        from: SlotId,
        contribution: Contribution,
    ) {
        let Contribution { call, begins, ends } = contribution;
        let (name, label) = (draft.name(weight), draft.calls[call.index()].label());
        let layout = draft.weights.layout(weight);
        let (mesh, shard) = (draft.weights.mesh, layout.shard);
        let travels_in = self.alike.wire;
        let sums_in = WireType::of_sums(draft.policy.reduce_dtype, shard.shape.cols);
        // What is written with the last one is what the norm is of.
        let squares = (ends && draft.updates)
            .then(|| draft.transient(format!("{name} squares"), Content::Squares(weight)));
        let collective = draft.policy.collectives_sum(travels_in);
        let replicated = mesh.size(shard.copies()) > 1;
        let reduced = (collective || replicated).then(|| {
            let named = format!("{name} reduced gradient of {label}");
            draft.transient(named, Content::ReducedGradient(weight, call))
        });
        if collective {
            let part = reduced.map(|to| ReducePart { weight, from, to });
            self.level(0, (shard.group(), travels_in), &shard).parts.extend(part);
        } else {
            let mut own = from;
            for (number, group) in shard.tree(mesh).enumerate() {
                let is_last = number + 1 == shard.depth(mesh);
                let level = LevelId::at(number);
                let received = (mesh.size(group) > 1).then(|| match number {
                    0 => {
                        let named = format!("{name} gradient of {label} from others");
                        draft.transient(named, Content::ReceivedGradient(weight, call, travels_in))
                    }
                    _ => {
                        let named = format!("{name} gradient of {label} from others at {level}");
                        draft.transient(named, Content::ReceivedPartial(weight, call, level, sums_in))
                    }
                });
                let (into, target) = match (is_last, reduced) {
                    (false, _) => {
                        let named = format!("{name} gradient of {label} summed at {level}");
                        let content = Content::PartialGradient(weight, call, level, sums_in);
                        (draft.transient(named, content), SumTarget::travelling_in(sums_in))
                    }
                    (true, Some(rows)) => (rows, SumTarget::Rows),
                    (true, None) if begins => (draft.slot(Content::MainGrad(weight)), SumTarget::First),
                    (true, None) => (draft.slot(Content::MainGrad(weight)), SumTarget::More),
                };
                let squares = squares.filter(|_| target.accumulates());
                let wire = if number == 0 { travels_in } else { sums_in };
                let SumLevel { parts, sums, .. } = self.level(number, (group, wire), &shard);
                parts.extend(received.map(|to| ReducePart { weight, from: own, to }));
                sums.push(SumPart { weight, own, received, into, target, squares });
                own = into;
            }
        }
        let Some(reduced) = reduced else { return };
        let mut from = reduced;
        if replicated {
            let named = format!("{name} gradient of {label} over all replicas");
            from = draft.transient(named, Content::SummedGradient(weight, call));
            let group = shard.copies();
            let place = self.over_copies.iter().position(|sum| sum.group == group);
            let place = place.unwrap_or_else(|| {
                self.over_copies.push(CopiesSum { group, elements: Vec::new(), pairs: Vec::new() });
                self.over_copies.len() - 1
            });
            self.over_copies[place].elements.push(shard.stored().elements());
            self.over_copies[place].pairs.push((reduced, from));
        }
        self.rows.push(Rows { weight, from, first: begins, squares });
    }
}
