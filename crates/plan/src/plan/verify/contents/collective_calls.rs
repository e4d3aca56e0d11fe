//! PL-10, collectives between calls.
//!
//! Law: a collective takes its turn among the calls, once, as it is declared. It gives what program order says of its
//! buffer; what it leaves is the value of the other one until a later call writes that. Buffers have the sizes and
//! element types that its kind and its number of ranks request, so every rank gets what all others give and nothing
//! else.

use super::{BufferValue, Held, Run, Verdict};
use crate::model::Collective;
use crate::op::CollectiveCall;
use warpweft_base::id::TaskId;

impl Run<'_> {
    pub(super) fn collective_call(&mut self, task: TaskId, op: &CollectiveCall) -> Verdict<()> {
        let CollectiveCall { call: id, kind, group, from, to, counts } = *op;
        let plan = self.plan;
        let (call, mesh) = (&plan.calls[id.index()], plan.weights.mesh);
        let wrong = |run: &Self, problem: String| {
            run.wrong_program(
                plan.describe(task),
                problem,
                "run the collective that the call declares, as it declares it",
            )
        };
        self.check_turn(task, id)?;
        let declared = match call.collective {
            Some(declared) if declared.kind == kind && mesh.alike(declared.group, group) => declared,
            Some(Collective { kind: other, group: among, .. }) => {
                let label = call.label();
                return wrong(
                    self,
                    format!("is `{label}` ({kind}, {group}), which is declared as {other}, {among}"),
                );
            }
            None => {
                return wrong(
                    self,
                    format!("runs a collective for `{}`, which is a closure's", call.label()),
                );
            }
        };
        let ranks = mesh.size(group);
        let [given, got] = [declared.from, declared.to].map(|buffer| &plan.buffers[buffer.index()]);
        if kind.received(given.elements, ranks) != Some(got.elements) {
            let (given, got) = (given.elements, got.elements);
            return wrong(
                self,
                format!("gives {given} elements among {ranks} ranks and gets {got} ({kind})"),
            );
        }
        if given.element != got.element || !kind.takes(given.element) {
            let (given, got) = (given.element, got.element);
            return wrong(self, format!("gives elements in {given} and gets some in {got} ({kind})"));
        }
        self.check_buffer((task, call), declared.from, from)?;
        // What all bytes of the slot are cut into, or set after each other, are the parts of ranks.
        let bytes = plan.arena.region(from).bytes;
        if bytes != given.bytes() {
            let (slot, name) = (self.slot_name(from), &given.name);
            let problem = format!("gives {bytes} bytes of slot `{slot}`, but `{name}` has {}", given.bytes());
            return wrong(self, problem);
        }
        self.check_read_counts((task, id), declared.from)?;
        self.check_counts((task, id), declared, counts)?;
        self.proven.buffers += 2;
        self.writers[declared.to.index()] = Some(id);
        self.calls += 1;
        self.fill(task, to, Held::Buffer(declared.to, BufferValue::Written(id)))
    }
}
