//! Checks that the buffers of collectives between calls fit the ranks that meet.
//!
//! Law: a program says how many elements buffers have, a mesh how many ranks there are; the two meet here and
//! nowhere else before a plan is made.

use super::PlanError;
use super::place::Request;
use crate::model::{Call, Collective};
use warpweft_base::id::BufferId;

/// # Errors
/// [`PlanError::Collective`], [`PlanError::Counts`].
pub(super) fn check_collective_calls(request: &Request<'_>) -> Result<(), PlanError> {
    for call in request.calls {
        let Some(collective) = call.collective else { continue };
        let ranks = request.weights.mesh.size(collective.group);
        let [from, to] = [collective.from, collective.to].map(|buffer| &request.buffers[buffer.index()]);
        if collective.kind.received(from.elements, ranks) != Some(to.elements) {
            return Err(PlanError::Collective {
                program: request.name.to_owned(),
                call: call.name.clone(),
                kind: collective.kind,
                ranks,
                from: Box::new(from.clone()),
                to: Box::new(to.clone()),
            });
        }
        check_counts(request, call, collective, ranks)?;
    }
    Ok(())
}

/// One count for each slot, as many slots for each rank, and rows of one length.
fn check_counts(
    request: &Request<'_>,
    call: &Call,
    collective: Collective,
    ranks: u32,
) -> Result<(), PlanError> {
    let Some(counts) = collective.counts else { return Ok(()) };
    let elements = |buffer: BufferId| request.buffers[buffer.index()].elements;
    let slots = elements(counts.given);
    let rows = counts.capacity.saturating_mul(slots);
    let (buffer, wanted) = if slots == 0 || !slots.is_multiple_of(ranks as usize) {
        (counts.given, format!("a multiple of {ranks}"))
    } else if elements(counts.taken) != slots {
        (counts.taken, slots.to_string())
    } else if !elements(collective.from).is_multiple_of(rows) {
        (collective.from, format!("a multiple of {rows}"))
    } else {
        return Ok(());
    };
    Err(PlanError::Counts {
        program: request.name.to_owned(),
        call: call.name.clone(),
        ranks,
        capacity: counts.capacity,
        buffer: Box::new(request.buffers[buffer.index()].clone()),
        wanted: wanted.into(),
    })
}
