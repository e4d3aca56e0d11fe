//! A model as a list of blocks, each with a forward and a backward: the buffers between them are declared here.
//!
//! Law: this is sugar over `StepProgram`, nothing more. A block is one call forward and one backward, so all its
//! weights are gathered together, and `prefetch.depth` counts blocks. A block is at most one layer: what it gathers is
//! resident as a whole. The last block computes the loss and its own gradients in one call. Nothing here computes, and
//! nothing knows where blocks compute: on the CPU, or on a GPU by kernels of the user's own.
//!
//! ```
//! use warpweft::prelude::*;
//! use warpweft::session::block_on;
//! use warpweft_blocks::{At, Backward, Block, Blocks, Flow, Loss, Passes};
//!
//! const SIZE: usize = 16;
//!
//! /// Two maps, y = W₂ (W₁ x), that learn the identity; the loss is ½‖y − target‖².
//! struct Maps;
//!
//! fn product(w: &[f32], x: &[f32]) -> Vec<f32> {
//!     w.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
//! }
//!
//! /// dW = dy xᵀ, and where a block before wants it, dx = Wᵀ dy.
//! fn back(at: &At<'_, CpuSurface>, dy: &[f32], x: &[f32], dx: Option<BufferId>) -> Result<(), ComputeError> {
//!     for (row, dy) in at.context.gradient(at.weights[0])?.chunks_mut(x.len()).zip(dy) {
//!         row.iter_mut().zip(x).for_each(|(dw, x)| *dw = dy * x);
//!     }
//!     let Some(dx) = dx else { return Ok(()) };
//!     let transposed = at.context.dense(at.weights[0], Orientation::Columnwise)?;
//!     at.context.write::<f32>(dx)?.copy_from_slice(&product(&transposed, dy));
//!     Ok(())
//! }
//!
//! impl Passes<CpuSurface> for Maps {
//!     fn forward(&mut self, at: &At<'_, CpuSurface>, input: BufferId, output: BufferId) -> Result<(), ComputeError> {
//!         let (w, x) = (at.context.dense(at.weights[0], Orientation::Rowwise)?, at.context.read::<f32>(input)?);
//!         at.context.write::<f32>(output)?.copy_from_slice(&product(&w, &x));
//!         Ok(())
//!     }
//!
//!     fn loss(&mut self, at: &At<'_, CpuSurface>, loss: &Loss) -> Result<(), ComputeError> {
//!         let (w, x) = (at.context.dense(at.weights[0], Orientation::Rowwise)?, at.context.read::<f32>(loss.input)?);
//!         let target = at.context.read::<f32>(loss.targets)?;
//!         let dy: Vec<f32> = product(&w, &x).iter().zip(target.iter()).map(|(y, target)| y - target).collect();
//!         at.context.write::<f32>(loss.outputs[0])?[0] = 0.5 * dy.iter().map(|dy| dy * dy).sum::<f32>();
//!         if at.trains { back(at, &dy, &x, loss.input_gradient) } else { Ok(()) }
//!     }
//!
//!     fn backward(&mut self, at: &At<'_, CpuSurface>, backward: &Backward) -> Result<(), ComputeError> {
//!         let input = backward.input.ok_or_else(|| ComputeError::closure("nothing is kept here"))?;
//!         let x = at.context.read::<f32>(input)?;
//!         let dy = at.context.read::<f32>(backward.output_gradient)?;
//!         back(at, &dy, &x, backward.input_gradient)
//!     }
//! }
//!
//! let mut model = Model::builder();
//! let first = model.sharded("first", SIZE, SIZE, Format::Bf16)?;
//! let second = model.sharded("second", SIZE, SIZE, Format::Bf16)?;
//! let model = model.build();
//! let flow = Flow::f32(SIZE);
//! let mut blocks = Blocks::new(flow, flow);
//! blocks.block(Block::new("first", vec![first], flow)).block(Block::new("second", vec![second], flow));
//! let (training, evaluation) = (blocks.training("train", &model, 1)?, blocks.evaluation("evaluate", &model)?);
//! let builder = Session::builder(Config::default(), {
//!     let programs = [training.jobs, evaluation.jobs];
//!     move |_rank| warpweft_blocks::compute(programs.clone(), Maps)
//! });
//! let builder = builder.program(training.program).program(evaluation.program);
//! let mut session = block_on(builder.initialize(initial::normal(1, 0.2)).start_cpu(2))?;
//! let mut losses = Vec::new();
//! for step in 0..150 {
//!     for rank in session.own_ranks() {
//!         let x: [f32; SIZE] = std::array::from_fn(|at| ((step * 7 + rank.index() * 13 + at * 5) as f32).sin());
//!         session.write_input("train", rank, "input", &x)?;
//!         session.write_input("train", rank, "targets", &x)?;
//!     }
//!     session.set_learning_rate(0.01)?;
//!     losses.push(block_on(session.step("train"))?.mean_output("loss")?);
//! }
//! assert!(losses[149] < 0.1 * losses[0], "{losses:?}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod blocks;
mod parts;
mod passes;

pub use blocks::{Block, Blocks, Declared, Flow};
pub use parts::{Cut, Part, padded};
pub use passes::{At, Backward, Job, Jobs, Loss, Pass, Passes, compute};
