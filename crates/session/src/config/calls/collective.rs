//! A collective between calls in a file.
//!
//! Law: it reads one buffer, writes another and requests nothing else: no closure runs for it, and what it takes
//! follows from its bytes and the cluster.

use super::CallList;
use super::file::{CallItem, PartItem};
use crate::config::ConfigError;
use warpweft_base::id::BufferId;
use warpweft_plan::model::{Access, Collective};

impl CallList {
    /// The collective that `call` is, item `item` of the list, with what its lists of buffers name; none for a closure.
    ///
    /// # Errors
    /// [`ConfigError::Together`]: it does not read one buffer and write one, it has what only closures have, or it has
    /// ranks and is no collective.
    pub(super) fn collective(
        &self,
        item: usize,
        call: &CallItem,
        accesses: &[(BufferId, Access)],
    ) -> Result<Option<Collective>, ConfigError> {
        let refused = |key: &str, problem: &str, advice: &str| {
            let key = format!("call.{item}.{key}");
            let origin = self.document.origin_near(&key);
            Err(ConfigError::Together { key, origin, problem: problem.to_owned(), advice: advice.to_owned() })
        };
        let Some(kind) = call.collective else {
            if call.among.is_none() {
                return Ok(None);
            }
            let advice = "leave it out, or say by `collective` what these ranks do";
            return refused("among", "is given for a call that is no collective", advice);
        };
        if let Some(key) = of_closures(call) {
            let problem = "is given for a collective, which no closure runs";
            return refused(key, problem, "leave it out, or give it to a call without `collective`");
        }
        let &[(from, Access::Read), (to, Access::Write)] = accesses else {
            let problem = "is given for a call that does not read one buffer and write one";
            return refused("collective", problem, "name one in `reads` and another in `writes`");
        };
        Ok(Some(Collective::new(kind.into(), from, to).among(call.among.unwrap_or_default().into())))
    }
}

/// The first key of a call that means something to a closure only.
fn of_closures(call: &CallItem) -> Option<&'static str> {
    let PartItem { flops, bytes, kernels, math } = call.part;
    let given = [
        ("uses", !call.uses.is_empty()),
        ("gradients", !call.gradients.is_empty()),
        ("gradients_bf16", !call.gradients_bf16.is_empty()),
        ("updates", !call.updates.is_empty()),
        ("flops", flops > 0),
        ("bytes", bytes > 0),
        ("kernels", kernels > 0),
        ("math", math.is_some()),
        ("parts", !call.parts.is_empty()),
        ("dynamic", call.dynamic),
    ];
    given.into_iter().find(|(_, given)| *given).map(|(key, _)| key)
}
