//! A byte-level transformer in burn, as its blocks, and its training by burn alone.

use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig, RmsNorm, RmsNormConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::activation::{silu, softmax};
use burn::tensor::{Device, Int, Tensor, TensorData};
use warpweft_burn::{Inputs, Output, Settings, Sharded};

pub(crate) const VOCABULARY: usize = 64;
pub(crate) const WIDTH: usize = 32;
pub(crate) const TOKENS: usize = 16;
pub(crate) const BLOCKS: usize = 2;
pub(crate) const RATE: f64 = 3e-3;
const HEADS: usize = 2;

/// A batch: tokens, and the next token after each.
pub(crate) type Pair = (Tensor<2, Int>, Tensor<1, Int>);

pub(crate) fn adam() -> AdamWConfig {
    AdamWConfig::new().with_beta_2(0.99).with_epsilon(1e-8).with_weight_decay(0.01)
}

pub(crate) fn device() -> Device {
    Device::flex().autodiff()
}

#[derive(Module, Debug)]
pub(crate) struct Layer {
    norms: [RmsNorm; 2],
    qkv: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
}

impl Layer {
    fn new(device: &Device) -> Self {
        let norm = || RmsNormConfig::new(WIDTH).init(device);
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init(device);
        Self {
            norms: [norm(), norm()],
            qkv: linear(WIDTH, 3 * WIDTH),
            out: linear(WIDTH, WIDTH),
            up: linear(WIDTH, 2 * WIDTH),
            down: linear(2 * WIDTH, WIDTH),
        }
    }

    pub(crate) fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let [samples, tokens, width] = x.dims();
        let qkv = self.qkv.forward(self.norms[0].forward(x.clone()));
        let part = |number: usize| {
            let part = qkv.clone().narrow(2, number * width, width);
            part.reshape([samples, tokens, HEADS, width / HEADS]).swap_dims(1, 2)
        };
        let scores = part(0).matmul(part(1).swap_dims(2, 3)) / ((width / HEADS) as f64).sqrt();
        let mask = generate_autoregressive_mask(samples, tokens, &x.device()).unsqueeze_dim::<4>(1);
        let attended = softmax(scores.mask_fill(mask, f32::NEG_INFINITY), 3).matmul(part(2));
        let x = x + self.out.forward(attended.swap_dims(1, 2).reshape([samples, tokens, width]));
        let inner = silu(self.up.forward(self.norms[1].forward(x.clone())));
        x + self.down.forward(inner)
    }
}

#[derive(Module, Debug)]
pub(crate) struct Model {
    pub(crate) embed: Embedding,
    pub(crate) layers: Vec<Layer>,
    pub(crate) norm: RmsNorm,
    pub(crate) map: Linear,
}

impl Model {
    /// One whose values follow from the seed, whatever other tests draw.
    pub(crate) fn new(seed: u64) -> Self {
        let device = device();
        let model = Self {
            embed: EmbeddingConfig::new(VOCABULARY, WIDTH).init(&device),
            layers: (0..BLOCKS).map(|_| Layer::new(&device)).collect(),
            norm: RmsNormConfig::new(WIDTH).init(&device),
            map: LinearConfig::new(WIDTH, VOCABULARY).with_bias(false).init(&device),
        };
        drawn(model, seed)
    }

    pub(crate) fn logits(&self, x: Tensor<2, Int>) -> Tensor<2> {
        let mut x = self.embed.forward(x);
        for layer in &self.layers {
            x = layer.forward(x);
        }
        self.head(x)
    }

    /// As one predicts, where burn computes a few things otherwise than in a graph.
    pub(crate) fn predicted(&self, x: Tensor<2, Int>) -> Vec<f32> {
        let logits = self.valid().logits(x.without_autodiff());
        logits.into_data().as_slice::<f32>().unwrap().to_vec()
    }

    pub(crate) fn head(&self, x: Tensor<3>) -> Tensor<2> {
        self.map.forward(self.norm.forward(x)).flatten(0, 1)
    }
}

pub(crate) fn cross_entropy(logits: Tensor<2>, y: Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, y)
}

/// The module with matrices that follow from the seed: burn draws all of a process from one seed.
pub(crate) fn drawn<M: Module>(module: M, seed: u64) -> M {
    module.map(&mut Draw(seed))
}

struct Draw(u64);

impl burn::module::ModuleMapper for Draw {
    fn map_float<const D: usize>(
        &mut self,
        parameter: burn::module::Param<Tensor<D>>,
    ) -> burn::module::Param<Tensor<D>> {
        if D == 1 {
            return parameter;
        }
        let number = |this: &mut Self| {
            this.0 = this.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (this.0 >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        let (id, value, mapper) = parameter.consume();
        let from = value.dims()[0];
        let count = value.shape().num_elements();
        let scale = 2.0 * (1.0 / from as f32).sqrt();
        let values: Vec<f32> = (0..count).map(|_| scale * number(self)).collect();
        let drawn = Tensor::<D>::from_data(TensorData::new(values, value.shape()), &value.device());
        burn::module::Param::from_mapped_value(id, drawn.set_require_grad(value.is_require_grad()), mapper)
    }
}

/// The model's blocks and its loss.
pub(crate) fn sharded(settings: impl Into<Settings>, model: Model) -> Sharded<Model> {
    Sharded::new(settings, model)
        .learning_rate(RATE)
        .block("embed", |model: &Model, x: Tensor<2, Int>| model.embed.forward(x))
        .blocks(BLOCKS, |number, model, x: Tensor<3>| model.layers[number].forward(x))
        .block("head", |model, x: Tensor<3>| model.head(x))
        .loss(cross_entropy)
}

/// The model with `middle` in the place of its layers, of which it reads the first.
pub(crate) fn with_middle<X: Inputs, Y: Output>(
    middle: impl Fn(&Model, X) -> Y + Send + Sync + 'static,
) -> Sharded<Model> {
    Sharded::new(adam(), Model::new(1))
        .learning_rate(RATE)
        .block("embed", |model: &Model, x: Tensor<2, Int>| model.embed.forward(x))
        .block("middle", middle)
        .block("head", |model, x: Tensor<3>| model.head(x))
        .loss(cross_entropy)
        .may_be_unused("layers.1.*")
}

/// The same model, trained by burn alone.
pub(crate) struct Alone {
    pub(crate) model: Model,
    optimizer: ModuleOptimizer,
}

impl Alone {
    pub(crate) fn new(model: Model) -> Self {
        Self { model, optimizer: adam().init() }
    }

    pub(crate) fn loss(&self, (x, y): Pair) -> Tensor<1> {
        cross_entropy(self.model.logits(x), y)
    }

    pub(crate) fn step(&mut self, batch: Pair) -> f32 {
        self.step_in_parts(batch, 1)
    }

    /// A step whose gradient is the mean of those of `parts` of the batch.
    pub(crate) fn step_in_parts(&mut self, (x, y): Pair, parts: usize) -> f32 {
        let (samples, each) = (x.dims()[0] / parts, y.dims()[0] / parts);
        let mut sum: Option<Tensor<1>> = None;
        for part in 0..parts {
            let x = x.clone().narrow(0, part * samples, samples);
            let loss = self.loss((x, y.clone().narrow(0, part * each, each)));
            sum = Some(match sum {
                None => loss,
                Some(sum) => sum + loss,
            });
        }
        let mean = sum.unwrap() / parts as f64;
        let gradients = GradientsParams::from_grads(mean.backward(), &self.model);
        self.model = self.optimizer.step(RATE, self.model.clone(), gradients);
        number(mean)
    }
}

pub(crate) fn number(scalar: Tensor<1>) -> f32 {
    scalar.into_data().as_slice::<f32>().unwrap()[0]
}

/// A batch of a text that repeats itself, which depends on the step alone.
pub(crate) fn batch(step: usize, samples: usize) -> Pair {
    let token = |at: usize| ((at * at / 3 + at * 7) % VOCABULARY) as i64;
    let place = |sample: usize| (step * 131 + sample * 17) % 192;
    let tokens = |ahead: usize| {
        let all =
            (0..samples).flat_map(|sample| (0..TOKENS).map(move |at| token(place(sample) + at + ahead)));
        let data = TensorData::new(all.collect::<Vec<i64>>(), [samples, TOKENS]);
        Tensor::<2, Int>::from_data(data, &device())
    };
    (tokens(0), tokens(1).flatten(0, 1))
}

/// The largest relative difference of two lists.
pub(crate) fn apart(one: &[f32], other: &[f32]) -> f32 {
    one.iter().zip(other).map(|(one, other)| ((one - other) / other).abs()).fold(0.0, f32::max)
}

/// The largest difference of two lists, relative to the largest of the second.
pub(crate) fn apart_of_largest(one: &[f32], other: &[f32]) -> f32 {
    let size = other.iter().fold(0.0_f32, |size, value| size.max(value.abs()));
    one.iter().zip(other).map(|(one, other)| (one - other).abs()).fold(0.0, f32::max) / size
}

/// All float parameters by their paths.
pub(crate) fn values<M: Module>(module: &M) -> std::collections::BTreeMap<String, Vec<f32>> {
    let mut found = Values { path: Vec::new(), all: std::collections::BTreeMap::new() };
    module.visit(&mut found);
    found.all
}

struct Values {
    path: Vec<String>,
    all: std::collections::BTreeMap<String, Vec<f32>>,
}

impl burn::module::ModuleVisitor for Values {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, parameter: &burn::module::Param<Tensor<D>>) {
        let values = parameter.base().into_data().as_slice::<f32>().unwrap().to_vec();
        self.all.insert(self.path.join("."), values);
    }
}

/// The gradients of all parameters by their paths.
pub(crate) fn gradients<M: Module>(
    module: &M,
    all: burn::tensor::Gradients,
) -> std::collections::BTreeMap<String, Vec<f32>> {
    let mut found = Taken { all, path: Vec::new(), found: std::collections::BTreeMap::new() };
    module.visit(&mut found);
    found.found
}

struct Taken {
    all: burn::tensor::Gradients,
    path: Vec<String>,
    found: std::collections::BTreeMap<String, Vec<f32>>,
}

impl burn::module::ModuleVisitor for Taken {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, parameter: &burn::module::Param<Tensor<D>>) {
        if let Some(gradient) = parameter.base().grad(&self.all) {
            let gradient = gradient.into_data().as_slice::<f32>().unwrap().to_vec();
            self.found.insert(self.path.join("."), gradient);
        }
    }
}
