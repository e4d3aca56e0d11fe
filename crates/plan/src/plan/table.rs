//! A plan as a table of text.
//!
//! Law: one line per task in issue order, with everything that decides when it runs: lane, op, the group of
//! ranks it brings together where there are several replicas, subject, fences, and the bytes it moves. Then
//! the bounds and the notes.

use std::fmt::{Display, Formatter, Result};

use super::{StepPlan, Task};
use crate::model::Group;
use crate::policy::ByteSize;
use warpweft_base::errors::shown;

impl Display for StepPlan {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        writeln!(
            out,
            "{}: {} tasks on {} lanes for {}, fingerprint {:016x}",
            self.title(),
            self.tasks.len(),
            self.lanes.len(),
            self.weights.mesh,
            self.fingerprint(),
        )?;
        let widest = |head: &str, of: fn(&Task) -> String| {
            let widths = self.tasks.iter().map(|task| of(task).chars().count());
            widths.fold(head.len(), usize::max)
        };
        let (op_width, subject_width) =
            (widest("op", |task| task.op.name().to_owned()), widest("subject", |task| shown(&task.subject)));
        let mesh = self.weights.mesh;
        let has_groups =
            mesh.replicas() > 1 || mesh.tensor() > 1 || mesh.has_experts() || mesh.depth(Group::Shard) > 1;
        // A column that would say nothing new of all ranks is left out.
        let group = |name: String| if has_groups { format!("{name:<9} ") } else { String::new() };
        writeln!(
            out,
            "{:>5}  {:<15} {:<op_width$} {}{:<subject_width$} {:>12}  waits for",
            "task",
            "lane",
            "op",
            group("group".to_owned()),
            "subject",
            "bytes in"
        )?;
        for (id, task) in self.entries() {
            let lane =
                self.lanes.get(task.lane.index()).map_or_else(String::new, |lane| lane.kind.to_string());
            let waits: Vec<String> = task.waits.iter().map(|wait| wait.number().to_string()).collect();
            let wire = if task.wire_bytes == 0 { String::new() } else { task.wire_bytes.to_string() };
            writeln!(
                out,
                "{:>5}  {lane:<15} {:<op_width$} {}{:<subject_width$} {wire:>12}  {}",
                id.number(),
                task.op.name(),
                group(task.op.group().map_or_else(String::new, |group| group.to_string())),
                shown(&task.subject),
                waits.join(" "),
            )?;
        }
        let bounds = &self.bounds;
        let size = |bytes: usize| ByteSize::of(bytes).in_full();
        writeln!(
            out,
            "resident {}; transient {}, of which at most {} live at once ({} weights and gradients) at {}; {} in per step",
            size(bounds.resident_bytes),
            size(bounds.transient_bytes),
            size(bounds.live_bytes),
            size(bounds.live_weight_bytes),
            self.describe(bounds.live_peak),
            size(bounds.wire_bytes),
        )?;
        self.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))
    }
}
