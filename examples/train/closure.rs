//! The closure of one rank: looks a call up and hands the operands it declared to the rank's arithmetic.
//!
//! Law: nothing here outlives a call, and nothing here knows what a slice is: the same closure serves every
//! [`Surface`] that somebody wrote the [`Arithmetic`] for. What the rank computes follows from the declared
//! buffers and weights alone.

use warpweft::compute::{Compute, ComputeContext, ComputeError, Surface};
use warpweft::format::Orientation;
use warpweft::model::Call;

use crate::program::{Declared, Part};
use crate::{attention, head, mlp};

/// Memory to read.
type Read<'a, S, T> = <S as Surface>::Read<'a, T>;
/// Memory to write.
type Write<'a, S, T> = <S as Surface>::Write<'a, T>;

/// The mathematics of the calls on one kind of memory. Shapes are those of `attention`, `mlp`, `head` and
/// `embedding`; scratch is the implementation's own, and no call reads what another left there.
pub(crate) trait Arithmetic<S: Surface + 'static> {
    /// Comes before each of the others, with what the backend hands to closures beside memory.
    fn begin(&mut self, handles: &S::Handles) -> Result<(), ComputeError>;

    /// `x = table[tokens]`.
    fn embed(
        &mut self,
        tokens: Read<'_, S, u8>,
        table: Read<'_, S, f32>,
        x: Write<'_, S, f32>,
    ) -> Result<(), ComputeError>;

    /// The embedding's contribution to the table's gradient.
    fn embed_backward(
        &mut self,
        tokens: Read<'_, S, u8>,
        residual: Read<'_, S, f32>,
        table: Write<'_, S, f32>,
    ) -> Result<(), ComputeError>;

    /// `y = x + attention(norm(x))`.
    fn attention(
        &mut self,
        x: Read<'_, S, f32>,
        weights: attention::Weights<Read<'_, S, f32>>,
        keep: attention::Kept<Write<'_, S, f32>>,
        y: Write<'_, S, f32>,
    ) -> Result<(), ComputeError>;

    /// Its backward; `residual` goes from the gradient of `y` to that of `x`, matrices come transposed. A gradient
    /// that is `None` belongs to a frozen weight and is not computed.
    fn attention_backward(
        &mut self,
        x: Read<'_, S, f32>,
        weights: attention::Weights<Read<'_, S, f32>>,
        kept: attention::Kept<Read<'_, S, f32>>,
        gradients: attention::Weights<Option<Write<'_, S, f32>>>,
        residual: Write<'_, S, f32>,
    ) -> Result<(), ComputeError>;

    /// `y = x + mlp(norm(x))`.
    fn mlp(
        &mut self,
        x: Read<'_, S, f32>,
        weights: mlp::Weights<Read<'_, S, f32>>,
        hidden: Write<'_, S, f32>,
        y: Write<'_, S, f32>,
    ) -> Result<(), ComputeError>;

    /// Its backward, as that of attention.
    fn mlp_backward(
        &mut self,
        x: Read<'_, S, f32>,
        weights: mlp::Weights<Read<'_, S, f32>>,
        hidden: Read<'_, S, f32>,
        gradients: mlp::Weights<Option<Write<'_, S, f32>>>,
        residual: Write<'_, S, f32>,
    ) -> Result<(), ComputeError>;

    /// Writes the mean loss, and with `backward` the gradients too.
    fn head(
        &mut self,
        x: Read<'_, S, f32>,
        weights: head::Weights<Read<'_, S, f32>>,
        targets: Read<'_, S, u8>,
        loss: Write<'_, S, f32>,
        backward: Option<HeadBackward<Write<'_, S, f32>>>,
    ) -> Result<(), ComputeError>;
}

/// What the head writes in a training step, beside the loss.
pub(crate) struct HeadBackward<T> {
    /// Gradients of its weights that train.
    pub(crate) gradients: head::Weights<Option<T>>,
    /// The gradient of `x`.
    pub(crate) residual: T,
}

/// One rank's transformer.
pub(crate) struct Transformer<A> {
    declared: Declared,
    arithmetic: A,
}

impl<A> Transformer<A> {
    /// A transformer that computes with `arithmetic`.
    pub(crate) fn new(declared: &Declared, arithmetic: A) -> Self {
        Self { declared: declared.clone(), arithmetic }
    }
}

/// A call's operands by name.
struct Operands<'c, 'a, S: Surface> {
    declared: &'c Declared,
    context: &'c ComputeContext<'a, S>,
}

impl<'a, S: Surface + 'static> Operands<'_, 'a, S> {
    fn dense(&self, name: &str, way: Orientation) -> Result<Read<'a, S, f32>, ComputeError> {
        self.context.dense(self.declared.weight(name), way)
    }

    /// `None` of a frozen weight: no call declares its gradient.
    fn gradient(&self, name: &str) -> Result<Option<Write<'a, S, f32>>, ComputeError> {
        let weight = self.declared.weight(name);
        self.declared.trains(weight).then(|| self.context.gradient(weight)).transpose()
    }

    fn read(&self, name: &str) -> Result<Read<'a, S, f32>, ComputeError> {
        self.context.read(self.declared.buffer(name))
    }

    fn write(&self, name: &str) -> Result<Write<'a, S, f32>, ComputeError> {
        self.context.write(self.declared.buffer(name))
    }

    /// `tokens` or `targets`.
    fn bytes(&self, name: &str) -> Result<Read<'a, S, u8>, ComputeError> {
        self.context.read(self.declared.buffer(name))
    }
}

impl<A> Transformer<A> {
    fn attention<S>(&mut self, layer: usize, context: &ComputeContext<'_, S>) -> Result<(), ComputeError>
    where
        S: Surface + 'static,
        A: Arithmetic<S>,
    {
        let operands = Operands { declared: &self.declared, context };
        let name = |part: &str| format!("blocks.{layer}.attention.{part}");
        let dense = |part: &str| operands.dense(&name(part), Orientation::Rowwise);
        let write = |part: &str| operands.write(&name(part));
        let weights =
            attention::Weights { gain: dense("gain")?, qkv: dense("qkv")?, output: dense("output")? };
        let keep = attention::Kept {
            rotated: write("rotated")?,
            logsumexp: write("logsumexp")?,
            mixed: write("mixed")?,
        };
        let x = operands.read(&format!("residual.{}", 2 * layer))?;
        let y = operands.write(&format!("residual.{}", 2 * layer + 1))?;
        self.arithmetic.attention(x, weights, keep, y)
    }

    fn attention_backward<S>(
        &mut self,
        layer: usize,
        context: &ComputeContext<'_, S>,
    ) -> Result<(), ComputeError>
    where
        S: Surface + 'static,
        A: Arithmetic<S>,
    {
        let operands = Operands { declared: &self.declared, context };
        let name = |part: &str| format!("blocks.{layer}.attention.{part}");
        let dense = |part: &str, way| operands.dense(&name(part), way);
        let gradient = |part: &str| operands.gradient(&name(part));
        let read = |part: &str| operands.read(&name(part));
        let weights = attention::Weights {
            gain: dense("gain", Orientation::Rowwise)?,
            qkv: dense("qkv", Orientation::Columnwise)?,
            output: dense("output", Orientation::Columnwise)?,
        };
        let kept = attention::Kept {
            rotated: read("rotated")?,
            logsumexp: read("logsumexp")?,
            mixed: read("mixed")?,
        };
        let gradients = attention::Weights {
            gain: gradient("gain")?,
            qkv: gradient("qkv")?,
            output: gradient("output")?,
        };
        let x = operands.read(&format!("residual.{}", 2 * layer))?;
        let residual = operands.write("residual.gradient")?;
        self.arithmetic.attention_backward(x, weights, kept, gradients, residual)
    }

    fn mlp<S>(&mut self, layer: usize, context: &ComputeContext<'_, S>) -> Result<(), ComputeError>
    where
        S: Surface + 'static,
        A: Arithmetic<S>,
    {
        let operands = Operands { declared: &self.declared, context };
        let name = |part: &str| format!("blocks.{layer}.mlp.{part}");
        let dense = |part: &str| operands.dense(&name(part), Orientation::Rowwise);
        let weights = mlp::Weights { gain: dense("gain")?, up: dense("up")?, down: dense("down")? };
        let x = operands.read(&format!("residual.{}", 2 * layer + 1))?;
        let hidden = operands.write(&name("hidden"))?;
        let y = operands.write(&format!("residual.{}", 2 * layer + 2))?;
        self.arithmetic.mlp(x, weights, hidden, y)
    }

    fn mlp_backward<S>(&mut self, layer: usize, context: &ComputeContext<'_, S>) -> Result<(), ComputeError>
    where
        S: Surface + 'static,
        A: Arithmetic<S>,
    {
        let operands = Operands { declared: &self.declared, context };
        let name = |part: &str| format!("blocks.{layer}.mlp.{part}");
        let dense = |part: &str, way| operands.dense(&name(part), way);
        let gradient = |part: &str| operands.gradient(&name(part));
        let weights = mlp::Weights {
            gain: dense("gain", Orientation::Rowwise)?,
            up: dense("up", Orientation::Columnwise)?,
            down: dense("down", Orientation::Columnwise)?,
        };
        let gradients =
            mlp::Weights { gain: gradient("gain")?, up: gradient("up")?, down: gradient("down")? };
        let x = operands.read(&format!("residual.{}", 2 * layer + 1))?;
        let hidden = operands.read(&name("hidden"))?;
        let residual = operands.write("residual.gradient")?;
        self.arithmetic.mlp_backward(x, weights, hidden, gradients, residual)
    }

    fn head<S>(&mut self, trains: bool, context: &ComputeContext<'_, S>) -> Result<(), ComputeError>
    where
        S: Surface + 'static,
        A: Arithmetic<S>,
    {
        let operands = Operands { declared: &self.declared, context };
        let weights = head::Weights {
            gain: operands.dense("head.gain", Orientation::Rowwise)?,
            table: operands.dense("embedding.table", Orientation::Rowwise)?,
        };
        let x = operands.read(&format!("residual.{}", 2 * self.declared.layers))?;
        let (targets, loss) = (operands.bytes("targets")?, operands.write("loss")?);
        let backward = if trains {
            let gradients = head::Weights {
                gain: operands.gradient("head.gain")?,
                table: operands.gradient("embedding.table")?,
            };
            Some(HeadBackward { gradients, residual: operands.write("residual.gradient")? })
        } else {
            None
        };
        self.arithmetic.head(x, weights, targets, loss, backward)
    }
}

impl<S: Surface + 'static, A: Arithmetic<S>> Compute<S> for Transformer<A> {
    fn run(&mut self, call: &Call, context: &ComputeContext<'_, S>) -> Result<(), ComputeError> {
        let part = self.declared.parts.get(&call.name).copied();
        let part = part.ok_or_else(|| ComputeError::closure(format!("no part is named `{}`", call.name)))?;
        self.arithmetic.begin(context.handles())?;
        match part {
            Part::Embed => {
                let operands = Operands { declared: &self.declared, context };
                let table = operands.dense("embedding.table", Orientation::Rowwise)?;
                self.arithmetic.embed(operands.bytes("tokens")?, table, operands.write("residual.0")?)
            }
            Part::EmbedBackward => {
                let operands = Operands { declared: &self.declared, context };
                let (tokens, residual) = (operands.bytes("tokens")?, operands.read("residual.gradient")?);
                let Some(table) = operands.gradient("embedding.table")? else { return Ok(()) };
                self.arithmetic.embed_backward(tokens, residual, table)
            }
            Part::Attention(layer) => self.attention(layer, context),
            Part::AttentionBackward(layer) => self.attention_backward(layer, context),
            Part::Mlp(layer) => self.mlp(layer, context),
            Part::MlpBackward(layer) => self.mlp_backward(layer, context),
            Part::Head => self.head(true, context),
            Part::Evaluate => self.head(false, context),
        }
    }
}
