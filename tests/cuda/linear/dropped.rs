//! RH-1: operands of a captured step outlive the closure's own handles to them.

use half::bf16;
use warpweft_base::id::RankId;
use warpweft_cuda::CudaFailure;
use warpweft_cuda::linear::{Device, DeviceBuffer, Elementwise};
use warpweft_cuda::{CudaSurface, DeviceOrdinal};
use warpweft_format::ElementType;
use warpweft_plan::compute::{ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Model, Phase, StepProgram};
use warpweft_session::config::{Capture, Config};
use warpweft_session::session::{Session, block_on};

use crate::gpu::Gpu;

const ELEMENTS: usize = 1 << 20;
const RANK: RankId = RankId::new(0);

/// What the closure of a rank holds: kernels, and values that it shows through GELU.
struct Own {
    elementwise: Elementwise,
    values: Vec<DeviceBuffer<bf16>>,
}

impl Own {
    /// All from a device of its own, so that dropping it drops everything.
    fn new(gpu: DeviceOrdinal, buffers: usize) -> Result<Self, CudaFailure> {
        let device = Device::open(gpu)?;
        let values = (0..buffers).map(|_| device.buffer(ELEMENTS)).collect::<Result<_, _>>()?;
        Ok(Self { elementwise: Elementwise::new(&device)?, values })
    }
}

/// A program of one call, with one output.
fn program(name: &str) -> StepProgram {
    let mut program = StepProgram::builder(name, &Model::builder().build());
    let shown = program.output("shown", ELEMENTS, ElementType::Bf16).unwrap();
    program.call(name, Phase::Forward).writes(shown).add().unwrap();
    program.build_evaluation().unwrap()
}

/// The first program is captured; the second drops all that the closure had, and fills as much memory and
/// more with other values.
#[test]
fn a_captured_step_shows_what_it_was_captured_with_after_its_closure_dropped_that() {
    let Some(_gpu) = Gpu::open("a closure that drops what a capture uses") else { return };
    let gpu = DeviceOrdinal::all().unwrap()[0];
    let closures = move |_: RankId| {
        let mut own: Option<Own> = None;
        move |call: &Call, context: &ComputeContext<'_, CudaSurface>| -> Result<(), ComputeError> {
            let (buffers, value) = if call.name == "replace" { (8, 2.0) } else { (1, 1.0) };
            let shown = context.write::<bf16>(context.buffer_named("shown")?)?;
            let handles = context.handles();
            if own.as_ref().is_none_or(|own| own.values.len() != buffers) {
                // Before there is anything new.
                drop(own.take());
                let mut new = Own::new(gpu, buffers)?;
                for values in &mut new.values {
                    new.elementwise.fill(handles, value, values.write())?;
                }
                own = Some(new);
            }
            let Some(Own { elementwise, values }) = &own else { return Ok(()) };
            Ok(elementwise.gelu(handles, values[0].read(), shown)?)
        }
    };
    let config = Config { capture: Capture::Step, ..Config::default() };
    block_on(async {
        let builder = Session::builder(config, closures).program(program("show")).program(program("replace"));
        let mut session = builder.start_cuda(vec![gpu]).await.unwrap();
        let mut shown = Vec::new();
        for (name, segments) in [("show", 0), ("show", 1), ("replace", 0), ("show", 1), ("show", 1)] {
            let report = session.step(name).await.unwrap();
            assert_eq!(report.segments, segments, "{name}");
            shown.push(report.output::<bf16>(RANK, "shown").unwrap());
        }
        let of = |step: usize| shown[step][0].to_f32();
        assert!((of(0) - 0.841).abs() < 0.01 && (of(2) - 1.954).abs() < 0.01, "{} {}", of(0), of(2));
        for step in [1, 3, 4] {
            assert!(shown[step] == shown[0], "step {step} shows {}", of(step));
        }
        session.close().await.unwrap();
    });
}
