//! A plan as a Graphviz picture.
//!
//! Law: one column per lane in issue order; solid arrows are lane order, bold ones fences, dashed
//! ones leases that lane order and fences cover. Render with `dot -Tsvg`.

use std::fmt::Write;

use super::{EdgeKind, StepPlan};
use crate::op::Op;

impl StepPlan {
    /// The plan as Graphviz source.
    #[must_use]
    pub fn to_dot(&self) -> String {
        let mut dot = String::from(
            "digraph plan {\n  rankdir=TB; node [shape=box, style=filled, fontname=\"sans-serif\"];\n",
        );
        for lane in &self.lanes {
            let _ = writeln!(dot, "  subgraph cluster_{} {{\n    label=\"{}\";", lane.id.number(), lane.kind);
            for (id, task) in self.entries().filter(|(_, task)| task.lane == lane.id) {
                let label = format!("{} {}\n{}", id.number(), task.op.name(), task.subject);
                let _ = writeln!(
                    dot,
                    "    t{} [label={label:?}, fillcolor=\"{}\"];",
                    id.number(),
                    color(&task.op)
                );
            }
            let order: Vec<String> = self
                .entries()
                .filter(|(_, task)| task.lane == lane.id)
                .map(|(id, _)| format!("t{}", id.number()))
                .collect();
            if order.len() > 1 {
                let _ = writeln!(dot, "    {};", order.join(" -> "));
            }
            dot.push_str("  }\n");
        }
        for (id, task) in self.entries() {
            for wait in &task.waits {
                let _ =
                    writeln!(dot, "  t{} -> t{} [style=bold, constraint=false];", wait.number(), id.number());
            }
        }
        for edge in self.edges().iter().filter(|edge| edge.kind == EdgeKind::Lease) {
            if !self.task(edge.to).waits.contains(&edge.from)
                && self.task(edge.to).lane != self.task(edge.from).lane
            {
                let _ = writeln!(
                    dot,
                    "  t{} -> t{} [style=dashed, color=gray, constraint=false];",
                    edge.from.number(),
                    edge.to.number()
                );
            }
        }
        dot.push_str("}\n");
        dot
    }
}

fn color(op: &Op) -> &'static str {
    match op {
        op if op.runs_user_code() => "#cfe8cf",
        op if op.is_gather() => "#cfdcf2",
        op if op.is_collective() => "#f2d7cf",
        _ => "#eeeeee",
    }
}
