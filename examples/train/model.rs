//! The model: its sizes, its parameters, the activations it keeps, the scratch it reuses.
//!
//! Law: this file alone knows the names and shapes. A call (`embedding`, `attention`, `mlp`, `head`)
//! receives slices of exactly these shapes and allocates nothing of its own. Matrices are row-major
//! `[rows, cols]` with rows = output features; activations are row-major `[tokens, features]`, where
//! token `b · sequence + t` is position `t` of text `b` of the rank's batch.
//!
//! The network: token embedding; blocks of `x + attention(norm(x))` and `x + mlp(norm(x))` with rotary
//! positions and GELU; a last norm; the embedding table again as the output head; cross-entropy.

/// One token per byte value.
pub(crate) const VOCABULARY: usize = 256;

/// The sizes of the model and of one rank's batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// Features of the residual stream.
    pub(crate) width: usize,
    /// Attention + MLP blocks.
    pub(crate) layers: usize,
    /// Attention heads; each has `width / heads` features.
    pub(crate) heads: usize,
    /// Features inside the MLP.
    pub(crate) hidden: usize,
    /// Tokens of one text of the batch.
    pub(crate) sequence: usize,
    /// Texts in one rank's batch.
    pub(crate) batch: usize,
}

impl Default for Config {
    fn default() -> Self {
        Config { width: 192, layers: 3, heads: 6, hidden: 768, sequence: 128, batch: 6 }
    }
}

/// Sizes that do not make a model.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{what} = {value}: {rule}")]
pub(crate) struct ConfigError {
    what: &'static str,
    value: usize,
    rule: &'static str,
}

impl Config {
    /// Checks the sizes; every other function of the model takes a checked config.
    pub(crate) fn check(self) -> Result<Self, ConfigError> {
        let rule = |holds: bool, what, value, rule| match holds {
            true => Ok(()),
            false => Err(ConfigError { what, value, rule }),
        };
        rule(self.layers > 0, "layers", self.layers, "at least one block")?;
        rule(self.sequence > 0, "sequence", self.sequence, "at least one token")?;
        rule(self.batch > 0, "batch", self.batch, "at least one text per rank")?;
        let tiled = |size: usize| size > 0 && size.is_multiple_of(16);
        rule(tiled(self.width), "width", self.width, "a multiple of 16, the side of a quantized tile")?;
        rule(tiled(self.hidden), "hidden", self.hidden, "a multiple of 16, the side of a quantized tile")?;
        let split = self.heads > 0 && self.width.is_multiple_of(2 * self.heads);
        rule(split, "heads", self.heads, "must divide the width into heads of an even number of features")?;
        Ok(self)
    }

    /// Tokens in one rank's batch.
    pub(crate) fn tokens(&self) -> usize {
        self.batch * self.sequence
    }

    /// Features of one head.
    pub(crate) fn head_width(&self) -> usize {
        self.width / self.heads
    }

    /// Floating-point operations of one `blocks.*.attention.forward` on one rank; backward: about 2.5 times.
    pub(crate) fn attention_flops(&self) -> u64 {
        (2 * self.tokens() * (4 * self.width * self.width + 2 * self.sequence * self.width)) as u64
    }

    /// Floating-point operations of one `blocks.*.mlp.forward` on one rank; backward: twice as many.
    pub(crate) fn mlp_flops(&self) -> u64 {
        (4 * self.tokens() * self.width * self.hidden) as u64
    }

    /// Floating-point operations of the head with its backward on one rank.
    pub(crate) fn head_flops(&self) -> u64 {
        (6 * self.tokens() * self.width * VOCABULARY) as u64
    }
}

/// The initial values of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Initial {
    /// Uniform around zero with this standard deviation: a matrix, to be sharded.
    Uniform {
        /// The standard deviation.
        deviation: f32,
    },
    /// All ones: a norm's gain, a replicated vector.
    Ones,
}

/// A trained tensor: a matrix, or a vector of `rows` elements with `cols = 1`.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    /// Unique.
    pub(crate) name: String,
    /// Output features.
    pub(crate) rows: usize,
    /// Input features.
    pub(crate) cols: usize,
    /// How it begins, and with that its kind.
    pub(crate) initial: Initial,
}

/// All parameters in the order of first use. The embedding table is also the head's matrix.
pub(crate) fn parameters(config: &Config) -> Vec<Parameter> {
    let (width, hidden) = (config.width, config.hidden);
    let matrix = |name: String, rows, cols, deviation| Parameter {
        name,
        rows,
        cols,
        initial: Initial::Uniform { deviation },
    };
    // Unit variance in, unit variance out; what is added to the residual stream is smaller, so that
    // its variance does not grow with depth (Radford et al. 2019).
    let keeping = |cols: usize| 1.0 / (cols as f32).sqrt();
    let adding = |cols: usize| keeping(cols) / (2.0 * config.layers as f32).sqrt();
    let gain = |name: String| Parameter { name, rows: width, cols: 1, initial: Initial::Ones };
    let mut all = vec![matrix("embedding.table".into(), VOCABULARY, width, 0.04)];
    for layer in 0..config.layers {
        let name = |part: &str| format!("blocks.{layer}.{part}");
        all.push(gain(name("attention.gain")));
        all.push(matrix(name("attention.qkv"), 3 * width, width, keeping(width)));
        all.push(matrix(name("attention.output"), width, width, adding(width)));
        all.push(gain(name("mlp.gain")));
        all.push(matrix(name("mlp.up"), hidden, width, keeping(width)));
        all.push(matrix(name("mlp.down"), width, hidden, adding(hidden)));
    }
    all.push(gain("head.gain".into()));
    all
}

/// An f32 activation that one call writes and a later one reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BufferSpec {
    /// Unique.
    pub(crate) name: String,
    /// Number of f32 elements.
    pub(crate) elements: usize,
}

/// Every activation of a step on one rank. `residual.i` is the stream before the i-th half block
/// (attention of block `l` reads `2l` and writes `2l + 1`, its MLP reads that and writes `2l + 2`);
/// `residual.gradient` is written by the head and updated by each backward call.
pub(crate) fn buffers(config: &Config) -> Vec<BufferSpec> {
    let (tokens, width) = (config.tokens(), config.width);
    let buffer = |name: String, elements| BufferSpec { name, elements };
    let mut all = vec![buffer("residual.0".into(), tokens * width)];
    for layer in 0..config.layers {
        let name = |part: &str| format!("blocks.{layer}.{part}");
        all.push(buffer(name("attention.rotated"), tokens * 3 * width));
        all.push(buffer(name("attention.logsumexp"), tokens * config.heads));
        all.push(buffer(name("attention.mixed"), tokens * width));
        all.push(buffer(format!("residual.{}", 2 * layer + 1), tokens * width));
        all.push(buffer(name("mlp.hidden"), tokens * config.hidden));
        all.push(buffer(format!("residual.{}", 2 * layer + 2), tokens * width));
    }
    all.push(buffer("residual.gradient".into(), tokens * width));
    all.push(buffer("loss".into(), 1));
    all
}

/// Scratch memory of calls, allocated once per rank. No call reads what another left here.
pub(crate) struct Scratch {
    /// `[tokens, width]`: the normalized input of the call.
    pub(crate) normalized: Vec<f32>,
    /// `[tokens, width]`: a gradient of that shape.
    pub(crate) gradient: Vec<f32>,
    /// `[tokens, hidden]`: the MLP's activations.
    pub(crate) activated: Vec<f32>,
    /// `[tokens, hidden]`: their gradient.
    pub(crate) hidden_gradient: Vec<f32>,
    /// `[tokens, 3 · width]`: the gradient of queries, keys and values.
    pub(crate) qkv_gradient: Vec<f32>,
    /// `[sequence, sequence]`: one head's probabilities.
    pub(crate) probabilities: Vec<f32>,
    /// `[sequence, sequence]`: their gradient.
    pub(crate) probability_gradient: Vec<f32>,
    /// `[tokens, VOCABULARY]`.
    pub(crate) logits: Vec<f32>,
    /// `[sequence, head_width / 2]` pairs (cosine, sine): the rotary angles, constant.
    pub(crate) rotations: Vec<(f32, f32)>,
}

impl Scratch {
    /// Scratch for every call of a model of these sizes.
    pub(crate) fn new(config: &Config) -> Self {
        let (tokens, sequence) = (config.tokens(), config.sequence);
        let zeros = |len: usize| vec![0.0; len];
        Scratch {
            normalized: zeros(tokens * config.width),
            gradient: zeros(tokens * config.width),
            activated: zeros(tokens * config.hidden),
            hidden_gradient: zeros(tokens * config.hidden),
            qkv_gradient: zeros(tokens * 3 * config.width),
            probabilities: zeros(sequence * sequence),
            probability_gradient: zeros(sequence * sequence),
            logits: zeros(tokens * VOCABULARY),
            rotations: crate::attention::rotations(sequence, config.head_width()),
        }
    }
}
