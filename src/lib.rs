//! **warpweft** trains models whose weights are sharded over ranks, as in FSDP and ZeRO-3, and travel in 4 or 8 bits.
//!
//! It plans one training step, proves the plan safe before anything runs, and drives it so that gathers, transposes
//! and reductions run while your closures compute.
//!
//! > The planner decides, the registers pace, the actors enqueue, the backend obeys, the trace shows.
//!
//! # The smallest trainer
//!
//! Declare a model and a step, plug in a closure, take steps. This one learns the identity, on two ranks of this
//! machine's CPU:
//!
//! ```
//! use warpweft::prelude::*;
//!
//! const SIZE: usize = 32;
//!
//! #[tokio::main(flavor = "current_thread")] // any runtime will do: the library starts none
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     // One weight. Its rows are split over the ranks; it travels as NVFP4, and its f32 master learns.
//!     let mut model = Model::builder();
//!     let w = model.sharded("map", SIZE, SIZE, Format::NVFP4_2D)?;
//!
//!     // The step: one call, with everything that it reads and writes.
//!     let mut program = StepProgram::builder("train", &model.build());
//!     let x = program.input("x", SIZE, ElementType::F32)?;
//!     let loss = program.output("loss", 1, ElementType::F32)?;
//!     program.call("fit", Phase::Backward).uses_dense(w).gradient(w).reads(x).writes(loss).add()?;
//!
//!     // What the call does: the loss is ½‖Wx − x‖², its gradient (Wx − x) xᵀ.
//!     let fit = on_cpu(|_, context| {
//!         let (weight, x) = (context.dense_named("map")?, context.read_named::<f32>("x")?);
//!         let (mut gradient, mut sum) = (context.gradient_named("map")?, 0.0);
//!         for row in 0..SIZE {
//!             let y: f32 = (0..SIZE).map(|col| weight[row * SIZE + col] * x[col]).sum();
//!             let error = y - x[row];
//!             (0..SIZE).for_each(|col| gradient[row * SIZE + col] = error * x[col]);
//!             sum += 0.5 * error * error;
//!         }
//!         context.write_named::<f32>("loss")?[0] = sum;
//!         Ok(())
//!     });
//!
//!     let config = Config::default(); // or Config::load: a TOML file and the environment
//!     let builder = Session::builder(config, move |_rank| fit).program(program.build_training()?);
//!     let mut session = builder.initialize(initial::normal(1, 0.02)).start_cpu(2).await?;
//!     let mut losses = Vec::new();
//!     for step in 0..200 {
//!         session.set_learning_rate(0.01 * (1.0 - step as f32 / 200.0))?;
//!         for rank in 0..2 {
//!             let x: [f32; SIZE] = std::array::from_fn(|at| ((step * 7 + rank * 13 + at * 5) as f32).sin());
//!             session.write_input("train", RankId::at(rank), "x", &x)?;
//!         }
//!         let report = session.step("train").await?; // an error once 8 in a row have been skipped
//!         if let Outcome::Skipped { norm, .. } = report.outcome {
//!             println!("step {step} changed no weight, its gradient's norm is {norm}: {:?}", report.non_finite);
//!         }
//!         losses.push(report.mean_output("loss")?);
//!     }
//!     println!("loss {} -> {}", losses[0], losses[199]);
//!     assert!(losses[199] < 0.01 * losses[0]);
//!     session.close().await?;
//!     Ok(())
//! }
//! ```
//!
//! On GPUs you write the closure for device memory: inside `on_cuda` its
//! [`ComputeContext`](compute::ComputeContext) gives it addresses and the stream to work on, and
//! `start_cuda(devices)` starts the ranks. The repository's `docs/training-loop.md` goes on from here:
//! schedules, clipping, evaluation. Its `docs/index-of-terms.md` leads from each term of the field to a page.
//!
//! # Features
//!
//! | feature | by default | what it adds | dependencies of its own |
//! |---|---|---|---|
//! | `cuda` | no | `backend::cuda`, `linear`, `start_cuda`. No toolkit is needed to build, no GPU to start | cudarc |
//!
//! A trainer on GPUs needs this library with the feature `cuda`, and a runtime:
//!
//! ```toml
//! warpweft = { path = "../warpweft", features = ["cuda"] }
//! tokio = { version = "1", features = ["macros", "rt"] } # or another runtime
//! ```
//!
//! # Modules
//!
//! [`prelude`] exports what a typical trainer needs. Each other module lists what a program must name of one subject:
//!
//! - [`id`], [`mod@format`]: indices of ranks, weights and buffers; formats of weights, element types of buffers
//! - [`model`], [`config`]: the declaration of a model and its steps; the configuration
//! - [`compute`], [`backend`]: the user's traits; the memory that they are lent, on the CPU and on GPUs
//! - `linear` (feature `cuda`): matrix products for closures on GPUs
//! - [`session`], [`checkpoint`]: the user's handle; weights and the state of an optimizer, in memory and in files
//! - [`plan`], [`cluster`]: the tasks of a step; a machine described by its numbers
//! - [`rendezvous`], [`trace`]: how processes meet; traces and pictures of steps
//!
//! What a program only receives and reads has no name here. It is documented in the crate that it stands in, to which
//! its links lead: `warpweft-session`, `-backend`, `-plan`, `-format`, `-base` and `-cuda`. No version number promises
//! anything of their paths; fields and methods of what a function here gives are promised with that function.
//!
//! It is not a tensor library and no model: a trainer brings its own products, in closures. The program `warpweft`,
//! which quantizes checkpoints, plans and simulates, is a crate of its own, `warpweft-cli`.
//!
//! `ARCHITECTURE.md` states the laws.

pub mod prelude;

/// Indices of ranks, weights, buffers and groups.
pub mod id {
    #[doc(inline)]
    pub use warpweft_base::id::{BufferId, GroupId, RankId, WeightId};
}

/// Formats of weights, element types of buffers.
pub mod format {
    #[doc(inline)]
    pub use warpweft_format::{ElementType, Format, FormatError, Orientation, Shape, Via};
}

/// Declarations of a user: weights, buffers, calls, step programs.
pub mod model {
    #[doc(inline)]
    pub use warpweft_plan::model::{
        Call, CallBuilder, Collective, CollectiveKind, CostHint, Counts, DeclareError, Form, Group,
        Hyperparameters, Layer, LayerStack, Math, Mesh, Model, ModelBuilder, NonNegative, ParameterGroup,
        Phase, Placement, ProgramBuilder, Reuse, StepProgram, TensorParallel,
    };
}

/// The user's traits, and what a session lends to them.
pub mod compute {
    #[doc(inline)]
    pub use warpweft_plan::compute::{
        Compute, ComputeContext, ComputeError, LentSlice, Optimizer, PlanesView, PrepareContext, Seat,
        Surface, TransformContext, UpdateContext,
    };
}

/// Backends: the devices of ranks. [`session::SessionBuilder`] starts them; here is the memory that their closures are
/// lent.
pub mod backend {
    #[doc(inline)]
    pub use warpweft_backend::BackendError;

    /// Threads of this machine's CPU.
    pub mod cpu {
        #[doc(inline)]
        pub use warpweft_backend::cpu::{CpuSurface, ReadSlice, WriteSlice, on_cpu};
    }

    /// GPUs: addresses, and the stream to work on.
    #[cfg(feature = "cuda")]
    pub mod cuda {
        /// The cudarc of this library. Who imports it from here has the same types.
        #[doc(no_inline)]
        pub use warpweft_cuda::cudarc;
        #[doc(inline)]
        pub use warpweft_cuda::{
            CudaFailure, CudaHandles, CudaSurface, DeviceOrdinal, DeviceSlice, DeviceSliceMut, on_cuda,
        };
    }
}

/// Matrix products for closures on GPUs.
#[cfg(feature = "cuda")]
pub mod linear {
    #[doc(inline)]
    pub use warpweft_cuda::linear::{
        Activations, BackwardOperands, Device, DeviceBuffer, Elementwise, Input, Linear, LinearSpec,
        NewtonSchulz, Output, Recipe, Weight,
    };
}

/// Configuration, from a TOML file and the environment.
pub mod config {
    #[doc(inline)]
    pub use warpweft_session::config::{
        Backward, ByteSize, CallList, Capture, Columnwise, Config, ConfigError, Declared, Masters, Moments,
        OptimizerConfig, Prefetch, Scaling, Transport, WeightRule,
    };
}

/// The user's handle on ranks that train; plans and steps in virtual time without them.
pub mod session {
    #[doc(inline)]
    pub use warpweft_session::session::{
        Outcome, Session, SessionBuilder, SessionError, StepReport, block_on, plan_program, simulate_program,
    };

    /// Initial values of masters.
    pub mod initial {
        #[doc(inline)]
        pub use warpweft_session::session::initial::{MasterRows, normal, zeros};
    }
}

/// Weights and the state of an optimizer, in memory and in files.
pub mod checkpoint {
    #[doc(inline)]
    pub use warpweft_session::checkpoint::{
        Checkpoint, CheckpointError, CheckpointStore, FileStore, PartFiles, PretrainedFiles,
    };

    /// Models that inference engines load.
    pub mod engines {
        #[doc(inline)]
        pub use warpweft_session::checkpoint::engines::{Dialect, EngineModel, EngineOptions, NameMap};
    }
}

/// Plans: the tasks of a step, proven safe before it runs.
pub mod plan {
    #[doc(inline)]
    pub use warpweft_plan::plan::{PlanError, StepPlan};
}

/// A machine described by its numbers.
pub mod cluster {
    #[doc(inline)]
    pub use warpweft_session::cluster::{Cluster, named};
}

/// The rendezvous of processes on the host.
pub mod rendezvous {
    #[doc(inline)]
    pub use warpweft_backend::rendezvous::{ProcessEnvironment, Rendezvous, RendezvousError, Secret};
}

/// Traces: where the time of a step went.
pub mod trace {
    #[doc(inline)]
    pub use warpweft_session::trace::{
        LineChart, Reference, Series, Summary, TimelinePicture, TraceError, read_trace,
    };
}

/// The attribute by which a [`checkpoint::CheckpointStore`] is written: that of the crate `async-trait`, which a
/// user then need not name.
#[doc(no_inline)]
pub use async_trait::async_trait;
/// The crate whose `Pod` bounds what is lent ([`compute::Surface`]); a user need not match its version.
#[doc(no_inline)]
pub use bytemuck;
/// The type of bf16 values that closures are lent ([`compute::ComputeContext::dense_bf16`]): that of the crate
/// `half`, whose version a user need not match. `f16` is for closures that compute in it.
#[doc(no_inline)]
pub use half::{bf16, f16};

/// Pages whose programs are compiled and run by `cargo test --doc`.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    mod readme {}
    #[doc = include_str!("../docs/three-layer-mlp.md")]
    mod three_layer_mlp {}
    #[doc = include_str!("../docs/training-loop.md")]
    mod training_loop {}
    #[doc = include_str!("../docs/programs.md")]
    mod programs {}
    #[doc = include_str!("../docs/gradient-accumulation.md")]
    mod gradient_accumulation {}
    #[doc = include_str!("../docs/custom-optimizers.md")]
    mod custom_optimizers {}
    #[doc = include_str!("../docs/fine-tuning-with-lora.md")]
    mod fine_tuning_with_lora {}
    #[doc = include_str!("../docs/sharded-checkpoints.md")]
    mod sharded_checkpoints {}
    #[doc = include_str!("../docs/serving.md")]
    mod serving {}
    #[doc = include_str!("../docs/tensor-parallelism.md")]
    mod tensor_parallelism {}
    #[doc = include_str!("../docs/mixture-of-experts.md")]
    mod mixture_of_experts {}
    #[doc = include_str!("../docs/meshes.md")]
    mod meshes {}
    #[doc = include_str!("../docs/formats.md")]
    mod formats {}
    #[doc = include_str!("../docs/simulating.md")]
    mod simulating {}
    #[doc = include_str!("../docs/observability.md")]
    mod observability {}
    #[cfg(feature = "cuda")]
    #[doc = include_str!("../docs/interop.md")]
    mod interop {}
}
