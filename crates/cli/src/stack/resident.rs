//! The compute-only baseline: the stack with all its weights in memory, no session and no communication, on every GPU
//! at once.
//!
//! Law: the parts are those of the sharded variants, in their order, on a queue; weight gradients have the
//! element type of the sharded variants', and each has its own memory, as PyTorch's do. All ranks begin a
//! step together, and a step takes as long as the slowest.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use half::bf16;
use warpweft_cuda::CudaFailure;
use warpweft_cuda::linear::{CapturedGraph, Device, DeviceBuffer, Output, Queue, Recipe, Weight};
use warpweft_cuda::{CudaHandles, DeviceOrdinal, DeviceSlice, DeviceSliceMut};
use warpweft_format::{ElementType, Orientation};

use super::closure::Ends;
use super::gradient::Gradient;
use super::layers::{Gradients, Layers, Operands};
use super::report::Measured;
use super::shape::{Projection, StackShape};
use super::{MeasureError, Measuring, Pace, middle, values};

/// Names of its rows.
pub(super) const NAMES: [&str; 2] = ["resident/eager", "resident/graph"];

type Buffer = DeviceBuffer<bf16>;

/// Sizes of the stack, and the element type of weight gradients.
type Sizes<'a> = (&'a StackShape, ElementType);

/// One weight and its gradient.
struct Held {
    weight: Buffer,
    gradient: Gradient,
}

impl Held {
    fn weight(&self) -> Weight<'_> {
        Weight::values(Orientation::Rowwise, self.weight.read())
    }

    fn lend(&mut self) -> (Weight<'_>, Output<'_>) {
        (Weight::values(Orientation::Rowwise, self.weight.read()), self.gradient.lend())
    }
}

/// What forward leaves for backward.
struct Kept {
    qkv: Buffer,
    middle: Buffer,
    hidden: Buffer,
    activated: Buffer,
    output: Buffer,
}

/// One rank's stack.
struct Resident {
    layers: Layers,
    ends: Ends,
    weights: Vec<[Held; 4]>,
    kept: Vec<Kept>,
    hidden_gradient: Buffer,
    middle_gradient: Buffer,
    qkv_gradient: Buffer,
    /// Gradient of a block's output, and of its input; they take turns.
    residual_gradients: [Buffer; 2],
    sum: DeviceBuffer<f32>,
    queue: Rc<Queue>,
}

impl Resident {
    fn new(gpu: DeviceOrdinal, (shape, gradients): Sizes<'_>) -> Result<Self, CudaFailure> {
        let device = Device::open(gpu)?;
        let layers = Layers::new(&device, shape, (Recipe::Bf16, gradients))?;
        let ends = Ends::new(&device, &layers, shape)?;
        let queue = Rc::new(device.queue()?);
        let (narrow, wide) = (shape.tokens * shape.hidden, shape.tokens * shape.ffn);
        let held = |number: usize, projection: Projection| {
            let of = shape.weight(projection);
            let mut weight = device.buffer::<bf16>(of.elements())?;
            let seed = values::seed(number * Projection::ALL.len() + projection as usize);
            let amplitude = values::amplitude(of.cols);
            layers.elementwise.uniform(queue.handles(), seed, amplitude, weight.write())?;
            let gradient = Gradient::new(&device, gradients, of.elements())?;
            Ok::<_, CudaFailure>(Held { weight, gradient })
        };
        let mut weights = Vec::with_capacity(shape.layers);
        let mut kept = Vec::with_capacity(shape.layers);
        for number in 0..shape.layers {
            let [qkv, proj, fc1, fc2] = Projection::ALL;
            weights.push([held(number, qkv)?, held(number, proj)?, held(number, fc1)?, held(number, fc2)?]);
            kept.push(Kept {
                qkv: device.buffer(3 * narrow)?,
                middle: device.buffer(narrow)?,
                hidden: device.buffer(wide)?,
                activated: device.buffer(wide)?,
                output: device.buffer(narrow)?,
            });
        }
        queue.synchronize()?;
        Ok(Self {
            layers,
            ends,
            weights,
            kept,
            hidden_gradient: device.buffer(wide)?,
            middle_gradient: device.buffer(narrow)?,
            qkv_gradient: device.buffer(3 * narrow)?,
            residual_gradients: [device.buffer(narrow)?, device.buffer(narrow)?],
            sum: device.buffer(1)?,
            queue,
        })
    }

    /// Forward, loss, backward.
    fn enqueue(&mut self, handles: &CudaHandles) -> Result<(), CudaFailure> {
        let Self { layers, ends, weights, kept, sum, .. } = self;
        for (number, weights) in weights.iter().enumerate() {
            let (before, rest) = kept.split_at_mut(number);
            let Some(own) = rest.first_mut() else { continue };
            let x = before.last().map_or_else(|| ends.input.read(), |before| before.output.read());
            let [qkv, proj, fc1, fc2] = weights.each_ref().map(Held::weight);
            layers.qkv(handles, operands(&qkv, x, own.qkv.write()))?;
            layers.proj(handles, operands(&proj, own.qkv.read(), own.middle.write()), x)?;
            let of_fc1 = operands(&fc1, own.middle.read(), own.hidden.write());
            layers.fc1(handles, of_fc1, Some(own.activated.write()))?;
            let of_fc2 = operands(&fc2, own.activated.read(), own.output.write());
            layers.fc2(handles, of_fc2, own.middle.read())?;
        }
        if let Some(last) = kept.last() {
            layers.elementwise.sum(handles, last.output.read(), sum.write())?;
        }
        self.enqueue_backward(handles)
    }

    fn enqueue_backward(&mut self, handles: &CudaHandles) -> Result<(), CudaFailure> {
        let Self { layers, ends, weights, kept, hidden_gradient, middle_gradient, qkv_gradient, .. } = self;
        let [even, odd] = &mut self.residual_gradients;
        let blocks = weights.len();
        for number in (0..blocks).rev() {
            let (from, into) = if number % 2 == 0 { (&*odd, &mut *even) } else { (&*even, &mut *odd) };
            let of_output = if number + 1 == blocks { ends.ones.read() } else { from.read() };
            let (own, x) = match kept.get(..=number) {
                Some([.., before, own]) => (own, before.output.read()),
                Some([own]) => (own, ends.input.read()),
                _ => continue,
            };
            let [qkv, proj, fc1, fc2] = &mut weights[number];

            let (weight, dw) = fc2.lend();
            let (dx, x_of_fc2) = (hidden_gradient.write(), own.activated.read().into());
            let of_fc2 = Gradients { weight: &weight, dy: of_output.into(), x: x_of_fc2, dx, dw };
            layers.fc2_backward(handles, of_fc2, Some(own.hidden.read()))?;
            let (weight, dw) = fc1.lend();
            let (dy, dx) = (hidden_gradient.read().into(), middle_gradient.write());
            let of_fc1 = Gradients { weight: &weight, dy, x: own.middle.read().into(), dx, dw };
            layers.fc1_backward(handles, of_fc1, of_output)?;
            let (weight, dw) = proj.lend();
            let (dy, dx) = (middle_gradient.read().into(), qkv_gradient.write());
            layers.proj_backward(
                handles,
                Gradients { weight: &weight, dy, x: own.qkv.read().into(), dx, dw },
            )?;
            let (weight, dw) = qkv.lend();
            let (dy, dx) = (qkv_gradient.read().into(), into.write());
            let of_qkv = Gradients { weight: &weight, dy, x: x.into(), dx, dw };
            layers.qkv_backward(handles, of_qkv, middle_gradient.read())?;
        }
        Ok(())
    }

    /// The loss, and the norm of all weight gradients, of the last step.
    fn outcome(&mut self) -> Result<(f32, f32), CudaFailure> {
        let loss = self.first_sum()?;
        let mut squares = 0.0;
        for held in self.weights.iter().flatten() {
            let elementwise = &mut self.layers.elementwise;
            squares += held.gradient.sum_of_squares(elementwise, &self.queue, &mut self.sum)?;
        }
        Ok((loss, squares.sqrt() as f32))
    }

    fn issue(&mut self) -> Result<(), CudaFailure> {
        let handles = self.queue.handles().clone();
        self.enqueue(&handles)
    }

    /// One step as one graph.
    fn capture(&mut self) -> Result<CapturedGraph, CudaFailure> {
        let queue = Rc::clone(&self.queue);
        queue.capture(|handles| self.enqueue(handles))
    }

    fn first_sum(&self) -> Result<f32, CudaFailure> {
        Ok(self.queue.download(&self.sum)?.first().copied().unwrap_or(f32::NAN))
    }
}

/// A product in bf16, which leaves what it reads as it is.
fn operands<'a, 'w>(
    weight: &'w Weight<'a>,
    x: DeviceSlice<'a, bf16>,
    y: DeviceSliceMut<'a, bf16>,
) -> Operands<'a, 'w> {
    Operands { weight, x: x.into(), kept: None, y }
}

/// Both ways to enqueue a step, and what came of it.
struct Ranked {
    eager: Timed,
    graph: Timed,
    loss: f32,
    norm: f32,
}

/// What one rank measured of one way to enqueue.
#[derive(Default)]
struct Timed {
    steps: Vec<Duration>,
    hosts: Vec<Duration>,
}

/// Where ranks begin steps together, and learn that one of them failed.
struct Meeting<'a> {
    barrier: Barrier,
    over: AtomicBool,
    error: Mutex<Option<CudaFailure>>,
    stop: &'a AtomicBool,
}

impl Meeting<'_> {
    /// Meets; true if no rank has failed so far. All ranks get the same answer.
    fn goes_on(&self, outcome: Result<(), CudaFailure>) -> bool {
        if let Err(error) = outcome {
            self.over.store(true, Ordering::Relaxed);
            self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        if self.stop.load(Ordering::Relaxed) {
            self.over.store(true, Ordering::Relaxed);
        }
        self.barrier.wait();
        let goes_on = !self.over.load(Ordering::Relaxed);
        // Nobody fails in the next step before everybody has looked.
        self.barrier.wait();
        goes_on
    }

    /// Times steps that `enqueue` puts on the queue; `None` once a rank has failed.
    fn time(
        &self,
        pace: Pace,
        stack: &mut Resident,
        mut enqueue: impl FnMut(&mut Resident) -> Result<(), CudaFailure>,
    ) -> Option<Timed> {
        let mut timed = Timed::default();
        let mut outcome = Ok(());
        for step in 0..pace.warm + pace.steps {
            if !self.goes_on(outcome) {
                return None;
            }
            let begin = Instant::now();
            outcome = enqueue(stack);
            let host = begin.elapsed();
            outcome = outcome.and_then(|()| stack.queue.synchronize());
            if step >= pace.warm {
                timed.steps.push(begin.elapsed());
                timed.hosts.push(host);
            }
        }
        self.goes_on(outcome).then_some(timed)
    }

    fn rank(&self, gpu: DeviceOrdinal, sizes: Sizes<'_>, pace: Pace) -> Option<Ranked> {
        let mut stack = self.agreed(Resident::new(gpu, sizes))?;
        let eager = self.time(pace, &mut stack, Resident::issue)?;
        let capture = self.agreed(stack.capture())?;
        let graph = self.time(pace, &mut stack, |stack| stack.queue.replay(&capture))?;
        let (loss, norm) = self.agreed(stack.outcome())?;
        Some(Ranked { eager, graph, loss, norm })
    }

    fn agreed<T>(&self, outcome: Result<T, CudaFailure>) -> Option<T> {
        let (value, outcome) = match outcome {
            Ok(value) => (Some(value), Ok(())),
            Err(error) => (None, Err(error)),
        };
        self.goes_on(outcome).then_some(value)?
    }
}

/// Times the resident stack on all GPUs at once, eager and as one graph per GPU.
pub(super) fn measure(
    sizes: Sizes<'_>,
    gpus: &[DeviceOrdinal],
    pace: Pace,
    stop: &AtomicBool,
) -> Result<[Measured; 2], MeasureError> {
    let (barrier, over) = (Barrier::new(gpus.len()), AtomicBool::new(false));
    let meeting = Meeting { barrier, over, error: Mutex::new(None), stop };
    let ranks: Vec<Option<Ranked>> = std::thread::scope(|scope| {
        let start = |gpu: &DeviceOrdinal| {
            let (gpu, meeting) = (*gpu, &meeting);
            scope.spawn(move || meeting.rank(gpu, sizes, pace))
        };
        let threads: Vec<_> = gpus.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().ok().flatten()).collect()
    });
    let error = meeting.error.into_inner().unwrap_or_else(PoisonError::into_inner);
    let ranks: Option<Vec<Ranked>> = ranks.into_iter().collect();
    let Some(ranks) = ranks.filter(|ranks| !ranks.is_empty()) else {
        return Err(error.map_or(MeasureError::Interrupted(Measuring::Stack), MeasureError::Cuda));
    };
    let row = |name: &str, timed: fn(&Ranked) -> &Timed| {
        let slowest = |of: fn(&Timed) -> &Vec<Duration>| {
            let steps = (0..pace.steps)
                .filter_map(|step| ranks.iter().filter_map(|rank| of(timed(rank)).get(step)).max());
            middle(steps.copied().collect())
        };
        let (step, host) = (slowest(|timed| &timed.steps), slowest(|timed| &timed.hosts));
        let mut row = Measured::new(name.to_owned(), Recipe::Bf16.to_string(), step, host);
        row.loss = ranks.first().map(|rank| rank.loss);
        row.norm = ranks.first().map(|rank| rank.norm);
        row
    };
    let [eager, graph] = NAMES;
    Ok([row(eager, |rank| &rank.eager), row(graph, |rank| &rank.graph)])
}
