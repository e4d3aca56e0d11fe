//! A collective between calls in a file.
//!
//! Law: it reads one buffer, writes another and requests nothing else: no closure runs for it, and what it takes
//! follows from its bytes and the cluster. With a capacity it is a dispatch, which reads rows and their counts and
//! writes the same; what goes back, or the same way again, names that dispatch and is in all else as it is.

use super::CallList;
use super::build::{Named, unknown};
use super::file::{CallItem, Given, PartItem};
use super::numbers::numbered;
use crate::config::ConfigError;
use warpweft_base::id::BufferId;
use warpweft_plan::model::{Access, Collective, Counts};

impl CallList {
    /// The collective that `call` is, item `item` of the list, with what its lists of buffers name; none for a closure.
    ///
    /// # Errors
    /// [`ConfigError::Together`]: it does not read and write as many buffers as it is to, or has a key that goes with
    /// calls of another kind. [`ConfigError::Declaration`]: no dispatch before it has the name that it follows.
    pub(super) fn collective(
        &self,
        item: usize,
        (call, number): (&CallItem, Option<u32>),
        accesses: &[(BufferId, Access)],
        named: &Named,
    ) -> Result<Option<Collective>, ConfigError> {
        let refused = |key: &str, problem: &str, advice: &str| {
            let key = format!("call.{item}.{key}");
            let origin = self.document.origin_near(&key);
            Err(ConfigError::Together { key, origin, problem: problem.to_owned(), advice: advice.to_owned() })
        };
        let follows = match (&call.back, &call.again) {
            (None, None) => None,
            (Some(name), None) => Some(("back", name)),
            (None, Some(name)) => Some(("again", name)),
            (Some(_), Some(_)) => {
                return refused(
                    "again",
                    "is given beside `back`",
                    "keep the one that says which way rows go",
                );
            }
        };
        if let Some(key) = of_closures(call).filter(|_| call.collective.is_some() || follows.is_some()) {
            let problem = "is given for a collective, which no closure runs";
            let kind = follows.map_or("collective", |(key, _)| key);
            return refused(key, problem, &format!("leave it out, or give it to a call without `{kind}`"));
        }
        if let Some((key, name)) = follows {
            if let Some(other) = of_collectives(call) {
                let problem = format!("is given beside `{key}`");
                return refused(other, &problem, "leave it out: it is that of the dispatch");
            }
            let name = numbered(name, number);
            let dispatch = named.dispatches.get(&name).copied();
            let no_dispatch = || unknown("dispatch", name, named.dispatches.keys());
            let dispatch = dispatch.ok_or_else(no_dispatch).map_err(self.at(format!("call.{item}.{key}")))?;
            let &[(from, Access::Read), (to, Access::Write)] = accesses else {
                let problem = "is given for a call that does not read one buffer and write one";
                return refused(key, problem, "name rows in `reads` and in `writes`, and no counts");
            };
            let way = if key == "back" { Collective::back } else { Collective::again };
            return Ok(Some(way(dispatch, from, to)));
        }
        let Some(kind) = call.collective else {
            let Some(key) = of_collectives(call) else { return Ok(None) };
            let advice = "leave it out, or say by `collective` what these ranks do";
            return refused(key, "is given for a call that is no collective", advice);
        };
        let group = call.among.unwrap_or_default().into();
        let Some(capacity) = call.capacity else {
            if call.filled.is_some() {
                let advice = "leave it out, or say by `capacity` for how many rows a slot has room";
                return refused("filled", "is given without `capacity`", advice);
            }
            let &[(from, Access::Read), (to, Access::Write)] = accesses else {
                let problem = "is given for a call that does not read one buffer and write one";
                let one = "name one in `reads` and another in `writes`";
                let advice = match kind {
                    Given::AllToAll => format!("{one}; rows with counts need a `capacity`"),
                    _ => one.to_owned(),
                };
                return refused("collective", problem, &advice);
            };
            return Ok(Some(Collective::new(kind.into(), from, to).among(group)));
        };
        if kind != Given::AllToAll {
            let advice = "leave it out, or set `collective` to \"all_to_all\"";
            return refused("capacity", "is given for a collective that is no all-to-all", advice);
        }
        let &[(from, Access::Read), (given, Access::Read), (to, Access::Write), (taken, Access::Write)] =
            accesses
        else {
            let problem = "is given for a call that does not read two buffers and write two";
            let advice = "name rows and then their counts, in `reads` and in `writes`";
            return refused("capacity", problem, advice);
        };
        let counts = Counts::new(given, taken, capacity).filled(call.filled.unwrap_or(100));
        Ok(Some(Collective::dispatch(from, to, counts).among(group)))
    }
}

/// The first key of a call that says what a collective is, but for which dispatch it follows.
fn of_collectives(call: &CallItem) -> Option<&'static str> {
    let given = [
        ("collective", call.collective.is_some()),
        ("among", call.among.is_some()),
        ("capacity", call.capacity.is_some()),
        ("filled", call.filled.is_some()),
    ];
    given.into_iter().find(|(_, given)| *given).map(|(key, _)| key)
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
