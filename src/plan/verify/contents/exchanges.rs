//! PL-10, exchanges: what ranks give each other of their buffers.
//!
//! Law: an exchange takes its turn among the calls, once, as it is declared. It gives what program order says of its
//! buffer; what it leaves is the value of the other one until a later call writes that. Buffers have the sizes that
//! its kind and its number of ranks ask for, so every rank gets what all others give and nothing else.

use super::{BufferValue, Held, Run, Verdict};
use crate::id::{CallId, SlotId, TaskId};
use crate::model::{Exchange, ExchangeKind, Group};

impl Run<'_> {
    pub(super) fn exchange_buffer(
        &mut self,
        task: TaskId,
        id: CallId,
        (kind, group): (ExchangeKind, Group),
        from: SlotId,
        to: SlotId,
    ) -> Verdict<()> {
        let plan = self.plan;
        let call = &plan.calls[id.index()];
        let wrong = |run: &Self, problem: String| {
            run.wrong_program(
                plan.describe(task),
                problem,
                "exchange what the call declares, as it declares it",
            )
        };
        self.check_turn(task, id)?;
        let declared = match call.exchange {
            Some(declared) if (declared.kind, declared.group) == (kind, group) => declared,
            Some(Exchange { kind: other, group: among, .. }) => {
                let label = call.label();
                return wrong(
                    self,
                    format!("is `{label}` ({kind}, {group}), which is declared as {other}, {among}"),
                );
            }
            None => {
                return wrong(
                    self,
                    format!("exchanges buffers for `{}`, which is a closure's", call.label()),
                );
            }
        };
        let ranks = plan.weights.mesh.size(group);
        let [given, got] = [declared.from, declared.to].map(|buffer| plan.buffers[buffer.index()].elements);
        if kind.received(given, ranks) != Some(got) {
            return wrong(
                self,
                format!("gives {given} elements among {ranks} ranks and gets {got} ({kind})"),
            );
        }
        self.check_buffer((task, call), declared.from, from)?;
        self.proven.buffers += 2;
        self.writers[declared.to.index()] = Some(id);
        self.calls += 1;
        self.fill(task, to, Held::Buffer(declared.to, BufferValue::Written(id)))
    }
}
