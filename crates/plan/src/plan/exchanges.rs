//! Checks that the buffers of collectives between calls fit the ranks that meet.
//!
//! Law: a program says how many elements buffers have, a mesh how many ranks there are; the two meet here and
//! nowhere else before a plan is made.

use super::PlanError;
use super::place::Request;

/// # Errors
/// [`PlanError::Exchange`].
pub(super) fn check_exchanges(request: &Request<'_>) -> Result<(), PlanError> {
    for call in request.calls {
        let Some(exchange) = call.exchange else { continue };
        let ranks = request.weights.mesh.size(exchange.group);
        let [from, to] = [exchange.from, exchange.to].map(|buffer| &request.buffers[buffer.index()]);
        if exchange.kind.received(from.elements, ranks) != Some(to.elements) {
            return Err(PlanError::Exchange {
                program: request.name.to_owned(),
                call: call.name.clone(),
                kind: exchange.kind,
                ranks,
                from: Box::new(from.clone()),
                to: Box::new(to.clone()),
            });
        }
    }
    Ok(())
}
