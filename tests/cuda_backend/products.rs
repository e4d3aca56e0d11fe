//! Products of the experts of whole sessions, on a GPU: linear layers, native FP8 where there is such a product; and a
//! custom optimizer.

#![allow(unsafe_code, reason = "a rule enqueues a launch, which says why it is sound")]

use std::collections::BTreeMap;

use half::bf16;
use warpweft_backend::{SignalBy, Transport};
use warpweft_base::id::{RankId, WeightId};
use warpweft_cuda::CudaFailure;
use warpweft_cuda::cudarc::driver::result::memcpy_dtod_async;
use warpweft_cuda::kernels::{AdamOperand, Bounds, KernelLaunch, Kernels, MasterState};
use warpweft_cuda::linear::{BackwardOperands, Device, Linear, LinearSpec, Output, Recipe, Weight};
use warpweft_cuda::{CudaHandles, DeviceSlice, DeviceSliceMut};
use warpweft_cuda::{CudaSurface, DeviceAddress, DeviceOrdinal, KernelCache};
use warpweft_format::{Element, Format, Orientation};
use warpweft_plan::compute::{
    ComputeContext, ComputeError, PrepareContext, TransformContext, UpdateContext, UpdatedWeight,
};
use warpweft_plan::layout::OptimizerSettings;
use warpweft_plan::model::Form;
use warpweft_plan::policy::{AdamMode, ByteSize, Moments};
use warpweft_session::config::Config;
use warpweft_session::session::{Session, SessionBuilder};

use crate::bodies::captured::Addresses;
use crate::bodies::experts::{Product, TOKENS, WEIGHT};
use crate::device::{Crowded, Way, way};

pub(crate) type Surface = CudaSurface;

/// By which products a weight is multiplied. All GPUs of a world are alike.
fn recipe(format: Format) -> Recipe {
    Recipe::best_for(format, DeviceOrdinal::all().unwrap()[0].compute_capability().unwrap())
}

/// In what form calls use a weight.
pub(crate) fn form(format: Format) -> Form {
    recipe(format).form()
}

/// In which orientation backward uses it.
pub(crate) fn turned(format: Format) -> Orientation {
    recipe(format).dgrad_orientation()
}

/// The way of this run; not checked, so that only what the backend orders is ordered.
pub(crate) fn settled(config: Config) -> Config {
    let (transport, kernel_bytes, signal_by) = match way() {
        Way::Engines => (Transport::Peer, 0, SignalBy::Auto),
        Way::Copies => (Transport::Peer, 0, SignalBy::Copy),
        Way::Kernels => (Transport::Peer, u64::from(u32::MAX), SignalBy::Auto),
        Way::Nccl => (Transport::Nccl, 0, SignalBy::Auto),
    };
    Config { transport, signal_by, kernel_exchange: Some(ByteSize::new(kernel_bytes)), ..config }
}

pub(crate) async fn start(builder: SessionBuilder<CudaSurface>, ranks: u32) -> Session {
    let (gpus, ranks) = (DeviceOrdinal::all().unwrap(), ranks as usize);
    if ranks > gpus.len() && !way().lets_ranks_share_gpus() {
        std::panic::resume_unwind(Box::new(Crowded { ranks, gpus: gpus.len() }));
    }
    let devices = (0..ranks).map(|rank| gpus[rank % gpus.len()]).collect();
    builder.start_cuda(devices).await.unwrap()
}

/// The products of a rank: a layer for each format.
pub(crate) struct Layers {
    /// What a factory failed at is said by every call.
    layers: Result<Vec<Linear>, CudaFailure>,
}

impl Layers {
    pub(crate) fn new(rank: RankId, formats: &[Format]) -> Self {
        let gpus = DeviceOrdinal::all().unwrap();
        let gpu = gpus[rank.index() % gpus.len()];
        let spec = |format: &Format| LinearSpec::new(recipe(*format), TOKENS, WEIGHT);
        let layers =
            |device: Device| formats.iter().map(|format| Linear::new(&device, spec(format))).collect();
        Self { layers: Device::open(gpu).and_then(layers) }
    }

    /// Enqueues a product of weights of the format of this number.
    pub(crate) fn run(
        &mut self,
        format: usize,
        context: &ComputeContext<'_, CudaSurface>,
        product: Product,
    ) -> Result<Addresses, ComputeError> {
        let layer = &mut self.layers.as_mut().map_err(|error| error.clone())?[format];
        let LinearSpec { recipe, dgrad, .. } = *layer.spec();
        match product {
            Product::Forward { weight, x, y } => {
                let at = address(context, weight, Orientation::Rowwise, recipe.form())?;
                let weight = Weight::of(context, weight, Orientation::Rowwise, recipe.form())?;
                let (x, y) = (context.read::<bf16>(x)?, context.write::<bf16>(y)?);
                let addresses = [at, y.address().number()];
                layer.forward(context.handles(), x, &weight, y)?;
                Ok(addresses)
            }
            Product::Backward { weight, x, dy, dx } => {
                let lent = Weight::of(context, weight, dgrad, recipe.form())?;
                let dw = context.gradient(weight)?;
                let addresses = [address(context, weight, dgrad, recipe.form())?, dw.address().number()];
                let operands = BackwardOperands {
                    dy: context.read::<bf16>(dy)?,
                    weight: &lent,
                    x: context.read::<bf16>(x)?,
                    dx: context.write::<bf16>(dx)?.into(),
                    dw: Output::F32(dw),
                };
                layer.backward(context.handles(), operands)?;
                Ok(addresses)
            }
        }
    }
}

/// A buffer into another, as a call does it that computes nothing.
pub(crate) fn copy_buffer<T: Element>(
    context: &ComputeContext<'_, CudaSurface>,
    [from, to]: [&str; 2],
) -> Result<(), ComputeError> {
    copy(context.handles(), context.read_named::<T>(from)?, context.write_named::<T>(to)?)
}

/// A buffer into the gradient of a weight.
pub(crate) fn copy_gradient(
    context: &ComputeContext<'_, CudaSurface>,
    [from, weight]: [&str; 2],
) -> Result<(), ComputeError> {
    copy(context.handles(), context.read_named::<f32>(from)?, context.gradient_named(weight)?)
}

/// AdamW by the library's kernel, as a custom optimizer enqueues it: one launch for the weights of an update, made
/// when they first come.
pub(crate) struct CustomOptimizer {
    kernels: Option<Kernels>,
    /// By the first weight of an update and the vote of its plan.
    launches: BTreeMap<(WeightId, u64), KernelLaunch>,
}

impl CustomOptimizer {
    pub(crate) fn new() -> Self {
        Self { kernels: None, launches: BTreeMap::new() }
    }

    pub(crate) fn adamw(&mut self, context: &UpdateContext<'_, CudaSurface>) -> Result<(), ComputeError> {
        let first = context.weights().next().map(|weight| weight.id).unwrap();
        let key = (first, context.vote()?.address().number());
        if !self.launches.contains_key(&key) {
            let launch = self.launch(context)?;
            self.launches.insert(key, launch);
        }
        // What the launch was made with: the addresses of a plan never move.
        for weight in context.weights() {
            context.master(weight.id)?;
        }
        // SAFETY: the stream is the session's, its context is current, and the launch touches what was lent for this
        // plan. It lives as long as the rank, and no two of its runs overlap on one stream.
        unsafe { self.launches[&key].enqueue(context.handles().stream()) }?;
        Ok(())
    }

    /// The gradient, as it is.
    pub(crate) fn prepare(context: &PrepareContext<'_, CudaSurface>) -> Result<(), ComputeError> {
        context.weights().try_for_each(|weight| {
            copy(context.handles(), context.main_grad(weight.id)?, context.prepared(weight.id)?)
        })
    }

    /// The matrix, as it is.
    pub(crate) fn transform(context: &TransformContext<'_, CudaSurface>) -> Result<(), ComputeError> {
        copy(context.handles(), context.matrix()?, context.transformed()?)
    }

    fn launch(&mut self, context: &UpdateContext<'_, CudaSurface>) -> Result<KernelLaunch, ComputeError> {
        let kernels = match &self.kernels {
            Some(kernels) => kernels,
            None => self.kernels.insert(Kernels::for_current_context(KernelCache::of_user())?),
        };
        let operand = |weight: &UpdatedWeight| -> Result<AdamOperand, ComputeError> {
            let id = weight.id;
            let gradient = match weight.whole_matrix {
                true => context.transformed(id)?,
                false => context.main_grad(id)?,
            };
            Ok(AdamOperand {
                master: MasterState::Whole(context.master(id)?.address()),
                exp_avg: context.state(id, "first")?.address(),
                exp_avg_sq: context.state(id, "second")?.address(),
                main_grad: gradient.address(),
                hyperparameters: context.hyperparameters(id)?.address(),
                elements: gradient.len(),
            })
        };
        let operands: Vec<_> = context.weights().map(operand).collect::<Result<_, ComputeError>>()?;
        let settings =
            OptimizerSettings { mode: AdamMode::AdamW, epsilon: 1e-8, bias_correction: true, max_norm: 0.0 };
        let any = Bounds { master: f32::MAX, moment: f32::MAX, diverged: DeviceAddress::NULL };
        let vote = context.vote()?.address();
        Ok(kernels.adam(&settings, Moments::F32, &operands, vote, any)?)
    }
}

fn copy<T: Element>(
    handles: &CudaHandles,
    from: DeviceSlice<'_, T>,
    to: DeviceSliceMut<'_, T>,
) -> Result<(), ComputeError> {
    let bytes = to.len() * size_of::<T>();
    if bytes == 0 {
        return Ok(()); // this rank has no rows of it
    }
    let (target, source) = (to.address().number(), from.address().number());
    // SAFETY: both were lent for this plan, are as long, and lie apart; the stream is the session's.
    unsafe { memcpy_dtod_async(target, source, bytes, handles.stream()) }.map_err(ComputeError::closure)
}

/// Where a weight lies that a call uses.
fn address(
    context: &ComputeContext<'_, CudaSurface>,
    weight: WeightId,
    orientation: Orientation,
    form: Form,
) -> Result<u64, ComputeError> {
    let address = match form {
        Form::Planes => context.planes(weight, orientation)?.data.address(),
        Form::DenseBf16 => context.dense_bf16(weight, orientation)?.address(),
        Form::Dense => context.dense(weight, orientation)?.address(),
    };
    Ok(address.number())
}
