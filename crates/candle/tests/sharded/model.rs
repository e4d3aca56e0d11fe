//! A byte-level transformer in candle, as its blocks, and its training by candle alone.

use candle_core::{D, DType, Device, Module, Result, Tensor};
use candle_nn::optim::{AdamW, Optimizer, ParamsAdamW};
use candle_nn::{
    Embedding, Linear, RmsNorm, VarBuilder, VarMap, embedding, linear_no_bias, loss, ops, rms_norm,
};
use warpweft_candle::Sharded;

pub(crate) const VOCABULARY: usize = 64;
pub(crate) const WIDTH: usize = 32;
pub(crate) const TOKENS: usize = 16;
pub(crate) const BLOCKS: usize = 2;
const HEADS: usize = 2;

pub(crate) fn rates() -> ParamsAdamW {
    ParamsAdamW { lr: 3e-3, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.01 }
}

pub(crate) fn embed(vb: VarBuilder<'_>) -> Result<Embedding> {
    embedding(VOCABULARY, WIDTH, vb.pp("model.embed"))
}

pub(crate) struct Layer {
    norms: [RmsNorm; 2],
    qkv: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
    mask: Tensor,
}

impl Layer {
    pub(crate) fn load(number: usize, vb: VarBuilder<'_>) -> Result<Self> {
        let vb = vb.pp(format!("model.layers.{number}"));
        let mask = |at: usize| if at % TOKENS > at / TOKENS { f32::NEG_INFINITY } else { 0.0 };
        let mask: Vec<f32> = (0..TOKENS * TOKENS).map(mask).collect();
        Ok(Self {
            norms: [rms_norm(WIDTH, 1e-5, vb.pp("norm1"))?, rms_norm(WIDTH, 1e-5, vb.pp("norm2"))?],
            qkv: linear_no_bias(WIDTH, 3 * WIDTH, vb.pp("qkv"))?,
            out: linear_no_bias(WIDTH, WIDTH, vb.pp("out"))?,
            up: linear_no_bias(WIDTH, 2 * WIDTH, vb.pp("up"))?,
            down: linear_no_bias(2 * WIDTH, WIDTH, vb.pp("down"))?,
            mask: Tensor::from_vec(mask, (TOKENS, TOKENS), vb.device())?.to_dtype(vb.dtype())?,
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (samples, tokens, width) = x.dims3()?;
        let qkv = self.qkv.forward(&self.norms[0].forward_diff(x)?)?;
        let part = |number: usize| -> Result<Tensor> {
            let part = qkv.narrow(2, number * width, width)?;
            part.reshape((samples, tokens, HEADS, width / HEADS))?.transpose(1, 2)?.contiguous()
        };
        let (q, k, v) = (part(0)?, part(1)?, part(2)?);
        let scores = (q.matmul(&k.t()?)? / ((width / HEADS) as f64).sqrt())?.broadcast_add(&self.mask)?;
        let attended = ops::softmax(&scores, D::Minus1)?.matmul(&v)?;
        let attended = attended.transpose(1, 2)?.reshape((samples, tokens, width))?;
        let x = (x + self.out.forward(&attended)?)?;
        let inner = self.up.forward(&self.norms[1].forward_diff(&x)?)?.silu()?;
        x + self.down.forward(&inner)?
    }
}

pub(crate) struct Head {
    norm: RmsNorm,
    map: Linear,
}

impl Head {
    pub(crate) fn load(vb: VarBuilder<'_>) -> Result<Self> {
        Ok(Self {
            norm: rms_norm(WIDTH, 1e-5, vb.pp("model.norm"))?,
            map: linear_no_bias(WIDTH, VOCABULARY, vb.pp("lm_head"))?,
        })
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.map.forward(&self.norm.forward_diff(x)?)?.flatten_to(1)
    }
}

/// The model's blocks and its loss.
pub(crate) fn sharded(settings: impl Into<warpweft_candle::Settings>) -> Sharded {
    Sharded::new(settings)
        .block("embed", |vb| {
            let e = embed(vb)?;
            Ok(move |x: &Tensor| e.forward(x))
        })
        .blocks(BLOCKS, |i, vb| {
            let b = Layer::load(i, vb)?;
            Ok(move |x: &Tensor| b.forward(x))
        })
        .block("head", |vb| {
            let h = Head::load(vb)?;
            Ok(move |x: &Tensor| h.forward(x))
        })
        .loss(loss::cross_entropy)
}

/// The same model, trained by candle alone.
pub(crate) struct Alone {
    embed: Embedding,
    layers: Vec<Layer>,
    head: Head,
    optimizer: AdamW,
}

impl Alone {
    pub(crate) fn new(map: &VarMap) -> Result<Self> {
        let vb = VarBuilder::from_varmap(map, DType::F32, &Device::Cpu);
        Ok(Self {
            embed: embed(vb.clone())?,
            layers: (0..BLOCKS).map(|number| Layer::load(number, vb.clone())).collect::<Result<_>>()?,
            head: Head::load(vb)?,
            optimizer: AdamW::new(map.all_vars(), rates())?,
        })
    }

    pub(crate) fn logits(&self, x: &Tensor) -> Result<Tensor> {
        let mut x = self.embed.forward(x)?;
        for layer in &self.layers {
            x = layer.forward(&x)?;
        }
        self.head.forward(&x)
    }

    pub(crate) fn loss(&self, (x, y): (&Tensor, &Tensor)) -> Result<Tensor> {
        loss::cross_entropy(&self.logits(x)?, y)
    }

    pub(crate) fn step(&mut self, batch: (&Tensor, &Tensor)) -> Result<f32> {
        self.step_in_parts(batch, 1)
    }

    /// A step whose gradient is the mean of those of `parts` of the batch.
    pub(crate) fn step_in_parts(&mut self, (x, y): (&Tensor, &Tensor), parts: usize) -> Result<f32> {
        let (mut sum, samples) = (0.0, x.dim(0)? / parts);
        let mut total: Option<Tensor> = None;
        for part in 0..parts {
            let x = x.narrow(0, part * samples, samples)?;
            let each = y.dim(0)? / parts;
            let loss = self.loss((&x, &y.narrow(0, part * each, each)?))?;
            sum += loss.to_scalar::<f32>()?;
            total = Some(match total {
                None => loss,
                Some(total) => (total + loss)?,
            });
        }
        let mean = (total.unwrap() / parts as f64)?;
        self.optimizer.backward_step(&mean)?;
        Ok(sum / parts as f32)
    }
}

/// A batch of a text that repeats itself, which depends on the step alone.
pub(crate) fn batch(step: usize, samples: usize) -> (Tensor, Tensor) {
    let token = |at: usize| ((at * at / 3 + at * 7) % VOCABULARY) as u32;
    let place = |sample: usize| (step * 131 + sample * 17) % 192;
    let tokens = |ahead: usize| {
        let all =
            (0..samples).flat_map(|sample| (0..TOKENS).map(move |at| token(place(sample) + at + ahead)));
        Tensor::from_vec(all.collect::<Vec<u32>>(), (samples, TOKENS), &Device::Cpu).unwrap()
    };
    (tokens(0), tokens(1).flatten_all().unwrap())
}

/// The largest relative difference of two lists.
pub(crate) fn apart(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| ((one - other) / other).abs()).fold(0.0, f32::max)
}

/// A small model with `middle` between embedding and head.
pub(crate) fn with_middle<C, F>(middle: C) -> Sharded
where
    C: Fn(VarBuilder<'static>) -> Result<F> + Send + Sync + 'static,
    F: Fn(&Tensor) -> Result<Tensor> + 'static,
{
    Sharded::new(rates())
        .block("embed", |vb| {
            let e = embed(vb)?;
            Ok(move |x: &Tensor| e.forward(x))
        })
        .block("middle", middle)
        .block("head", |vb| {
            let h = linear_no_bias(WIDTH, VOCABULARY, vb.pp("head"))?;
            Ok(move |x: &Tensor| h.forward(x)?.flatten_to(1))
        })
        .loss(loss::cross_entropy)
}
