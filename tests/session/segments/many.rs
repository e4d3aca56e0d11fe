//! More segments than a lane's queue holds when it is opened.

use std::sync::{Arc, Condvar, Mutex};

use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::{BufferId, RankId};
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Form, Model, Phase, StepProgram};
use warpweft_session::config::Capture;
use warpweft_session::session::{Session, initial};
use warpweft_testing::meddler::hooked;
use warpweft_testing::trainer::within_a_minute;
use warpweft_testing::wrapped::Moment;

use super::config;

const CALLS: usize = 80;

/// What the host has done: steps begun, and how many of them were wholly on their lanes.
#[derive(Clone, Default)]
struct Host(Arc<(Mutex<[usize; 2]>, Condvar)>);

impl Host {
    fn did(&self, moment: Moment) {
        let mut steps = self.0.0.lock().unwrap();
        match moment {
            Moment::Step => steps[0] += 1,
            Moment::Synchronize => steps[1] = steps[0],
            _ => {}
        }
        self.0.1.notify_all();
    }

    fn wait_until_enqueued(&self, step: usize) {
        drop(self.0.1.wait_while(self.0.0.lock().unwrap(), |steps| steps[1] < step).unwrap());
    }
}

/// Adds one to a number, so many calls one after the other, all of them dynamic. Each uses another weight than
/// the one before, so what dequantizes it lies between them, in a segment of its own.
fn chain() -> (Model, StepProgram) {
    let mut model = Model::builder();
    let weights = ["even", "odd"].map(|name| model.sharded(name, 16, 16, Format::NVFP4_2D).unwrap());
    let model = model.build();
    let mut program = StepProgram::builder("count", &model);
    let numbers: Vec<BufferId> =
        (0..CALLS).map(|at| program.activation(&format!("n{at}"), 1).unwrap()).collect();
    let count = program.output("count", 1, ElementType::F32).unwrap();
    for at in 0..CALLS {
        let call = program.call(&format!("c{at}"), Phase::Forward).dynamic();
        let call = call.uses(weights[at % 2], Orientation::Rowwise, Form::Dense);
        let call = if at > 0 { call.reads(numbers[at - 1]) } else { call };
        call.writes(if at + 1 < CALLS { numbers[at] } else { count }).add().unwrap();
    }
    (model, program.build_evaluation().unwrap())
}

/// BK-2. The lane begins when all segments of the step wait for it, so that each needs a place.
#[test]
fn a_step_of_more_segments_than_a_queue_begins_with_is_replayed() {
    within_a_minute(async {
        let (_, program) = chain();
        let host = Host::default();
        let (seen, held) = (host.clone(), host);
        let closures = move |_: RankId| {
            let (host, mut step) = (held.clone(), 0);
            move |call: &Call, context: &ComputeContext<'_, CpuSurface>| {
                let of = |role: usize| call.buffers[role].buffer;
                if call.buffers.len() == 1 {
                    step += 1;
                    // The prologue is the first step of all.
                    host.wait_until_enqueued(step + 1);
                    context.write::<f32>(of(0))?[0] = 1.0;
                    return Ok::<_, ComputeError>(());
                }
                context.write::<f32>(of(1))?[0] = context.read::<f32>(of(0))?[0] + 1.0;
                Ok(())
            }
        };
        let ranks = hooked(1, move |_, moment| {
            seen.did(moment);
            Ok(())
        });
        let builder = Session::builder(config(1, Capture::Segments), closures).program(program);
        let mut session = builder.initialize(initial::zeros()).start(ranks).await.unwrap();
        for step in 0..3 {
            let report = session.step("count").await.unwrap();
            assert_eq!(report.mean_output("count").unwrap(), CALLS as f32);
            assert!(
                if step == 0 { report.segments == 0 } else { report.segments > 64 },
                "{}",
                report.segments
            );
            assert_eq!(report.not_captured, []);
        }
    });
}
