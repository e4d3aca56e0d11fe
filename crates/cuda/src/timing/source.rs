//! The source of task times of a world: CUPTI, or CUDA events.
//!
//! Law: it is settled once, when a world is made. Where CUPTI is wished for and cannot be had, the reason is
//! kept, and printed wherever the world describes itself. The description, and so every trace, also says what is
//! inferred: events tell ends, and begins follow from them.

use std::fmt;
use std::sync::Arc;

use super::cupti::Profiler;
use crate::device::context::Context;
use crate::failure::CudaFailure;
use warpweft_backend::DeviceTimes;

/// What times all tasks of a world.
#[derive(Debug)]
pub(crate) enum Times {
    /// CUPTI's activities.
    Activities(Arc<Profiler>),
    /// Events that lanes pass.
    Events {
        /// Why it is not CUPTI, if that was tried.
        refusal: Option<CudaFailure>,
    },
}

impl Times {
    /// Settles it as `wished`, for a world with these contexts in this process, one for each of its ranks.
    ///
    /// # Errors
    /// What refused CUPTI, where nothing else will do.
    pub(crate) fn settle(wished: DeviceTimes, contexts: &[Arc<Context>]) -> Result<Self, CudaFailure> {
        Self::choose(wished, || Profiler::start(contexts.to_vec()).map(Self::Activities))
    }

    fn choose(
        wished: DeviceTimes,
        activities: impl FnOnce() -> Result<Self, CudaFailure>,
    ) -> Result<Self, CudaFailure> {
        match wished {
            DeviceTimes::Events => Ok(Self::Events { refusal: None }),
            DeviceTimes::Cupti => activities(),
            DeviceTimes::Auto => {
                Ok(activities().unwrap_or_else(|refusal| Self::Events { refusal: Some(refusal) }))
            }
        }
    }
}

/// What a reader of such times must know.
const INFERRED: &str =
    "a task is taken to begin when what it comes after has ended and the host has begun to enqueue it";

impl fmt::Display for Times {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Activities(_) => formatter.write_str("tasks timed by CUPTI"),
            Self::Events { refusal } => {
                formatter.write_str("tasks timed by events")?;
                if let Some(refusal) = refusal {
                    write!(formatter, " because {refusal}")?;
                }
                write!(formatter, " ({INFERRED})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused() -> Result<Times, CudaFailure> {
        Err(CudaFailure::Refused("another session of this process has CUPTI".to_owned()))
    }

    #[test]
    fn where_cupti_is_not_to_be_had_events_serve_and_the_reason_is_told() {
        let times = Times::choose(DeviceTimes::Auto, refused).unwrap();
        let told = "tasks timed by events because another session of this process has CUPTI";
        assert_eq!(times.to_string(), format!("{told} ({INFERRED})"));
    }

    #[test]
    fn who_asks_for_cupti_and_nothing_else_is_told_that_it_cannot_be() {
        assert_eq!(Times::choose(DeviceTimes::Cupti, refused).unwrap_err(), refused().unwrap_err());
    }

    #[test]
    fn who_asks_for_events_does_not_touch_cupti() {
        let times = Times::choose(DeviceTimes::Events, || panic!("requested CUPTI")).unwrap();
        assert_eq!(times.to_string(), format!("tasks timed by events ({INFERRED})"));
    }
}
