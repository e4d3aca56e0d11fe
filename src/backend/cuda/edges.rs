//! Collectives that nothing is computed beside.
//!
//! Law: it follows from the plan alone, so all ranks say the same of a collective. Before the first call of a step stands its first gather, behind the
//! last one its last reduction of a gradient; whatever else stands there is small, or has one of these two, or a call, beside it.

use crate::id::{LaneId, TaskId};
use crate::op::Op;

/// Both ends of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Edges {
    first: Option<TaskId>,
    last: Option<TaskId>,
}

impl Edges {
    /// Of a plan's ops, in issue order.
    pub(super) fn of(ops: &[(Op, LaneId)]) -> Self {
        let is_call = |op: &Op| matches!(op, Op::Compute { .. });
        let calls =
            || ops.iter().enumerate().filter(|(_, (op, _))| is_call(op)).map(|(position, _)| position);
        let (Some(first), Some(last)) = (calls().next(), calls().next_back()) else { return Self::default() };
        let collective =
            |(position, (op, _)): (usize, &(Op, LaneId))| op.is_collective().then(|| TaskId::at(position));
        let reduction = |(position, (op, _)): (usize, &(Op, LaneId))| {
            matches!(op, Op::ExchangeGradient { .. } | Op::ReduceScatter { .. }).then(|| TaskId::at(position))
        };
        Self {
            first: ops.iter().enumerate().take(first).find_map(collective),
            last: ops.iter().enumerate().skip(last).rev().find_map(reduction),
        }
    }

    /// Has this collective the device to itself?
    pub(super) fn is_alone(self, task: TaskId) -> bool {
        [self.first, self.last].contains(&Some(task))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ElementType;
    use crate::id::{CallId, SlotId};

    fn ops(kinds: &str) -> Vec<(Op, LaneId)> {
        let op = |kind| match kind {
            'g' => Op::AllGather { parts: Vec::new() },
            'e' => Op::ExchangeGradient { element: ElementType::Bf16, parts: Vec::new() },
            'c' => Op::Compute { call: CallId::at(0), fault: SlotId::at(0), operands: Vec::new() },
            _ => Op::Assemble { parts: Vec::new() },
        };
        kinds.chars().map(|kind| (op(kind), LaneId::default())).collect()
    }

    #[test]
    fn the_first_collective_before_all_calls_and_the_last_reduction_behind_them_are_alone() {
        // Behind the last reduction the optimizer's collectives stand, which are small.
        let edges = Edges::of(&ops("agagcgcegeag"));
        let alone: Vec<usize> = (0..12).filter(|task| edges.is_alone(TaskId::at(*task))).collect();
        assert_eq!(alone, [1, 9]);
    }

    #[test]
    fn a_collective_between_calls_is_not_and_a_plan_without_calls_has_none() {
        assert_eq!(Edges::of(&ops("cegc")), Edges::default());
        assert_eq!(Edges::of(&ops("gae")), Edges::default());
    }
}
