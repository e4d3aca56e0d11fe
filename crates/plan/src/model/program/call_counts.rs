//! Checks of rows that come with counts, when a call is declared.
//!
//! Law: whose counts they are follows from program order. Nobody reads rows without their counts, and nobody goes by
//! counts that another call has written since.

use super::call::Call;
use crate::model::{BufferSpec, Collective, CollectiveKind, Counts, DeclareError, Lifetime, Role};
use warpweft_base::id::BufferId;
use warpweft_format::ElementType;

/// The last of these calls that writes the buffer, and its place.
fn writer(calls: &[Call], buffer: BufferId) -> Option<(usize, &Call)> {
    let writes =
        |call: &&Call| call.buffers.iter().any(|access| access.buffer == buffer && access.access.writes());
    calls.iter().enumerate().rev().find(|(_, call)| writes(call))
}

/// Are the counts of a collective those of its rows? Its buffers exist and have one element type.
pub(super) fn check_counts(
    call: &str,
    collective: &Collective,
    calls: &[Call],
    buffers: &[BufferSpec],
) -> Result<(), DeclareError> {
    let Some(counts) = collective.counts else { return Ok(()) };
    let wrong =
        |problem: String, advice| Err(DeclareError::Counts { call: call.to_owned(), problem, advice });
    if collective.kind != CollectiveKind::AllToAll {
        let problem = format!("is a collective ({}) with counts", collective.kind);
        return wrong(problem, "only rows of an all-to-all have them: declare it by `Collective::dispatch`");
    }
    if counts.capacity == 0 || !(1..=100).contains(&counts.fill) {
        let problem =
            format!("has a capacity of {} rows, of which {} % are filled", counts.capacity, counts.fill);
        return wrong(problem, "declare a capacity of 1 or more and a fill of 1 to 100");
    }
    for buffer in [counts.given, counts.taken].map(|buffer| &buffers[buffer.index()]) {
        let is_of_the_step = buffer.role == Role::Internal && buffer.lifetime == Lifetime::Step;
        if buffer.element != ElementType::U32 || !is_of_the_step {
            let problem = format!("counts rows in buffer `{}`", buffer.name);
            return wrong(problem, "declare counts as u32, one for each slot, as an activation of the step");
        }
    }
    let to = &buffers[collective.to.index()];
    if to.role != Role::Internal || to.lifetime != Lifetime::Step {
        let problem = format!("leaves rows in buffer `{}`, which outlives their counts", to.name);
        return wrong(problem, "declare it as an activation of the step");
    }
    if counts.known {
        return check_follower(call, (collective, counts), calls, buffers);
    }
    match writer(calls, counts.given) {
        Some((_, writer)) if writer.collective.is_none() => Ok(()),
        _ => {
            let problem = format!("counts rows by `{}`", buffers[counts.given.index()].name);
            wrong(
                problem,
                "let a closure before it write these counts, so that they are compared with the capacity",
            )
        }
    }
}

/// Does it go by the counts of an earlier dispatch?
fn check_follower(
    call: &str,
    (collective, counts): (&Collective, Counts),
    calls: &[Call],
    buffers: &[BufferSpec],
) -> Result<(), DeclareError> {
    let is_followed = |earlier: &Call| {
        earlier.collective.is_some_and(|dispatch| {
            dispatch.group == collective.group && dispatch.counts.is_some_and(|other| counts.follow(other))
        })
    };
    let dispatch = calls.iter().rposition(is_followed);
    let stay = |buffer| writer(calls, buffer).is_none_or(|(place, _)| Some(place) <= dispatch);
    if dispatch.is_some() && stay(counts.given) && stay(counts.taken) {
        return Ok(());
    }
    let [given, taken] = [counts.given, counts.taken].map(|buffer| &buffers[buffer.index()].name);
    Err(DeclareError::Counts {
        call: call.to_owned(),
        problem: format!(
            "goes by counts `{given}` and `{taken}`, which no dispatch before it has brought and left so"
        ),
        advice: "make it of that dispatch by `back` or `again`, and keep both counts until then",
    })
}

/// Counts that a dispatch goes by are its own for the step: they are compared with its capacity as soon as they are
/// written, whichever call writes them.
pub(super) fn check_writers_of_counts(
    call: &Call,
    calls: &[Call],
    buffers: &[BufferSpec],
) -> Result<(), DeclareError> {
    for access in call.buffers.iter().filter(|access| access.access.writes()) {
        let goes_by = |earlier: &&Call| {
            let counts = earlier.collective.and_then(|collective| collective.counts);
            counts.is_some_and(|counts| !counts.known && counts.given == access.buffer)
        };
        if let Some(dispatch) = calls.iter().find(goes_by) {
            let counts = &buffers[access.buffer.index()].name;
            return Err(DeclareError::Counts {
                call: call.name.clone(),
                problem: format!(
                    "writes counts `{counts}`, by which dispatch `{}` went before it",
                    dispatch.name
                ),
                advice: "declare counts of its own for each dispatch",
            });
        }
    }
    Ok(())
}

/// Whoever reads rows that came with counts reads these too; a collective goes by them.
pub(super) fn check_readers_of_rows(
    call: &Call,
    calls: &[Call],
    buffers: &[BufferSpec],
) -> Result<(), DeclareError> {
    for access in call.buffers.iter().filter(|access| access.access.reads()) {
        let brought = writer(calls, access.buffer);
        let Some((place, counts)) = brought
            .and_then(|(place, by)| Some((place, by.collective?)))
            .filter(|(_, by)| by.to == access.buffer)
            .and_then(|(place, by)| Some((place, by.counts?)))
        else {
            continue;
        };
        let reads = match call.collective {
            Some(collective) => collective.counts.is_some_and(|own| own.given == counts.taken),
            None => call.buffers.iter().any(|other| other.buffer == counts.taken && other.access.reads()),
        };
        if !reads || writer(calls, counts.taken).is_some_and(|(last, _)| last > place) {
            let [rows, count] = [access.buffer, counts.taken].map(|buffer| &buffers[buffer.index()].name);
            return Err(DeclareError::Counts {
                call: call.name.clone(),
                problem: format!("reads rows `{rows}` without their counts `{count}`"),
                advice: "rows after the count are undefined: let it read both, and write neither in between",
            });
        }
    }
    Ok(())
}
