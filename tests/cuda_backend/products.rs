//! Products of the experts of whole sessions, on a GPU: linear layers, native FP8 where there is such a product.

use half::bf16;
use warpweft::backend::cuda::{CudaSurface, DeviceOrdinal};
use warpweft::compute::{ComputeContext, ComputeError};
use warpweft::config::{ByteSize, Config, SignalBy, Transport};
use warpweft::format::{Format, Orientation};
use warpweft::id::{RankId, WeightId};
use warpweft::linear::{BackwardOperands, Device, Linear, LinearError, LinearSpec, Output, Recipe, Weight};
use warpweft::model::Form;
use warpweft::session::{Session, SessionBuilder};

use crate::bodies::experts::{Product, TOKENS, WEIGHT};
use crate::bodies::recorded::Addresses;
use crate::device::{Way, way};

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
    let mut gpus = DeviceOrdinal::all().unwrap();
    gpus.truncate(ranks as usize);
    builder.start_cuda(gpus).await.unwrap()
}

/// The products of a rank: a layer for each format.
pub(crate) struct Layers {
    /// What a factory failed at is said by every call.
    layers: Result<Vec<Linear>, LinearError>,
}

impl Layers {
    pub(crate) fn new(rank: RankId, formats: &[Format]) -> Self {
        let gpu = DeviceOrdinal::all().unwrap()[rank.index()];
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
