//! Products of the experts of whole sessions, on the CPU: bf16 values, sums in f32.

use half::bf16;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{Element, Format, Orientation};
use warpweft_plan::compute::{ComputeContext, ComputeError, PrepareContext, TransformContext, UpdateContext};
use warpweft_plan::model::Form;
use warpweft_session::config::Config;
use warpweft_session::session::{Session, SessionBuilder};
use warpweft_testing::custom_adamw::adamw;
use warpweft_testing::products::{gradient_bf16, times_bf16};

use crate::bodies::captured::Addresses;
use crate::bodies::experts::{Product, WEIGHT};

pub(crate) type Surface = CpuSurface;

/// In what form calls use a weight.
pub(crate) fn form(_: Format) -> Form {
    Form::DenseBf16
}

/// In which orientation backward uses it.
pub(crate) fn turned(_: Format) -> Orientation {
    Orientation::Columnwise
}

/// Under the checker.
pub(crate) fn settled(config: Config) -> Config {
    Config { check: true, ..config }
}

pub(crate) async fn start(builder: SessionBuilder<CpuSurface>, ranks: u32) -> Session {
    builder.start_cpu(ranks).await.unwrap()
}

/// The products of a rank, which need nothing.
pub(crate) struct Layers;

impl Layers {
    pub(crate) fn new(_: RankId, _: &[Format]) -> Self {
        Self
    }

    #[allow(clippy::unused_self, reason = "products of other devices have state")]
    pub(crate) fn run(
        &mut self,
        _: usize,
        context: &ComputeContext<'_, CpuSurface>,
        product: Product,
    ) -> Result<Addresses, ComputeError> {
        match product {
            Product::Forward { weight, x, y } => {
                let weight = context.dense_bf16(weight, Orientation::Rowwise)?;
                let mut y = context.write::<bf16>(y)?;
                times_bf16(&weight, &context.read::<bf16>(x)?, WEIGHT.cols, &mut y);
                Ok([weight.as_ptr().addr() as u64, y.as_ptr().addr() as u64])
            }
            Product::Backward { weight, x, dy, dx } => {
                let turned = context.dense_bf16(weight, Orientation::Columnwise)?;
                let (x, dy) = (context.read::<bf16>(x)?, context.read::<bf16>(dy)?);
                times_bf16(&turned, &dy, WEIGHT.cols, &mut context.write::<bf16>(dx)?);
                let mut dw = context.gradient(weight)?;
                gradient_bf16(&dy, &x, WEIGHT.cols, &mut dw);
                Ok([turned.as_ptr().addr() as u64, dw.as_ptr().addr() as u64])
            }
        }
    }
}

/// A buffer into another, as a call does it that computes nothing.
pub(crate) fn copy_buffer<T: Element>(
    context: &ComputeContext<'_, CpuSurface>,
    [from, to]: [&str; 2],
) -> Result<(), ComputeError> {
    context.write_named::<T>(to)?.copy_from_slice(&context.read_named::<T>(from)?);
    Ok(())
}

/// A buffer into the gradient of a weight.
pub(crate) fn copy_gradient(
    context: &ComputeContext<'_, CpuSurface>,
    [from, weight]: [&str; 2],
) -> Result<(), ComputeError> {
    context.gradient_named(weight)?.copy_from_slice(&context.read_named::<f32>(from)?);
    Ok(())
}

/// A custom optimizer, which needs nothing either.
pub(crate) struct CustomOptimizer;

impl CustomOptimizer {
    pub(crate) fn new() -> Self {
        Self
    }

    #[allow(clippy::unused_self, reason = "rules of other devices have state")]
    pub(crate) fn adamw(&mut self, context: &UpdateContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        adamw(context)
    }

    /// The gradient, as it is.
    pub(crate) fn prepare(context: &PrepareContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        context.weights().try_for_each(|weight| {
            context.prepared(weight.id)?.copy_from_slice(&context.main_grad(weight.id)?);
            Ok(())
        })
    }

    /// The matrix, as it is.
    pub(crate) fn transform(context: &TransformContext<'_, CpuSurface>) -> Result<(), ComputeError> {
        context.transformed()?.copy_from_slice(&context.matrix()?);
        Ok(())
    }
}
