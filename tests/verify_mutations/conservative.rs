//! Why the verifier may refuse what is harmless.
//!
//! Law: a refusal of a harmless plan is of one of these classes, or it is a false alarm and the suite fails. No plan that the
//! builder makes is of any of them.

use warpweft::plan::{StepPlan, VerifyError};

use crate::books::drop_task;
use crate::harm::Original;

/// A kind of refusal that no harm stands behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    /// A gather runs further ahead than its prefetch depth.
    AheadOfRelease,
    /// The collectives of a communicator are not numbered 0, 1, 2, … in T.
    Numbers,
    /// A fence points forward in T; lanes and fences still leave an order.
    ForwardFence,
    /// Two tasks signal one event, or a fence names a task that signals none; other fences carry the order.
    Events,
    /// An op on a lane for other kinds of ops.
    Lane,
    /// A task does what nobody reads.
    DeadWork,
    /// A sum is begun again with what it holds.
    BegunAgain,
    /// Content lies in the right bytes, but was put there through another slot, or an earlier tenant left the same.
    OtherSlot,
    /// Content in a slot that was declared for another content of the same size.
    OtherContent,
    /// A tensor scale that the format does not read.
    UnusedScale,
}

impl Class {
    /// The class of a refusal of a harmless plan; `None` for a false alarm.
    pub(crate) fn of(original: &Original, edited: &StepPlan, error: &VerifyError) -> Option<Self> {
        let text = error.to_string();
        let says = |words: &str| text.contains(words);
        match error {
            VerifyError::Order { .. } if says("before its release") => Some(Self::AheadOfRelease),
            VerifyError::Order { .. } if says("is numbered as") => Some(Self::Numbers),
            VerifyError::Order { .. } if says("does not stand before it in T") => Some(Self::ForwardFence),
            VerifyError::Order { .. } if says("signals") => Some(Self::Events),
            VerifyError::Order { .. } if says(" lane") => Some(Self::Lane),
            _ if is_dead(original, edited, &text) => Some(Self::DeadWork),
            VerifyError::Accumulation { .. } if says("begins the sum") => Some(Self::BegunAgain),
            VerifyError::Use { .. } if says("tensor scale") => Some(Self::UnusedScale),
            VerifyError::Use { .. }
            | VerifyError::Gradient { .. }
            | VerifyError::Program { .. }
            | VerifyError::Edge { .. }
                if says("holds") || says("ends with") || says("ends without") =>
            {
                Some(Self::OtherSlot)
            }
            VerifyError::Bytes { .. } if says("declared for other content") => Some(Self::OtherContent),
            _ => None,
        }
    }
}

/// Would nobody miss the task that was refused?
fn is_dead(original: &Original, edited: &StepPlan, text: &str) -> bool {
    let number = text.split("task ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
    number.filter(|number| *number < edited.tasks.len()).is_some_and(|number: usize| {
        let mut without = edited.clone();
        drop_task(&mut without, number);
        original.harm(&without).is_none()
    })
}
