//! Errors of dropped futures: of a step or a command, reported by the next call.
//!
//! Law: what no caller saw is reported once, with what became of what was asked now.

use super::SessionError;
use super::step::diverged::described;
use warpweft_base::id::RankId;

impl SessionError {
    /// What whoever asked meanwhile is to do, after a step that failed so.
    pub(super) const fn advice_to_ask(&self) -> &'static str {
        match self {
            Self::Closure { panicked: Some(_), .. } => "",
            Self::Diverged { .. } => "; if it was an import, ask again",
            _ => ", ask again",
        }
    }

    /// What it says where there is no session any more to ask anything of.
    pub(super) fn of_a_closed_session(&self) -> String {
        match self {
            Self::Closure { step, rank, call, message, panicked } => {
                closure_failed(*step, *rank, call, message, *panicked)
            }
            Self::Diverged { step, rank, value } => described(*step, *rank, value.as_ref()),
            other => other.to_string(),
        }
    }

    /// That of a step whose future was dropped, as it is reported to the next caller.
    pub(super) fn of_dropped_step(self, asks: Asks) -> Self {
        match asks {
            Asks::More => Self::DroppedStep(Box::new(self)),
            Asks::ToClose => Self::LastStep(Box::new(self)),
        }
    }

    /// As it is reported to the next caller, if it is that of an import or a save whose future was dropped.
    pub(super) fn of_dropped_command(self, asks: Asks) -> Self {
        let now = match asks {
            Asks::More => "what was asked now was not done, ask again",
            Asks::ToClose => "the session is closed",
        };
        match self {
            Self::Import { reason, source } => Self::Import {
                reason: format!("{reason} (this is said of the import whose future was dropped; {now})"),
                source,
            },
            Self::Parts { rank, source, .. } => Self::Parts { rank, source, dropped: Some(now) },
            Self::BackgroundSave { what, source, .. } => {
                Self::BackgroundSave { what, source, now: Some(now) }
            }
            other => other,
        }
    }
}

/// The call that reports what the caller of another did not see.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asks {
    /// Anything that is not done then.
    More,
    /// Its end, which comes in any case.
    ToClose,
}

/// Of a closure that failed or panicked in a step.
pub(super) fn closure_failed(
    step: u64,
    rank: RankId,
    call: &str,
    message: &str,
    panicked: Option<RankId>,
) -> String {
    let failed = if panicked == Some(rank) { "panicked" } else { "failed" };
    let later = panicked.filter(|other| *other != rank);
    let later =
        later.map_or_else(String::new, |other| format!("; that of {other} panicked in the same step"));
    format!(
        "step {step}: the closure of {rank} {failed} in call `{call}`: {message}{later}; no weight was changed on any \
         rank"
    )
}
