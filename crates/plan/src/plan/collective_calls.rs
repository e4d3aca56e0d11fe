//! Checks that the buffers of collectives between calls fit the ranks that meet.
//!
//! Law: a program says how many elements buffers have, a mesh how many ranks there are; the two meet here and
//! nowhere else before a plan is made.

use super::PlanError;
use super::place::Request;

/// # Errors
/// [`PlanError::Collective`].
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
    }
    Ok(())
}
