//! Products of the experts of whole sessions, on the CPU: bf16 values, sums in f32. Their order is that of `ndarray` on
//! this machine, so bits are compared within one run alone.

use half::bf16;
use ndarray::Array2;
use warpweft_backend::cpu::CpuSurface;
use warpweft_base::id::RankId;
use warpweft_format::{Format, Orientation};
use warpweft_plan::compute::{ComputeContext, ComputeError, PrepareContext, TransformContext, UpdateContext};
use warpweft_plan::model::Form;
use warpweft_session::config::Config;
use warpweft_session::session::{Session, SessionBuilder};
use warpweft_testing::custom_adamw::adamw;

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
                multiply(&weight, &context.read::<bf16>(x)?, &mut y);
                Ok([weight.as_ptr().addr() as u64, y.as_ptr().addr() as u64])
            }
            Product::Backward { weight, x, dy, dx } => {
                let turned = context.dense_bf16(weight, Orientation::Columnwise)?;
                let (x, dy) = (context.read::<bf16>(x)?, context.read::<bf16>(dy)?);
                multiply(&turned, &dy, &mut context.write::<bf16>(dx)?);
                let mut dw = context.gradient(weight)?;
                let product = matrix(&dy).t().dot(&matrix(&x));
                dw.iter_mut().zip(&product).for_each(|(dw, product)| *dw = *product);
                Ok([turned.as_ptr().addr() as u64, dw.as_ptr().addr() as u64])
            }
        }
    }
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

/// `into[T, lines] = tokens[T, width] · lines[lines, width]ᵀ`, summed in f32.
fn multiply(lines: &[bf16], tokens: &[bf16], into: &mut [bf16]) {
    let products = matrix(tokens).dot(&matrix(lines).t());
    into.iter_mut().zip(&products).for_each(|(into, product)| *into = bf16::from_f32(*product));
}

/// Rows as wide as the weight, which is square.
fn matrix(values: &[bf16]) -> Array2<f32> {
    let values: Vec<f32> = values.iter().map(|value| value.to_f32()).collect();
    Array2::from_shape_vec((values.len() / WEIGHT.cols, WEIGHT.cols), values).unwrap()
}
