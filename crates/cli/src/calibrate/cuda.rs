//! GPUs of this machine as the subject of a calibration.
//!
//! Law: products are those of [`warpweft_cuda::linear`], in the best recipe the GPU has for a format. Weights and
//! activations are spread numbers, as a trainer's are: a GPU that multiplies zeros draws so little power that
//! it reached 913 TFLOP/s in bf16 where a stack of layers had 680. What fails when the closure is made is
//! said by every call.

use std::collections::BTreeMap;
use std::sync::Arc;

use half::bf16;
use warpweft_backend::DeviceTimes;
use warpweft_base::id::RankId;
use warpweft_cuda::CudaFailure;
use warpweft_cuda::linear::{
    BackwardOperands, Device, DeviceBuffer, Elementwise, Linear, LinearSpec, Recipe, Weight,
};
use warpweft_cuda::{ComputeCapability, CudaHandles, CudaSurface, DeviceOrdinal};
use warpweft_format::{Format, Fp8Element, Orientation, Shape};
use warpweft_plan::compute::{Compute, ComputeContext, ComputeError};
use warpweft_plan::model::{Call, Math};
use warpweft_session::config::{Config, TraceOutput};
use warpweft_session::session::initial::MasterRows;
use warpweft_session::session::{Session, block_on};

use super::programs::{Arithmetic, Experiment, Part, Work};
use super::subject::{Observation, Scale, Subject};
use super::world::{configuration, observe};
use super::{MeasureError, Measuring};
use crate::stack::values;

/// Bytes of the ladder's largest gradient, unless set otherwise.
const LARGEST: u64 = 256 << 20;

/// One rank on each GPU.
pub(super) struct Cuda {
    gpus: Vec<DeviceOrdinal>,
    capability: ComputeCapability,
    base: Config,
    largest: Option<u64>,
    /// Contexts stay open, so that libraries and kernels are loaded once and not by every session.
    _contexts: Vec<Device>,
}

impl Cuda {
    /// The first `ranks` GPUs.
    ///
    /// # Errors
    /// [`MeasureError::NoGpus`], [`MeasureError::Gpus`].
    pub(super) fn open(ranks: u32, base: Config, largest: Option<u64>) -> Result<Self, MeasureError> {
        let failed = |error: &dyn std::fmt::Display| MeasureError::NoGpus {
            what: error.to_string(),
            of: Measuring::Machine,
        };
        let found = DeviceOrdinal::all().map_err(|error| failed(&error))?;
        let Some(gpus) = found.get(..ranks as usize) else {
            return Err(MeasureError::Gpus {
                requested: ranks as usize,
                found: found.len(),
                of: Measuring::Machine,
            });
        };
        let contexts = gpus.iter().map(|gpu| Device::open(*gpu)).collect::<Result<Vec<_>, _>>();
        let contexts = contexts.map_err(|error| failed(&error))?;
        let capability = gpus.first().map_or(ComputeCapability::new(0, 0), |_| contexts[0].capability());
        Ok(Self { gpus: gpus.to_vec(), capability, base, largest, _contexts: contexts })
    }
}

impl Subject for Cuda {
    fn describe(&self) -> String {
        format!("cuda backend, {} GPUs of compute capability {}", self.gpus.len(), self.capability)
    }

    fn ranks(&self) -> u32 {
        u32::try_from(self.gpus.len()).unwrap_or(u32::MAX)
    }

    fn memory(&self) -> Option<(u64, String)> {
        let bytes = self.gpus.first()?.memory_bytes().ok()?;
        Some((bytes, "as the driver reports".to_owned()))
    }

    fn arithmetic(&self, format: Format) -> Arithmetic {
        let recipe = Recipe::best_for(format, self.capability);
        let math = if recipe == Recipe::Bf16 { Math::Bf16 } else { Math::Fp8 };
        let activations = recipe.activation_format(Fp8Element::E4m3);
        Arithmetic { format, math, form: recipe.form(), backward: recipe.dgrad_orientation(), activations }
    }

    fn products(&self) -> Vec<Arithmetic> {
        let both = [Format::Bf16, Format::FP8_BLOCK128_POW2].map(|format| self.arithmetic(format));
        match both {
            [plain, fp8] if fp8.math != plain.math => vec![plain, fp8],
            [plain, _] => vec![plain],
        }
    }

    fn scale(&self) -> Scale {
        let largest = usize::try_from(self.largest.unwrap_or(LARGEST) / 4).unwrap_or(usize::MAX);
        Scale { largest, product: Shape { rows: 8192, cols: 4096 }, tokens: 2048 }
    }

    fn observe(&mut self, experiment: &Experiment, steps: usize) -> Result<Observation, MeasureError> {
        let gpus = if experiment.alone { &self.gpus[..1] } else { &self.gpus[..] };
        // Tasks are timed on the devices where a trace is requested; nobody reads it. By events, which also
        // see what a lane waits for peers: that is part of what a collective takes.
        let folder = tempfile::tempdir().map_err(|source| MeasureError::File {
            action: "make",
            path: std::env::temp_dir(),
            source,
        })?;
        let path = folder.path().join("trace.json").display().to_string();
        let trace = TraceOutput { enabled: true, path, first_step: 0, steps: 1, device: DeviceTimes::Events };
        let config = Config { trace, ..configuration(&self.base, experiment) };
        let (parts, capability, devices) = (experiment.parts.clone(), self.capability, gpus.to_vec());
        let closure = move |rank: RankId| Products::new(parts.clone(), devices[rank.index()], capability);
        let builder = Session::builder(config, closure).initialize(initialize);
        let builder = builder.program(experiment.program.clone());
        block_on(async { observe(builder.start_cuda(gpus.to_vec()).await?, experiment, steps).await })
    }
}

/// Carries out the calls of one program on one rank.
struct Products {
    parts: Arc<[Part]>,
    ready: Result<Ready, CudaFailure>,
}

struct Ready {
    /// By tokens.
    layers: BTreeMap<usize, Linear>,
    /// `[tokens, cols]` and `[tokens, rows]`.
    x: BTreeMap<usize, DeviceBuffer<bf16>>,
    y: BTreeMap<usize, DeviceBuffer<bf16>>,
    /// Gradients that are nobody's, of x by tokens and of the weight, where a call computes a whole layer.
    dx: BTreeMap<usize, DeviceBuffer<bf16>>,
    dw: Option<DeviceBuffer<f32>>,
    small: Small,
}

/// Kernels that do next to nothing, as layers have them: products and elementwise passes, in turn.
struct Small {
    layer: Linear,
    weight: DeviceBuffer<bf16>,
    x: DeviceBuffer<bf16>,
    y: DeviceBuffer<bf16>,
    elementwise: Elementwise,
}

impl Small {
    /// Tokens, inputs and outputs: one tile of a product.
    const SIZE: usize = 128;

    fn enqueue(&mut self, handles: &CudaHandles, count: usize) -> Result<(), CudaFailure> {
        let Self { layer, weight, x, y, elementwise } = self;
        (0..count).try_for_each(|number| match number % 2 {
            0 => elementwise.gelu(handles, x.read(), y.write()),
            _ => {
                let weight = Weight::values(Orientation::Rowwise, weight.read());
                layer.forward(handles, x.read(), &weight, y.write())
            }
        })
    }
}

impl Products {
    fn new(parts: Arc<[Part]>, gpu: DeviceOrdinal, capability: ComputeCapability) -> Self {
        let ready = Device::open(gpu).and_then(|device| Ready::new(&device, &parts, capability));
        Self { parts, ready }
    }
}

impl Ready {
    fn new(device: &Device, parts: &[Part], capability: ComputeCapability) -> Result<Self, CudaFailure> {
        let (mut layers, mut x, mut y) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (mut dx, mut dw) = (BTreeMap::new(), None);
        let (elementwise, queue) = (Elementwise::new(device)?, device.queue()?);
        let activations = |seed, elements| {
            let mut buffer = device.buffer::<bf16>(elements)?;
            elementwise.uniform(queue.handles(), seed, values::INPUT_AMPLITUDE, buffer.write())?;
            Ok::<_, CudaFailure>(buffer)
        };
        for part in parts {
            let (tokens, Shape { rows, cols }) = (part.tokens(), part.shape);
            if tokens > 0 && !layers.contains_key(&tokens) {
                let recipe = Recipe::best_for(part.arithmetic.format, capability);
                layers.insert(tokens, Linear::new(device, LinearSpec::new(recipe, tokens, part.shape))?);
                x.insert(tokens, activations(0, tokens * cols)?);
                y.insert(tokens, activations(1, tokens * rows)?);
                if matches!(part.work, Work::Layer(_)) {
                    dx.insert(tokens, device.buffer(tokens * cols)?);
                    dw = Some(device.buffer(rows * cols)?);
                }
            }
        }
        let square = Shape::new(Small::SIZE, Small::SIZE);
        let small = Small {
            layer: Linear::new(device, LinearSpec::new(Recipe::Bf16, Small::SIZE, square))?,
            weight: activations(2, square.elements())?,
            x: activations(3, square.elements())?,
            y: device.buffer(square.elements())?,
            elementwise: Elementwise::new(device)?,
        };
        queue.synchronize()?;
        Ok(Self { layers, x, y, dx, dw, small })
    }
}

/// Masters that keep products in the range of their inputs.
fn initialize(rows: MasterRows<'_>, masters: &mut [f32]) {
    let seed =
        rows.weight.bytes().fold(1_u32, |seed, byte| seed.wrapping_mul(31).wrapping_add(u32::from(byte)));
    values::fill(seed, values::amplitude(rows.columns), rows.first_element(), masters);
}

impl Compute<CudaSurface> for Products {
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, CudaSurface>) -> Result<(), ComputeError> {
        let ready = self.ready.as_mut().map_err(|error| error.clone())?;
        let Ready { layers, x, y, dx, dw, small } = ready;
        let unknown = || ComputeError::closure(format!("`{}` is no call of this program", call.name));
        let part = self.parts.get(context.call().index()).ok_or_else(unknown)?;
        let tokens = part.tokens();
        let layer = layers.get_mut(&tokens).zip(x.get(&tokens)).zip(y.get_mut(&tokens));
        let ((layer, x), y) = match (part.work, layer) {
            (Work::Nothing, _) => return Ok(()),
            (Work::Kernels(count), _) => return Ok(small.enqueue(context.handles(), count)?),
            (_, None) => return Err(unknown()),
            (_, Some(ready)) => ready,
        };
        let handles = context.handles();
        let done = match part.work {
            Work::Gradient(_) => layer.wgrad(handles, y.read(), x.read(), context.gradient(part.weight)?),
            Work::Layer(_) => {
                let Arithmetic { form, backward, .. } = part.arithmetic;
                let (dx, dw) = dx.get_mut(&tokens).zip(dw.as_mut()).ok_or_else(unknown)?;
                let weight = Weight::of(context, part.weight, Orientation::Rowwise, form)?;
                layer.forward(handles, x.read(), &weight, y.write())?;
                let weight = &Weight::of(context, part.weight, backward, form)?;
                let (dx, dw) = (dx.write().into(), dw.write().into());
                layer.backward(handles, BackwardOperands { dy: y.read(), weight, x: x.read(), dx, dw })
            }
            _ => {
                let form = part.arithmetic.form;
                let weight = Weight::of(context, part.weight, Orientation::Rowwise, form)?;
                layer.forward(handles, x.read(), &weight, y.write())
            }
        };
        Ok(done?)
    }
}
