//! Executes one op on one rank: the one `match` on an op of the CPU backend.
//!
//! Law: a local op holds regions and lengths of this rank; [`run`] decides nothing. Ops that carry a vote do
//! nothing when it skips the step, on every rank alike. An op that meets a master or a moment from which no training
//! goes on says so to the rank and is done as any other; so is a call that wrote a gradient which is not finite.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::bound::BoundTask;
use super::context::LaneContext;
use super::memory::Arena;
use super::op_error::OpError;
use super::surface::CpuSurface;
use super::{collective, delayed, gradient, optimizer, planes, quantize, snapshot};
use crate::ClosureFault;
use crate::bell::lock;
use crate::closures::fault_word;
use crate::local::{ComputeCall, CustomOptimizer, LocalOp};
use warpweft_plan::compute::BoundCall;
use warpweft_plan::op::Vote;

/// What remains to be reported of a finished task.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// When the last rank of a collective arrived.
    pub(super) joined: Option<u64>,
    /// The fault a closure ended in.
    pub(super) fault: Option<ClosureFault>,
}

/// Carries out the op of a task.
pub(super) fn run(task: &BoundTask, context: &mut LaneContext) -> Result<Done, OpError> {
    let arena = &*context.arena;
    match &task.op {
        LocalOp::Copy { from, to } => arena.copy(*from, *to)?,
        LocalOp::Snapshot { from, to } => snapshot::copy(arena, &context.snapshot, *from, *to)?,
        LocalOp::Zero { region } | LocalOp::ClearFault { fault: region } => arena.zero(*region)?,
        LocalOp::Compute(call) => {
            return Ok(Done { fault: compute(call, context)?, ..Done::default() });
        }
        LocalOp::PartialAmax(op) => quantize::partial_amax(op, arena)?,
        LocalOp::FusedScale(op) => quantize::fused_scale(op, arena, &context.presence.diverged)?,
        LocalOp::DelayedScale(op) => delayed::delayed_scale(op, arena)?,
        LocalOp::RecordAmax(op) => delayed::record_amax(op, arena)?,
        LocalOp::PartialCast(op) => quantize::partial_cast(op, arena)?,
        LocalOp::Assemble(op) => planes::assemble(op, arena)?,
        LocalOp::Transpose(parts) => parts.iter().try_for_each(|part| planes::transpose(part, arena))?,
        LocalOp::Dequantize(parts) => parts.iter().try_for_each(|part| planes::dequantize(part, arena))?,
        LocalOp::Round(op) => gradient::round(op, arena)?,
        LocalOp::SumGradient(op) => gradient::sum_gradient(op, arena)?,
        LocalOp::Accumulate(op) => gradient::accumulate(op, arena)?,
        LocalOp::GradNorm(op) => gradient::grad_norm(op, arena)?,
        LocalOp::Vote(op) => gradient::vote(op, arena)?,
        LocalOp::Adam(op) => optimizer::adam(op, arena, &mut context.blocks, &context.presence.diverged)?,
        LocalOp::CustomOptimizer(op) => custom_optimizer(op, context)?,
        LocalOp::Collective(op) => {
            let joined = collective::collective(op, task, context)?;
            return Ok(Done { joined: Some(joined), ..Done::default() });
        }
    }
    Ok(Done::default())
}

/// Runs a closure, unless the fault word is set. One that fails sets it; everything else in the step still
/// runs, so no peer hangs.
fn compute(op: &ComputeCall, context: &mut LaneContext) -> Result<Option<ClosureFault>, OpError> {
    let arena = &context.arena;
    if arena.read::<u32>(op.fault)?.iter().any(|fault| *fault != 0) {
        return Ok(None);
    }
    let surface = CpuSurface::new(Arc::clone(arena), op.call.clone());
    let fault = context.closures.run(context.presence.rank, &op.call, &surface).map_err(OpError::Closures)?;
    if let Some(fault) = &fault {
        arena.write::<u32>(op.fault)?.fill(fault_word(fault.call));
    } else {
        let fault = overflow(op, arena)?;
        if let Some(fault) = &fault {
            arena.write::<u32>(op.fault)?.fill(fault_word(fault.call));
        }
        inspect(&op.call, context)?;
        return Ok(fault);
    }
    Ok(fault)
}

/// The fault of a call that counted more rows than there is room for.
fn overflow(op: &ComputeCall, arena: &Arena) -> Result<Option<ClosureFault>, OpError> {
    for written in &op.counts {
        let fault = written.fault(op.call.id, &arena.read::<u32>(written.region)?);
        if fault.is_some() {
            return Ok(fault);
        }
    }
    Ok(None)
}

/// Notes a call that wrote a gradient which is not finite, if it is the first in the step.
fn inspect(call: &BoundCall, context: &LaneContext) -> Result<(), OpError> {
    for (gradient, region) in call.written_gradients() {
        if !gradient::is_finite(gradient.element, region, &context.arena)? {
            lock(&context.presence.non_finite).get_or_insert((call.id, gradient.weight));
            break;
        }
    }
    Ok(())
}

/// Runs a part of the custom optimizer, unless the vote skips the step, and checks what it left.
fn custom_optimizer(op: &CustomOptimizer, context: &mut LaneContext) -> Result<(), OpError> {
    let arena = &context.arena;
    if arena.read::<Vote>(op.vote)?.iter().any(Vote::skips) {
        return Ok(());
    }
    let surface = CpuSurface::new(Arc::clone(arena), op.task.clone());
    context
        .closures
        .custom_optimizer(context.presence.rank, &op.task, &surface)
        .map_err(OpError::Closures)?;
    for (values, largest) in &op.checked {
        if !arena.read::<f32>(*values)?.iter().all(|value| value.abs() <= *largest) {
            context.presence.diverged.store(true, Ordering::SeqCst);
        }
    }
    Ok(())
}
