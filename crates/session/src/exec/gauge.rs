//! Exposed communication of one rank's step, from the times of its tasks.
//!
//! Law: it is measured on the rank's own thread, after the step, so that ranks do it in parallel and the
//! caller's thread, which all of them wait for, does not. Nothing is allocated once there is room for a
//! plan's tasks, which is made the first time.

use crate::trace::{Exposure, Interval, exposure};
use warpweft_backend::TaskInterval;
use warpweft_plan::layout::LaneKind;
use warpweft_plan::plan::StepPlan;

/// Measures steps of one rank.
#[derive(Debug, Default)]
pub struct Gauge {
    compute: Vec<Interval>,
    communication: Vec<Interval>,
    waiting: Vec<Interval>,
    scratch: Vec<Interval>,
}

impl Gauge {
    /// Where the time went in a step of `plan` whose tasks ran in these intervals, in the order of its tasks;
    /// nothing where none was measured.
    pub fn measure(&mut self, plan: &StepPlan, intervals: &[TaskInterval]) -> Exposure {
        let Self { compute, communication, waiting, scratch } = self;
        for list in [&mut *compute, communication, waiting, scratch] {
            list.clear();
            // A collective is in two of the lists, and `scratch` takes all.
            list.reserve(2 * intervals.len());
        }
        let ran = || intervals.iter().filter(|task| task.ran());
        let begin = ran().map(|task| task.begin).min().unwrap_or(0);
        let end = ran().map(|task| task.end).max().unwrap_or(0);
        for (task, interval) in plan.tasks.iter().zip(intervals).filter(|(_, interval)| interval.ran()) {
            match plan.lanes[task.lane.index()].kind {
                LaneKind::Compute => compute.push(Interval::new(interval.begin, interval.end)),
                LaneKind::Quantize | LaneKind::Sum | LaneKind::Snapshot => {}
                LaneKind::Communicator(_) => {
                    waiting.push(Interval::new(interval.begin, interval.joined));
                    communication.push(Interval::new(interval.joined, interval.end));
                }
            }
        }
        exposure(Interval::new(begin, end), compute, communication, waiting, scratch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::trace::Nanoseconds;
    use warpweft_format::{Format, Orientation};
    use warpweft_plan::model::{Form, Mesh, Model, Phase, StepProgram};
    use warpweft_plan::plan::Policy;

    /// The clock's origin may be hours before the step.
    #[test]
    fn tasks_that_were_not_timed_do_not_make_a_step_begin_at_the_origin_of_the_clock() {
        let mut model = Model::builder();
        let weight = model.sharded("w", 16, 16, Format::F32).unwrap();
        let mut program = StepProgram::builder("evaluate", &model.build());
        program.call("read", Phase::Forward).uses(weight, Orientation::Rowwise, Form::Planes).add().unwrap();
        let program = program.build_evaluation().unwrap();
        let policy = Policy::from(&Config::default());
        let plan = StepPlan::build(&program, &policy, Mesh::new(2).unwrap()).unwrap();
        let mut intervals = vec![TaskInterval { begin: 1_000, joined: 1_000, end: 1_010 }; plan.tasks.len()];
        let mut gauge = Gauge::default();
        let whole = gauge.measure(&plan, &intervals);
        assert_eq!(whole.step, Nanoseconds::new(10));
        let call = plan.tasks.iter().position(|task| task.lane != plan.compute_lane()).unwrap();
        intervals[call] = TaskInterval::default();
        assert_eq!(gauge.measure(&plan, &intervals).step, Nanoseconds::new(10));
    }
}
