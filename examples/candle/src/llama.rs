//! A Llama with the weights of candle's `llama2_c`, of which its training example trains one: the same names and
//! shapes as in a Hugging Face folder.
//!
//! candle's own has private blocks, and candle alone needs no others. This one has public ones, and no cache of keys
//! and values, which training does not use. `tests/llama.rs` compares the logits of both.

use candle_core::{D, DType, Module, Result, Tensor};
use candle_nn::ops::softmax;
use candle_nn::rotary_emb::rope_i_slow;
use candle_nn::{Embedding, Linear, RmsNorm, VarBuilder, embedding, linear_no_bias, rms_norm};

use crate::text::BYTES;

/// The sizes of a model.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Tokens that the embedding knows.
    pub vocabulary: usize,
    /// Values between blocks.
    pub width: usize,
    /// Values inside of a block's second half.
    pub inner: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, of which each serves as many of queries.
    pub key_value_heads: usize,
    /// Positions of a sequence, at most.
    pub length: usize,
    /// What keeps a norm from dividing by nothing.
    pub epsilon: f64,
}

impl Config {
    /// One that two cores train in seconds.
    pub const SMALL: Self = Self {
        vocabulary: BYTES,
        width: 64,
        inner: 176,
        layers: 4,
        heads: 4,
        key_value_heads: 2,
        length: 64,
        epsilon: 1e-5,
    };

    /// One of 303 million parameters, for GPUs.
    pub const WIDE: Self = Self {
        vocabulary: BYTES,
        width: 1024,
        inner: 2752,
        layers: 24,
        heads: 16,
        key_value_heads: 16,
        length: 512,
        epsilon: 1e-5,
    };

    fn head_width(&self) -> usize {
        self.width / self.heads
    }
}

/// What all blocks look up, and nobody trains.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Cosine and sine of the angles by which rope turns pairs of values, `[length, head width / 2]`.
    cosines: Tensor,
    sines: Tensor,
    /// What is added to the scores, `[length, length]`: −∞ for what comes later.
    mask: Tensor,
}

impl Cache {
    /// # Errors
    /// If candle cannot make a tensor.
    pub fn new(config: &Config, vb: VarBuilder<'_>) -> Result<Self> {
        let (length, width) = (config.length, config.head_width());
        let speeds = (0..width).step_by(2).map(|at| 10_000f32.powf(-(at as f32) / width as f32));
        let speeds = Tensor::from_iter(speeds, vb.device())?.reshape((1, ()))?;
        let places = Tensor::arange(0, length as u32, vb.device())?.to_dtype(DType::F32)?;
        let angles = places.reshape((length, 1))?.matmul(&speeds)?;
        let (cosines, sines) = (angles.cos()?, angles.sin()?);
        let later = |at: usize| if at % length > at / length { f32::NEG_INFINITY } else { 0.0 };
        let mask = Tensor::from_iter((0..length * length).map(later), vb.device())?;
        Ok(Self { cosines, sines, mask: mask.reshape((length, length))? })
    }
}

/// Queries, keys and values of a sequence to a mean of the values, which sees what is after alone.
#[derive(Clone, Debug)]
struct Attention {
    queries: Linear,
    keys: Linear,
    values: Linear,
    output: Linear,
    config: Config,
}

impl Attention {
    fn load(vb: VarBuilder<'_>, config: &Config) -> Result<Self> {
        let (width, narrow) = (config.width, config.head_width() * config.key_value_heads);
        Ok(Self {
            queries: linear_no_bias(width, width, vb.pp("q_proj"))?,
            keys: linear_no_bias(width, narrow, vb.pp("k_proj"))?,
            values: linear_no_bias(width, narrow, vb.pp("v_proj"))?,
            output: linear_no_bias(width, width, vb.pp("o_proj"))?,
            config: *config,
        })
    }

    fn forward(&self, x: &Tensor, cache: &Cache) -> Result<Tensor> {
        let (samples, length, width) = x.dims3()?;
        let Config { heads, key_value_heads, .. } = self.config;
        let head_width = self.config.head_width();
        // `[samples, heads, length, head width]`
        let split = |values: Tensor, heads: usize| {
            values.reshape((samples, length, heads, head_width))?.transpose(1, 2)?.contiguous()
        };
        let cosines = cache.cosines.narrow(0, 0, length)?;
        let sines = cache.sines.narrow(0, 0, length)?;
        let turned = |values: Tensor| rope_i_slow(&values, &cosines, &sines);
        // One of keys and values for each of queries.
        let repeated = |values: Tensor| {
            let all = (samples, key_value_heads, heads / key_value_heads, length, head_width);
            values.unsqueeze(2)?.expand(all)?.reshape((samples, heads, length, head_width))
        };
        let queries = turned(split(self.queries.forward(x)?, heads)?)?;
        let keys = repeated(turned(split(self.keys.forward(x)?, key_value_heads)?)?)?;
        let values = repeated(split(self.values.forward(x)?, key_value_heads)?)?;
        let scores = (queries.matmul(&keys.t()?)? / (head_width as f64).sqrt())?;
        let mask = cache.mask.narrow(0, 0, length)?.narrow(1, 0, length)?;
        let shares = softmax(&scores.broadcast_add(&mask)?, D::Minus1)?;
        let means = shares.matmul(&values)?.transpose(1, 2)?.reshape((samples, length, width))?;
        self.output.forward(&means)
    }
}

/// down · (silu(gate · x) × (up · x)).
#[derive(Clone, Debug)]
struct Gated {
    gate: Linear,
    up: Linear,
    down: Linear,
}

impl Gated {
    fn load(vb: VarBuilder<'_>, config: &Config) -> Result<Self> {
        let (width, inner) = (config.width, config.inner);
        Ok(Self {
            gate: linear_no_bias(width, inner, vb.pp("gate_proj"))?,
            up: linear_no_bias(width, inner, vb.pp("up_proj"))?,
            down: linear_no_bias(inner, width, vb.pp("down_proj"))?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.down.forward(&(self.gate.forward(x)?.silu()? * self.up.forward(x)?)?)
    }
}

/// Attention, then the gated product, each of a norm of its input and added to it.
#[derive(Clone, Debug)]
pub struct Block {
    before_attention: RmsNorm,
    attention: Attention,
    before_gated: RmsNorm,
    gated: Gated,
}

impl Block {
    /// With the weights of a builder.
    ///
    /// # Errors
    /// If the builder has no weight of a name and shape.
    pub fn load(vb: VarBuilder<'_>, config: &Config) -> Result<Self> {
        let norm = |name| rms_norm(config.width, config.epsilon, vb.pp(name));
        Ok(Self {
            before_attention: norm("input_layernorm")?,
            attention: Attention::load(vb.pp("self_attn"), config)?,
            before_gated: norm("post_attention_layernorm")?,
            gated: Gated::load(vb.pp("mlp"), config)?,
        })
    }

    /// `[samples, length, width]` to the same.
    ///
    /// # Errors
    /// If the input has another shape.
    pub fn forward(&self, x: &Tensor, cache: &Cache) -> Result<Tensor> {
        let x = (self.attention.forward(&self.before_attention.forward_diff(x)?, cache)? + x)?;
        self.gated.forward(&self.before_gated.forward_diff(&x)?)? + x
    }
}

/// A vector for each token.
#[derive(Clone, Debug)]
pub struct Embed {
    table: Embedding,
}

impl Embed {
    /// With the weights of a builder.
    ///
    /// # Errors
    /// If the builder has no weight of a name and shape.
    pub fn load(vb: VarBuilder<'_>, config: &Config) -> Result<Self> {
        Ok(Self { table: embedding(config.vocabulary, config.width, vb.pp("model.embed_tokens"))? })
    }
}

impl Module for Embed {
    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        self.table.forward(tokens)
    }
}

/// The last norm, and logits.
#[derive(Clone, Debug)]
pub struct Head {
    norm: RmsNorm,
    map: Linear,
}

impl Head {
    /// With the weights of a builder.
    ///
    /// # Errors
    /// If the builder has no weight of a name and shape.
    pub fn load(vb: VarBuilder<'_>, config: &Config) -> Result<Self> {
        let norm = rms_norm(config.width, config.epsilon, vb.pp("model.norm"))?;
        Ok(Self { norm, map: linear_no_bias(config.width, config.vocabulary, vb.pp("lm_head"))? })
    }
}

impl Module for Head {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.map.forward(&self.norm.forward_diff(x)?)
    }
}

/// The whole model.
#[derive(Clone, Debug)]
pub struct Llama {
    embed: Embed,
    blocks: Vec<Block>,
    head: Head,
}

impl Llama {
    /// With the weights of a builder.
    ///
    /// # Errors
    /// If the builder has no weight of a name and shape.
    pub fn load(vb: VarBuilder<'_>, config: &Config) -> Result<Self> {
        let block = |layer| Block::load(vb.pp(format!("model.layers.{layer}")), config);
        Ok(Self {
            embed: Embed::load(vb.clone(), config)?,
            blocks: (0..config.layers).map(block).collect::<Result<_>>()?,
            head: Head::load(vb, config)?,
        })
    }

    /// Tokens, `[samples, length]`, to logits, `[samples, length, vocabulary]`.
    ///
    /// # Errors
    /// If a sequence is longer than the model's.
    pub fn forward(&self, tokens: &Tensor, cache: &Cache) -> Result<Tensor> {
        let first = self.embed.forward(tokens)?;
        self.head.forward(&self.blocks.iter().try_fold(first, |x, block| block.forward(&x, cache))?)
    }
}
