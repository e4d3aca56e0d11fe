//! The forecast of a plan: its expected time, and a bound that no schedule could beat.
//!
//! Law: a forecast is a function of a finished plan and of costs. **Without delays its times are those of a
//! simulated step**, to the nanosecond but for dynamic calls, at which the simulator's lanes meet, and for tasks
//! that wait for the host, which issues in T here and as actors do there. Its bound of the step holds for every
//! schedule of the plan's tasks; that of exposed communication does where nothing contends.
//!
//! | file | idea |
//! |---|---|
//! | `timing` | when every task begins and ends |
//! | `bound` | what no schedule could beat |
//! | `slack` | by how much every gather is ready before it is needed |

mod bound;
mod slack;
mod timing;

pub use slack::Slack;
pub use timing::Span;
pub(super) use timing::{Timed, spans};

use super::{Costs, StepPlan};
use crate::cluster::{Reach, Work};
use crate::layout::LaneKind;

/// The expected course of one step. All times are nanoseconds from the step's beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// When every task begins and ends, in the order of the plan's tasks.
    pub spans: Vec<Span>,
    /// When the last one ends.
    pub step: u64,
    /// Time in which the compute lane runs something.
    pub compute: u64,
    /// Time in which a communicator runs something and the compute lane nothing.
    pub exposed: u64,
    /// That of it in which a collective runs that takes links between nodes.
    pub exposed_between: u64,
    /// The least exposed communication of any schedule without contention but of collectives for a link: the
    /// maximum over prefixes of the step of communication that is needed so far less the compute before it. With
    /// contention it is no bound, and [`Forecast::exposed`] may be below it: calls that run slower beside
    /// collectives hide more.
    pub exposed_bound: u64,
    /// The least time of any schedule of these tasks, with any memory. Contention only adds to it.
    pub step_bound: u64,
    /// Every gather, in issue order.
    pub gathers: Vec<Slack>,
}

impl StepPlan {
    /// What one step of this plan is expected to take.
    #[must_use]
    pub fn forecast(&self, costs: &Costs) -> Forecast {
        let nanoseconds = self.durations(costs);
        let timed: Vec<Timed<'_>> = self
            .tasks
            .iter()
            .zip(&nanoseconds)
            .map(|(task, time)| Timed {
                lane: task.lane,
                nanoseconds: *time,
                reach: costs.reach(&task.op),
                waits: &task.waits,
            })
            .collect();
        let spans = spans(&timed, &self.lanes, costs);
        let bounds = bound::bounds(self, &nanoseconds, costs);
        Forecast {
            step: spans.iter().map(|span| span.end).max().unwrap_or(0),
            compute: timing::busy(self, &spans, |kind| kind == LaneKind::Compute),
            exposed: timing::exposed(self, &spans, |_| true),
            exposed_between: timing::exposed(self, &spans, |op| {
                costs.reach(op).is_some_and(Reach::is_between)
            }),
            exposed_bound: bounds.exposed,
            step_bound: bounds.step,
            gathers: slack::slacks(self, &spans),
            spans,
        }
    }

    /// Nanoseconds of every task by itself.
    fn durations(&self, costs: &Costs) -> Vec<f64> {
        let work = Work { calls: &self.calls, slots: &self.arena.slots, weights: &self.weights };
        self.tasks.iter().map(|task| costs.of(&work, &task.op, &task.subject, task.wire_bytes)).collect()
    }
}
