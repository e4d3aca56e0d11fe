//! Trains one weight on a GPU with kernels of one's own, launched through cudarc beside the session's work.
//!
//! `cargo run --release --example 10_own_kernel_on_a_gpu`
//!
//! Addresses go into kernels as numbers; nothing is copied and nothing changes its owner. cudarc launches on the
//! session's stream, which it borrows, and on a stream of its own, which events join to it. Code, scratch memory,
//! stream and events are made in the closure's factory, so a call only enqueues. The map to learn is the
//! identity: the loss is ½‖Wx − x‖², its gradient (Wx − x) xᵀ.

#![allow(
    unsafe_code,
    reason = "a stream is borrowed and kernels are launched; each block says why it is sound"
)]

#[path = "shared/print.rs"]
mod print;

use std::error::Error;
use std::sync::Arc;

use warpweft::backend::cuda::cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg,
};
use warpweft::backend::cuda::cudarc::nvrtc::compile_ptx;
use warpweft::compute::Seat;
use warpweft::prelude::*;

use print::println;

const SIZE: usize = 32;

/// One block, one thread a row. `size` is the number of rows and columns.
const KERNELS: &str = r#"
extern "C" __global__ void take_errors(const float *w, const float *x, float *errors, int size) {
    int row = threadIdx.x;
    float error = -x[row];
    for (int col = 0; col < size; col++) error += w[row * size + col] * x[col];
    errors[row] = error;
}
extern "C" __global__ void take_gradient(const float *errors, const float *x, float *gradient, int size) {
    int row = threadIdx.x;
    for (int col = 0; col < size; col++) gradient[row * size + col] = errors[row] * x[col];
}
extern "C" __global__ void take_loss(const float *errors, float *loss, int size) {
    if (threadIdx.x > 0) return;
    float sum = 0;
    for (int row = 0; row < size; row++) sum += 0.5f * errors[row] * errors[row];
    *loss = sum;
}
"#;

#[derive(Clone, Copy)]
struct Names {
    w: WeightId,
    x: BufferId,
    loss: BufferId,
}

fn declare() -> Result<(Names, StepProgram), DeclareError> {
    let mut model = Model::builder();
    let w = model.sharded("map", SIZE, SIZE, Format::NVFP4_2D)?;
    let mut program = StepProgram::builder("train", &model.build());
    let x = program.input("x", SIZE, ElementType::F32)?;
    let loss = program.output("loss", 1, ElementType::F32)?;
    let call = program.call("fit", Phase::Backward).uses_dense(w);
    call.gradient(w).reads(x).writes(loss).add()?;
    Ok((Names { w, x, loss }, program.build_training()?))
}

/// What the closure keeps: all that is made but once.
struct Own {
    context: Arc<CudaContext>,
    beside: Arc<CudaStream>,
    errors_are_there: CudaEvent,
    loss_is_there: CudaEvent,
    errors: CudaSlice<f32>,
    take_errors: CudaFunction,
    take_gradient: CudaFunction,
    take_loss: CudaFunction,
}

impl Own {
    fn new(gpu: DeviceOrdinal) -> Result<Self, Box<dyn Error>> {
        // The primary context of the device, which is the session's too.
        let context = CudaContext::new(gpu.number() as usize)?;
        // SAFETY: streams are ordered here by events; cudarc's own would be waited for in a capture.
        unsafe { context.disable_event_tracking() };
        let beside = context.new_stream()?;
        let errors = beside.alloc_zeros::<f32>(SIZE)?;
        beside.synchronize()?;
        let module = context.load_module(compile_ptx(KERNELS)?)?;
        Ok(Self {
            beside,
            errors_are_there: context.new_event(None)?,
            loss_is_there: context.new_event(None)?,
            errors,
            take_errors: module.load_function("take_errors")?,
            take_gradient: module.load_function("take_gradient")?,
            take_loss: module.load_function("take_loss")?,
            context,
        })
    }

    /// Errors and gradient on the session's stream, the loss beside the gradient.
    fn fit(&self, names: Names, of: &ComputeContext<'_, CudaSurface>) -> Result<(), Box<dyn Error>> {
        let weight = of.dense(names.w, Orientation::Rowwise)?.address().number();
        let x = of.read::<f32>(names.x)?.address().number();
        let gradient = of.gradient(names.w)?.address().number();
        let loss = of.write::<f32>(names.loss)?.address().number();
        // SAFETY: the stream is of this device's primary context and outlives the call, and so this handle.
        let lane = unsafe { self.context.wrap_borrowed_stream(of.handles().stream()) };
        let size = i32::try_from(SIZE)?;
        let block = LaunchConfig { grid_dim: (1, 1, 1), block_dim: (SIZE as u32, 1, 1), shared_mem_bytes: 0 };

        let mut launch = lane.launch_builder(&self.take_errors);
        launch.arg(&weight).arg(&x).arg(&self.errors).arg(&size);
        // SAFETY: the arguments are the kernel's, and each address has as many elements as it touches: the first
        // two were lent to this call, the third is ours. Calls run one after the other, so nobody reads it.
        unsafe { launch.launch(block) }?;

        self.errors_are_there.record(&lane)?;
        self.beside.wait(&self.errors_are_there)?;
        let mut launch = self.beside.launch_builder(&self.take_loss);
        launch.arg(&self.errors).arg(&loss).arg(&size);
        // SAFETY: as above; the errors are there, and the lane waits for this below.
        unsafe { launch.launch(block) }?;
        self.loss_is_there.record(&self.beside)?;

        let mut launch = lane.launch_builder(&self.take_gradient);
        launch.arg(&self.errors).arg(&x).arg(&gradient).arg(&size);
        // SAFETY: as above; both kernels only read the errors.
        let launched = unsafe { launch.launch(block) };
        // After a failure too: the session goes on to use the memory that the other stream may still write.
        lane.wait(&self.loss_is_there)?;
        launched?;
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let found = DeviceOrdinal::all();
    let Some(gpu) = found.as_ref().ok().and_then(|all| all.first().copied()) else {
        println!(
            "nothing to compute on: {}",
            found.err().map_or("no GPU".into(), |failure| failure.to_string())
        );
        return Ok(());
    };
    let (names, program) = declare()?;
    let closure = move |seat: Seat<DeviceOrdinal>| {
        let own = Own::new(seat.device).map_err(ComputeError::closure)?;
        Ok(on_cuda(move |_, context| Ok(own.fit(names, context)?)))
    };
    let mut config = Config::default();
    config.optimizer.lr = 0.01;
    let builder = Session::try_builder(config, closure).program(program).initialize(initial::zeros());
    let mut session = builder.start_cuda(vec![gpu]).await?;
    for step in 0..200 {
        let x: [f32; SIZE] = std::array::from_fn(|at| ((step * 7 + at * 5) as f32).sin());
        session.write_input("train", RankId::new(0), "x", &x)?;
        let report = session.step("train").await?;
        assert!(matches!(report.outcome, Outcome::Updated { .. }), "step {step} was skipped: {report:?}");
        if step % 40 == 0 || step == 199 {
            println!("step {:3}  loss {:.5}", step + 1, report.mean_output("loss")?);
        }
    }
    session.close().await?;
    Ok(())
}
