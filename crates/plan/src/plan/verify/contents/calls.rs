//! PL-2 and PL-10, the closures: what every operand of a call holds when the call runs.
//!
//! Law: calls run once each, in program order, on exactly the operands they declare. A use finds
//! its weight at the version of the step's entry; a buffer holds what the last call before it in
//! program order wrote, else what was staged or carried. What a closure reads and writes inside an
//! operand is its own; that it keeps to its operands is the context's law, not the plan's. A step runs the same
//! calls for every micro-batch; what a buffer holds belongs to one micro-batch, unless it is carried.

use super::{BufferValue, Held, Run, Verdict};
use crate::model::{Access, Call, Form, Lifetime, Placement, Role, Use};
use crate::op::{Operand, OperandRole};
use warpweft_base::id::{BufferId, CallId, MicroBatchId, SlotId, TaskId, WeightId};
use warpweft_format::{ElementType, Orientation};

/// A call as its task runs it.
#[derive(Clone, Copy)]
struct Running<'p> {
    task: TaskId,
    id: CallId,
    call: &'p Call,
}

impl Run<'_> {
    pub(super) fn compute(
        &mut self,
        task: TaskId,
        id: CallId,
        fault: SlotId,
        operands: &[Operand],
    ) -> Verdict<()> {
        let plan = self.plan;
        let running = Running { task, id, call: &plan.calls[id.index()] };
        self.check_turn(task, id)?;
        if running.call.collective.is_some() {
            let problem = format!("runs a closure for `{}`, which is a collective", running.call.label());
            return self.wrong_program(plan.describe(task), problem, "let ranks give each other its buffer");
        }
        if *self.slots.held(fault) != (Held::FaultWord { calls: self.closures }) {
            let needs = format!("a fault word that has seen the {} calls before it", self.closures);
            return self.wrong_operand(
                task,
                fault,
                &needs,
                "clear the fault word once, before the first call",
            );
        }
        self.check_declared_once(running, operands)?;
        // All that is read is read before anything is written.
        for operand in operands {
            self.check_operand(running, operand)?;
        }
        for operand in operands.iter().filter(|operand| operand.access.writes()) {
            self.write_operand(running, operand)?;
        }
        for access in running.call.buffers.iter().filter(|access| access.access.writes()) {
            self.writers[access.buffer.index()] = Some(id);
        }
        self.calls += 1;
        self.closures += 1;
        self.fill(task, fault, Held::FaultWord { calls: self.closures })
    }

    /// The call is the next one in program order.
    pub(super) fn check_turn(&self, task: TaskId, id: CallId) -> Verdict<()> {
        let plan = self.plan;
        if id.index() == self.calls {
            return Ok(());
        }
        let next = plan.calls.get(self.calls);
        let next = next.map_or("no call".into(), |call| format!("call `{}`", call.label()));
        let problem =
            format!("runs call `{}` when {next} is next in program order", plan.calls[id.index()].label());
        self.wrong_program(plan.describe(task), problem, "run every call once, in program order")
    }

    /// How many closures the step runs.
    pub(super) fn all_closures(&self) -> usize {
        self.plan.calls.iter().filter(|call| call.collective.is_none()).count()
    }

    /// Copies between a buffer and its staging.
    pub(super) fn copy(&mut self, task: TaskId, from: SlotId, to: SlotId) -> Verdict<()> {
        let held = self.slots.held(from).clone();
        let (source, target) = (self.plan.arena.region(from).bytes, self.plan.arena.region(to).bytes);
        if !matches!(held, Held::Buffer(..)) {
            return self.wrong_operand(
                task,
                from,
                "the content of a buffer",
                "copy inputs from staging, outputs once written",
            );
        }
        if source != target {
            let problem =
                format!("copies slot `{}` of {source} bytes to one of {target}", self.slot_name(from));
            return self.wrong_program(self.plan.describe(task), problem, "copy between slots of one size");
        }
        self.fill(task, to, held)
    }

    /// The value of `buffer` that program order gives the next call of `micro_batch`; `None` when nothing
    /// did. Only a carried buffer comes from an earlier micro-batch.
    pub(super) fn value(&self, buffer: BufferId, micro_batch: MicroBatchId) -> Option<BufferValue> {
        let spec = &self.plan.buffers[buffer.index()];
        let lasts = |call: &CallId| {
            spec.lifetime == Lifetime::Carried || self.plan.calls[call.index()].micro_batch == micro_batch
        };
        match self.writers[buffer.index()].filter(lasts) {
            Some(call) => Some(BufferValue::Written(call)),
            None if spec.role == Role::Input => Some(BufferValue::Staged(micro_batch)),
            None if spec.lifetime == Lifetime::Carried => Some(BufferValue::Carried),
            None => None,
        }
    }

    /// The calls of every micro-batch are the same, in the same order: so the mean is over as many as the
    /// plan says.
    pub(super) fn check_micro_batches(&self) -> Verdict<()> {
        let (calls, micro_batches) = (&self.plan.calls, self.plan.micro_batches as usize);
        let each = calls.len().checked_div(micro_batches).unwrap_or(0).max(1);
        let repeats = |(number, call): (usize, &Call)| {
            let micro_batch = MicroBatchId::at(number / each);
            *call == Call { micro_batch, ..calls[number % each].clone() }
        };
        let whole = calls.len() == each * micro_batches && calls.iter().enumerate().all(repeats);
        if whole || (calls.is_empty() && micro_batches == 1) {
            return Ok(());
        }
        let problem =
            format!("has {} calls, which are not the same ones {micro_batches} times over", calls.len());
        let remedy = "repeat all calls once for each micro-batch, numbered in order";
        self.wrong_program(self.plan.title(), problem, remedy)
    }

    /// Exactly the declared operands, each once and in the declared way.
    fn check_declared_once(&self, running: Running<'_>, operands: &[Operand]) -> Verdict<()> {
        let Running { task, call, .. } = running;
        let mut expected: Vec<(OperandRole, Access)> = Vec::new();
        expected.extend((0..call.uses.len()).map(|position| (OperandRole::Use(position), Access::Read)));
        let gradients = call.gradients.iter().map(|gradient| OperandRole::Gradient(gradient.weight));
        expected.extend(gradients.map(|role| (role, Access::Write)));
        expected
            .extend(call.buffers.iter().map(|access| (OperandRole::Buffer(access.buffer), access.access)));
        let scaled = |position: &usize| self.reads_tensor_scale(&call.uses[*position]);
        expected
            .extend((0..call.uses.len()).filter(scaled).map(|n| (OperandRole::TensorScale(n), Access::Read)));
        let mut found: Vec<(OperandRole, Access)> =
            operands.iter().map(|operand| (operand.role, operand.access)).collect();
        expected.sort_unstable();
        found.sort_unstable();
        if expected == found {
            return Ok(());
        }
        let missing = expected.iter().find(|operand| !found.contains(operand));
        let extra = found.iter().find(|operand| !expected.contains(operand));
        let say =
            |(role, access): &(OperandRole, Access)| format!("that it {access} {}", self.role(call, *role));
        let problem = match (missing, extra) {
            (Some(operand), _) => {
                format!("does not bind what call `{}` declares: {}", call.label(), say(operand))
            }
            (None, Some(operand)) => {
                format!("binds what call `{}` does not declare: {}", call.label(), say(operand))
            }
            (None, None) => format!("binds an operand of call `{}` twice", call.label()),
        };
        self.wrong_program(
            self.plan.describe(task),
            problem,
            "bind each declared operand once, in the declared way",
        )
    }

    fn check_operand(&mut self, running: Running<'_>, operand: &Operand) -> Verdict<()> {
        let Running { task, call, .. } = running;
        match operand.role {
            OperandRole::Use(position) => self.check_use(running, &call.uses[position], operand.slot),
            OperandRole::TensorScale(position) => {
                self.tensor_scale(task, operand.slot, call.uses[position].weight, self.plan.entry.masters)
            }
            OperandRole::Gradient(_) => Ok(()),
            OperandRole::Buffer(buffer) => {
                if operand.access.reads() {
                    self.check_buffer((task, call), buffer, operand.slot)?;
                    self.check_read_counts((task, running.id), buffer)?;
                }
                self.proven.buffers += 1;
                Ok(())
            }
        }
    }

    fn check_use(&mut self, running: Running<'_>, usage: &Use, slot: SlotId) -> Verdict<()> {
        let Use { weight, orientation, form, .. } = *usage;
        let layout = self.plan.weights.layout(weight);
        let found = match (layout.placement, form, self.slots.held(slot)) {
            (Placement::Replicated, Form::Dense, Held::Master(of, version))
                if (*of, orientation) == (weight, Orientation::Rowwise) =>
            {
                Some(*version)
            }
            (Placement::Sharded, _, Held::Dense(of, o, values, version))
                if (*of, *o, Some(*values)) == (weight, orientation, form.values()) =>
            {
                Some(*version)
            }
            (Placement::Sharded, ..) if form.values().is_some_and(|values| !layout.is_dense(values)) => None,
            (Placement::Sharded, _, _) => self.planes_at(slot, weight, orientation),
            (Placement::Replicated, ..) => None,
        };
        let version = self.plan.entry.masters;
        if found != Some(version) {
            let form = match form {
                Form::Planes => "planes",
                Form::Dense => "dense f32 values",
                Form::DenseBf16 => "dense bf16 values",
            };
            let needs = format!(
                "the {orientation} {form} of `{}` at {version} for call `{}`",
                layout.name,
                running.call.label()
            );
            let remedy = match found {
                Some(_) => {
                    "gather after the cast of the version the step begins with, and before the optimizer's next cast"
                }
                None => "gather this weight, derive what the use requests, and let the call read that slot",
            };
            return self.wrong_planes(running.task, slot, needs, remedy);
        }
        self.proven.uses += 1;
        Ok(())
    }

    /// The slot holds what program order gives the buffer for a call that reads it.
    pub(super) fn check_buffer(
        &self,
        (task, call): (TaskId, &Call),
        buffer: BufferId,
        slot: SlotId,
    ) -> Verdict<()> {
        let name = &self.plan.buffers[buffer.index()].name;
        let Some(value) = self.value(buffer, call.micro_batch) else {
            let problem = format!("reads buffer `{name}`, which no call before it writes");
            let remedy = "write the buffer first, or declare it as an input or carried";
            return self.wrong_program(self.plan.describe(task), problem, remedy);
        };
        if *self.slots.held(slot) == Held::Buffer(buffer, value) {
            return Ok(());
        }
        let needs = format!("buffer `{name}` {}", value.describe(self.plan));
        let remedy = "copy inputs before their first reader, and keep a buffer's bytes until its last";
        self.wrong_operand(task, slot, &needs, remedy)
    }

    fn write_operand(&mut self, running: Running<'_>, operand: &Operand) -> Verdict<()> {
        let Running { task, id: call, .. } = running;
        match operand.role {
            OperandRole::Gradient(weight) => self.write_gradient(running, weight, operand.slot),
            OperandRole::Buffer(buffer) => {
                self.fill(task, operand.slot, Held::Buffer(buffer, BufferValue::Written(call)))
            }
            OperandRole::Use(_) | OperandRole::TensorScale(_) => Ok(()),
        }
    }

    /// A closure writes the real rows alone: zeros after them stay.
    fn write_gradient(&mut self, running: Running<'_>, weight: WeightId, slot: SlotId) -> Verdict<()> {
        let Running { task, id, call } = running;
        let padded = *self.slots.held(slot) == Held::Padding(weight);
        let shard = &self.plan.weights.layout(weight).shard;
        let has_padding = shard.padded_rows() > shard.shape.rows;
        let held = match self.written_in.get(&(weight, id)).copied() {
            Some(ElementType::F32) => Held::Gradient { weight, calls: [id].into(), padded },
            Some(ElementType::Bf16) if padded || !has_padding => Held::WireGradient(weight, [id].into()),
            Some(ElementType::Bf16) => Held::Unpadded(weight, id),
            other => {
                let problem = format!(
                    "runs call `{}`, which writes the gradient of `{}` in {other:?}",
                    call.label(),
                    self.name(weight)
                );
                let remedy = "declare gradients in f32 or bf16";
                return self.wrong_program(self.plan.describe(task), problem, remedy);
            }
        };
        self.fill(task, slot, held)
    }

    /// Do the planes of a use come with a scale of the whole tensor?
    fn reads_tensor_scale(&self, usage: &Use) -> bool {
        let layout = self.plan.weights.layout(usage.weight);
        usage.form == Form::Planes && self.plan.weights.bucket(layout.bucket).has_scales()
    }

    fn role(&self, call: &Call, role: OperandRole) -> String {
        let of = |position: usize| match call.uses.get(position) {
            Some(usage) => format!("use {position} (`{}` {})", self.name(usage.weight), usage.orientation),
            None => format!("use {position} of {}", call.uses.len()),
        };
        let gradient = |weight: WeightId| format!("the gradient of `{}`", self.name(weight));
        match role {
            OperandRole::Use(position) => of(position),
            OperandRole::TensorScale(position) => format!("the tensor scale of {}", of(position)),
            OperandRole::Gradient(weight) => gradient(weight),
            OperandRole::Buffer(buffer) => format!("buffer `{}`", self.plan.buffers[buffer.index()].name),
        }
    }
}
