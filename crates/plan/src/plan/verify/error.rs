//! Verification errors: why a plan was refused.
//!
//! Law: an error names the law and what would go wrong, the tasks, the slot, what is missing and what to do,
//! in words that need no knowledge of the planner. There is one variant for each way to break a law. A plan
//! names no rank, so what an error says holds on every rank.

/// A law that a plan breaks. The plan must not run.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerifyError {
    /// The plan names something it does not contain; no law can be checked on it.
    #[error(
        "malformed plan: {place} names {named}, but {present}; build the plan with `StepPlan::build` and do not edit it"
    )]
    Malformed {
        /// Where the name stands.
        place: String,
        /// What is named.
        named: String,
        /// What there is.
        present: String,
    },
    /// **PL-2** A call would compute with something else than the weight it declared.
    #[error(
        "PL-2 (a call would compute with a wrong weight): {task} needs {needs}, but slot `{slot}` holds {holds}; {remedy}"
    )]
    Use {
        /// The task that would read it.
        task: String,
        /// The slot it would read.
        slot: String,
        /// What must lie there: weight, orientation, form, version.
        needs: String,
        /// What lies there, and who put it there.
        holds: String,
        /// What to do.
        remedy: String,
    },
    /// **PL-3** Two accesses to the same bytes that nothing orders.
    #[error(
        "PL-3 (a race): {first} {first_access} slot `{first_slot}`, and later {second} {second_access} {second_slot}, but nothing makes {second} wait for {first}: {known}. So {harm}; let the later task wait for the earlier one (add a fence), or give their slots bytes of their own"
    )]
    Race {
        /// The task that stands earlier in T.
        first: String,
        /// What it does to its slot.
        first_access: String,
        /// That slot.
        first_slot: String,
        /// The later task.
        second: String,
        /// What it does to its slot.
        second_access: String,
        /// That slot: the same one, or another one and the bytes both share.
        second_slot: String,
        /// What the later task does wait for on the first one's lane.
        known: String,
        /// What may happen when both run at once.
        harm: String,
    },
    /// **PL-3** A task whose own operands share bytes, of which it writes one.
    #[error(
        "PL-3 (a race of a task with itself): {task} writes slot `{written}` and accesses slot `{other}`, which share bytes {begin}..{end}; the operands of one task must lie apart unless all are read"
    )]
    Overlap {
        /// The task.
        task: String,
        /// An operand it writes.
        written: String,
        /// The other operand; the same slot when it is named twice.
        other: String,
        /// First shared byte.
        begin: usize,
        /// One past the last shared byte.
        end: usize,
    },
    /// **PL-4** A task on a gradient's way finds something else than it must.
    #[error(
        "PL-4 (a gradient would be lost or wrong): {task} needs {needs}, but slot `{slot}` holds {holds}; {remedy}"
    )]
    Gradient {
        /// The task.
        task: String,
        /// The slot it reads or adds to.
        slot: String,
        /// What must lie there.
        needs: String,
        /// What lies there, and who put it there.
        holds: String,
        /// What to do.
        remedy: String,
    },
    /// **PL-4** A sum of gradients that lacks some.
    #[error(
        "PL-4 (a gradient would be lost): {task} takes the main grad of `{weight}` as complete, but the gradient of call `{call}` is not in it: {whereabouts}; every gradient must be reduced and accumulated once before {task}"
    )]
    LostGradient {
        /// The task that consumes the sum.
        task: String,
        /// The weight.
        weight: String,
        /// The call whose gradient is missing.
        call: String,
        /// Where the gradient is instead.
        whereabouts: String,
    },
    /// **PL-4** A gradient that is added again, a sum that is begun again, or parts of a sum over steps that do not fit
    /// together.
    #[error("PL-4 (a gradient would be lost or wrong): {task} {problem}; {remedy}")]
    Accumulation {
        /// The task.
        task: String,
        /// What it would do.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// **PL-4** The norm, or the optimizer, leaves out a weight or takes it twice.
    #[error(
        "PL-4 (a weight would be left out or updated wrongly): {task} {problem}; norm and optimizer take every main grad once, the optimizer with the weight's own bucket, and one parameter group at a time"
    )]
    Coverage {
        /// The task.
        task: String,
        /// What is wrong.
        problem: String,
    },
    /// **PL-5** T is not a topological order of the waits, or lanes and communicators disagree
    /// with it.
    #[error("PL-5 (lanes or ranks would wait for ever, or not at all): {task} {problem}; {remedy}")]
    Order {
        /// The task.
        task: String,
        /// What is wrong.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// **PL-6** Slots and bytes do not add up.
    #[error("PL-6 (bytes do not add up): {subject} {problem}; {remedy}")]
    Bytes {
        /// The slot, region or count.
        subject: String,
        /// What is wrong, in bytes.
        problem: String,
        /// What to do.
        remedy: String,
    },
    /// **PL-9** Resident state is taken or left at another version than the plan declares.
    #[error(
        "PL-9 (masters, moments and shards would not fit each other): {subject} needs {needs}, but {finds}; {remedy}"
    )]
    Edge {
        /// The task, or the step boundary.
        subject: String,
        /// What must hold.
        needs: String,
        /// What does, and in which slot.
        finds: String,
        /// What to do.
        remedy: String,
    },
    /// **PL-10** A call does not run once, in order, with the operands it declares, or an operand
    /// of the step's bookkeeping is not this step's.
    #[error("PL-10 (the step would not be the declared program): {task} {problem}; {remedy}")]
    Program {
        /// The task or call.
        task: String,
        /// What is wrong.
        problem: String,
        /// What to do.
        remedy: String,
    },
}

warpweft_base::debug_in_words!(VerifyError);
