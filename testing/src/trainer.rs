//! A small trainer for tests: a chain of linear layers that learns to reproduce its input.
//!
//! Rowwise uses forward, columnwise uses backward, one replicated bias, a loss output. Everything
//! is deterministic: inputs follow from rank and step, masters from name and position.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use crate::custom_optimizer::{ByMatrices, by_rows};
use crate::products::dot;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::{BufferId, RankId, WeightId};
use warpweft_format::{ElementType, Format, Orientation};
use warpweft_plan::compute::{ComputeContext, ComputeError, PrepareContext, TransformContext, UpdateContext};
use warpweft_plan::model::{Call, CallBuilder, Form, Model, Phase, Placement, ProgramBuilder, StepProgram};
use warpweft_session::config::Config;
use warpweft_session::session::initial::MasterRows;
use warpweft_session::session::{Session, SessionBuilder, SessionError};

/// Rows and columns of every weight, and elements of every activation.
pub const SIZE: usize = 96;

/// What a closure of the trainer does wrong.
#[derive(Clone, Debug, Default)]
pub struct Mischief {
    /// 0 nothing, 1 error, 2 panic, 3 NaN gradient; acted on by rank 1 in the last backward call.
    kind: Arc<AtomicU32>,
}

impl Mischief {
    /// From now on; 0 ends it.
    pub fn set(&self, kind: u32) {
        self.kind.store(kind, Ordering::SeqCst);
    }

    fn now(&self, rank: RankId) -> u32 {
        if rank == RankId::new(1) { self.kind.load(Ordering::SeqCst) } else { 0 }
    }
}

/// What a step of the trainer is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shaped {
    /// Layers, one after the other.
    pub layers: usize,
    /// Weights; layers beyond their number replay them in turn.
    pub weights: usize,
    /// Is every layer's input recomputed before its backward?
    pub recomputes: bool,
    /// Micro-batches of a training step.
    pub micro_batches: u32,
    /// Do all layers share a scale of the tensor?
    pub one_scale: bool,
}

impl Default for Shaped {
    fn default() -> Self {
        Self { layers: 2, weights: 2, recomputes: false, micro_batches: 1, one_scale: false }
    }
}

/// Ids of everything declared.
#[derive(Clone, Debug)]
pub struct Trainer {
    /// The model of both programs.
    pub model: Model,
    /// Program `train`.
    pub train: StepProgram,
    /// Program `evaluate`.
    pub evaluate: StepProgram,
    weights: Vec<WeightId>,
    bias: WeightId,
    activations: Vec<BufferId>,
    input: BufferId,
    loss: BufferId,
    gradients: [BufferId; 2],
}

impl Trainer {
    /// So many layers, each with a weight of its own in `format`.
    pub fn new(layers: usize, format: Format) -> Self {
        Self::refined(layers, format, &Config::default())
    }

    /// A trainer whose weights are refined by the rules of `config`.
    pub fn refined(layers: usize, format: Format, config: &Config) -> Self {
        Self::shaped(Shaped { layers, weights: layers, ..Shaped::default() }, format, config)
    }

    /// A trainer of any shape.
    pub fn shaped(shaped: Shaped, format: Format, config: &Config) -> Self {
        Self::with_dynamic(&[], shaped, format, config)
    }

    /// A trainer of any shape, some calls of which are dynamic, in training and in evaluation.
    pub fn with_dynamic(dynamic: &[&str], shaped: Shaped, format: Format, config: &Config) -> Self {
        let Shaped { layers, weights, .. } = shaped;
        let mut model = Model::builder();
        let own: Vec<WeightId> = (0..weights)
            .map(|layer| model.sharded(&format!("layer{layer}"), SIZE, SIZE, format).unwrap())
            .collect();
        if shaped.one_scale {
            model.scale_group("layers", &own).unwrap();
        }
        let weights: Vec<WeightId> = own.into_iter().cycle().take(layers).collect();
        let bias = model.replicated("bias", 1, SIZE).unwrap();
        let model = config.apply_weight_rules(&model.build()).unwrap();
        let program = |ends| declare(&model, &weights, bias, ends, shaped, dynamic);
        let (train, evaluate) = (program(Ends::Training), program(Ends::Evaluation));
        let buffer = |name: &str| train.buffer(name).unwrap();
        Self {
            activations: (0..=layers).map(|layer| buffer(&format!("x{layer}"))).collect(),
            input: buffer("input"),
            loss: buffer("loss"),
            gradients: [buffer("even gradient"), buffer("odd gradient")],
            model,
            evaluate,
            weights,
            bias,
            train,
        }
    }

    /// The calls of a training step without micro-batches or recomputation, and no optimizer: program `gradients`.
    pub fn gradients_alone(&self) -> StepProgram {
        let shaped = Shaped { layers: self.weights.len(), ..Shaped::default() };
        declare(&self.model, &self.weights, self.bias, Ends::Gradients, shaped, &[])
    }

    /// A session builder with this trainer's programs, masters and closures.
    pub fn builder(&self, config: Config, mischief: &Mischief) -> SessionBuilder<CpuSurface> {
        let run = self.closure(mischief);
        self.with_programs(Session::builder(config, move |_: RankId| run.clone()))
    }

    /// The same with a custom optimizer that keeps as many states as the configuration says.
    pub fn builder_with_optimizer<R>(
        &self,
        config: Config,
        mischief: &Mischief,
        rule: R,
    ) -> SessionBuilder<CpuSurface>
    where
        R: FnMut(&UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> + Clone + Send + Sync + 'static,
    {
        let lists = config.optimizer.custom_states.map_or(0, usize::from);
        self.builder(config, mischief).optimizer(by_rows(lists, rule))
    }

    /// The same with one that takes whole matrices: what prepares rows, what transforms a matrix, what updates.
    pub fn builder_by_matrices<P, T, R>(
        &self,
        config: Config,
        mischief: &Mischief,
        (prepare, transform, update): (P, T, R),
    ) -> SessionBuilder<CpuSurface>
    where
        P: FnMut(&PrepareContext<'_, CpuSurface>) -> Result<(), ComputeError> + Clone + Send + Sync + 'static,
        T: FnMut(&TransformContext<'_, CpuSurface>) -> Result<(), ComputeError>
            + Clone
            + Send
            + Sync
            + 'static,
        R: FnMut(&UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> + Clone + Send + Sync + 'static,
    {
        let lists = config.optimizer.custom_states.map_or(0, usize::from);
        self.builder(config, mischief).optimizer(ByMatrices(lists, prepare, transform, update))
    }

    fn closure(
        &self,
        mischief: &Mischief,
    ) -> impl FnMut(&Call, &ComputeContext<'_, CpuSurface>) -> Result<(), ComputeError>
    + Clone
    + Send
    + Sync
    + 'static {
        let (trainer, mischief) = (self.clone(), mischief.clone());
        move |call: &Call, context: &ComputeContext<'_, CpuSurface>| trainer.run(call, context, &mischief)
    }

    fn with_programs(&self, builder: SessionBuilder<CpuSurface>) -> SessionBuilder<CpuSurface> {
        builder.program(self.train.clone()).program(self.evaluate.clone()).initialize(initial)
    }

    /// A running session on `ranks` ranks.
    pub async fn start(&self, config: Config, ranks: u32) -> Result<Session, SessionError> {
        self.builder(config, &Mischief::default()).start_cpu(ranks).await
    }

    fn run(
        &self,
        call: &Call,
        context: &ComputeContext<'_, CpuSurface>,
        mischief: &Mischief,
    ) -> Result<(), ComputeError> {
        let layers = self.weights.len();
        let (kind, number) = call.name.split_at(1);
        let layer: usize = number.trim_end_matches(" again").parse().unwrap_or(0);
        match kind {
            "i" => {
                context.write::<f32>(self.activations[0])?.copy_from_slice(&context.read::<f32>(self.input)?);
            }
            "f" => {
                let weight = context.dense(self.weights[layer], Orientation::Rowwise)?;
                let bias = context.dense(self.bias, Orientation::Rowwise)?;
                let x = context.read::<f32>(self.activations[layer])?;
                let mut y = context.write::<f32>(self.activations[layer + 1])?;
                for (row, y) in y.iter_mut().enumerate() {
                    *y = bias[row] + dot(&weight[row * SIZE..(row + 1) * SIZE], &x);
                }
            }
            "l" => {
                let y = context.read::<f32>(self.activations[layers])?;
                let target = context.read::<f32>(self.input)?;
                let errors = y.iter().zip(target.iter()).map(|(y, target)| y - target);
                context.write::<f32>(self.loss)?[0] = errors.clone().map(|error| error * error).sum();
                if call.buffers.iter().any(|access| access.buffer == self.gradients[layers % 2]) {
                    let mut gradient = context.write::<f32>(self.gradients[layers % 2])?;
                    gradient.iter_mut().zip(errors).for_each(|(gradient, error)| *gradient = 2.0 * error);
                }
            }
            _ => {
                let weight = self.weights[layer];
                let transposed = match orientation(&self.model, weight) {
                    Orientation::Columnwise => context.dense(weight, Orientation::Columnwise)?.to_vec(),
                    Orientation::Rowwise => transpose(&context.dense(weight, Orientation::Rowwise)?),
                };
                let x = context.read::<f32>(self.activations[layer])?;
                let above = context.read::<f32>(self.gradients[(layer + 1) % 2])?;
                let mut below = context.write::<f32>(self.gradients[layer % 2])?;
                for (col, below) in below.iter_mut().enumerate() {
                    *below = dot(&transposed[col * SIZE..(col + 1) * SIZE], &above);
                }
                if !self.model.weight(self.bias).unwrap().frozen {
                    context.gradient(self.bias)?.copy_from_slice(&above);
                }
                if self.model.weight(weight).unwrap().frozen {
                    return Ok(());
                }
                let mut gradient = context.gradient(weight)?;
                for row in 0..SIZE {
                    for col in 0..SIZE {
                        gradient[row * SIZE + col] = above[row] * x[col];
                    }
                }
                if layer == 0 {
                    match mischief.now(context.rank()) {
                        1 => return Err(ComputeError::closure("the dog ate it")),
                        2 => panic!("the dog ate all of it"),
                        3 => gradient[5] = f32::NAN,
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

/// Backward wants a sharded weight columnwise; a replicated one lies rowwise.
fn orientation(model: &Model, weight: WeightId) -> Orientation {
    match model.weight(weight).unwrap().placement {
        Placement::Sharded => Orientation::Columnwise,
        Placement::Replicated => Orientation::Rowwise,
    }
}

fn transpose(rowwise: &[f32]) -> Vec<f32> {
    (0..SIZE * SIZE).map(|at| rowwise[at % SIZE * SIZE + at / SIZE]).collect()
}

/// What the calls end in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ends {
    Training,
    Gradients,
    Evaluation,
}

fn declare(
    model: &Model,
    weights: &[WeightId],
    bias: WeightId,
    ends: Ends,
    shaped: Shaped,
    dynamic: &[&str],
) -> StepProgram {
    let (name, micro_batches) = match ends {
        Ends::Training => ("train", shaped.micro_batches),
        Ends::Gradients => ("gradients", shaped.micro_batches),
        Ends::Evaluation => ("evaluate", 1),
    };
    let mut program = StepProgram::builder(name, model);
    program.micro_batches(micro_batches).unwrap();
    let input = program.input("input", SIZE, ElementType::F32).unwrap();
    let loss = program.output("loss", 1, ElementType::F32).unwrap();
    let layers = weights.len();
    let x: Vec<BufferId> =
        (0..=layers).map(|layer| program.activation(&format!("x{layer}"), SIZE).unwrap()).collect();
    declared(&mut program, "input", Phase::Forward, dynamic).reads(input).writes(x[0]).add().unwrap();
    for (layer, weight) in weights.iter().enumerate() {
        declared(&mut program, &format!("f{layer}"), Phase::Forward, dynamic)
            .uses(*weight, Orientation::Rowwise, Form::Dense)
            .uses(bias, Orientation::Rowwise, Form::Dense)
            .reads(x[layer])
            .writes(x[layer + 1])
            .add()
            .unwrap();
    }
    if ends == Ends::Evaluation {
        declared(&mut program, "loss", Phase::Forward, dynamic)
            .reads(x[layers])
            .reads(input)
            .writes(loss)
            .add()
            .unwrap();
        return program.build_evaluation().unwrap();
    }
    let gradients = ["even gradient", "odd gradient"].map(|name| program.activation(name, SIZE).unwrap());
    declared(&mut program, "loss", Phase::Forward, dynamic)
        .reads(x[layers])
        .reads(input)
        .writes(loss)
        .writes(gradients[layers % 2])
        .add()
        .unwrap();
    for (layer, weight) in weights.iter().enumerate().rev() {
        if shaped.recomputes && layer > 0 {
            declared(&mut program, &format!("f{} again", layer - 1), Phase::Backward, dynamic)
                .uses(weights[layer - 1], Orientation::Rowwise, Form::Dense)
                .uses(bias, Orientation::Rowwise, Form::Dense)
                .reads(x[layer - 1])
                .writes(x[layer])
                .add()
                .unwrap();
        }
        declared(&mut program, &format!("b{layer}"), Phase::Backward, dynamic)
            .uses(*weight, orientation(model, *weight), Form::Dense)
            .reads(x[layer])
            .reads(gradients[(layer + 1) % 2])
            .writes(gradients[layer % 2])
            .gradient_if_trained(*weight, ElementType::F32)
            .gradient_if_trained(bias, ElementType::F32)
            .add()
            .unwrap();
    }
    match ends {
        Ends::Training => program.build_training().unwrap(),
        Ends::Gradients | Ends::Evaluation => program.build_gradients().unwrap(),
    }
}

fn declared<'p>(
    program: &'p mut ProgramBuilder,
    name: &str,
    phase: Phase,
    dynamic: &[&str],
) -> CallBuilder<'p> {
    let call = program.call(name, phase);
    if dynamic.contains(&name) { call.dynamic() } else { call }
}

/// Masters at the start: small, different everywhere, the same for any number of ranks.
pub fn initial(rows: MasterRows<'_>, values: &mut [f32]) {
    let seed =
        rows.weight.bytes().fold(17u32, |seed, byte| seed.wrapping_mul(31).wrapping_add(u32::from(byte)));
    for (position, value) in values.iter_mut().enumerate() {
        let place = u32::try_from(rows.first_element() + position).unwrap();
        let mixed = (place ^ seed).wrapping_mul(0x9E37_79B1).rotate_left(13).wrapping_mul(0x85EB_CA6B);
        *value = (mixed >> 8) as f32 / (1 << 24) as f32 * 0.3 - 0.15;
    }
}

/// A rank's input of one micro-batch of a step.
pub fn input(step: u32, rank: u32, micro_batch: u32) -> Vec<f32> {
    let value = |at: usize| ((step * 31 + rank * 7 + micro_batch * 13 + at as u32 * 3) as f32 * 0.37).sin();
    (0..SIZE).map(value).collect()
}

/// Writes every rank's input of one step.
pub fn feed(session: &mut Session, program: &str, ranks: u32, step: u32) {
    let micro_batches = session.plan(program).unwrap().micro_batches;
    for rank in 0..ranks {
        let values: Vec<f32> = (0..micro_batches).flat_map(|batch| input(step, rank, batch)).collect();
        session.write_input(program, RankId::new(rank), "input", &values).unwrap();
    }
}

/// Bits of the mean loss of each of `steps` training steps.
pub async fn losses(session: &mut Session, ranks: u32, steps: std::ops::Range<u32>) -> Vec<u32> {
    let mut losses = Vec::new();
    for step in steps {
        feed(session, "train", ranks, step);
        let report = session.step("train").await.unwrap();
        losses.push(report.mean_output("loss").unwrap().to_bits());
    }
    losses
}

/// A guard against hangs, not a measure of speed: no machine is so busy that a test that ends takes longer.
pub const HANGS: Duration = Duration::from_secs(300);

/// Runs a future on a runtime and a thread of its own, and fails instead of hanging, also where the
/// future blocks its thread. The name says what is usual, [`HANGS`] what is allowed.
pub fn within_a_minute<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> T {
    driven(Box::pin(future))
}

/// Boxed, as what ends below: a runtime and a thread are compiled once for each type of outcome, not for every test.
fn driven<T: Send + 'static>(future: Pin<Box<dyn Future<Output = T> + Send>>) -> T {
    ended(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(future)
    })
}

/// The same for work that blocks.
pub fn ended<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    awaited(Box::new(work))
}

fn awaited<T: Send + 'static>(work: Box<dyn FnOnce() -> T + Send>) -> T {
    let (done, outcome) = mpsc::channel();
    let thread = std::thread::spawn(move || done.send(work()).is_ok());
    match outcome.recv_timeout(HANGS) {
        Ok(value) => value,
        Err(RecvTimeoutError::Timeout) => panic!("it hangs: no end within {HANGS:?}"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(_) => unreachable!("the thread ended without an outcome"),
        },
    }
}
