//! The model: tokens and their places, burn's transformer, and logits.

use burn::config::Config;
use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::tensor::{Bool, Device, Int, Tensor};

use super::tokenizer::PAD;

/// The sizes of a model.
#[derive(Config, Debug)]
pub struct TextGenerationModelConfig {
    /// Of the layers between.
    pub transformer: TransformerEncoderConfig,
    /// Tokens that the embedding knows.
    pub vocab_size: usize,
    /// Tokens of a sequence, at most.
    pub max_seq_length: usize,
}

impl TextGenerationModelConfig {
    /// One that two cores train in seconds, of `vocab_size` tokens, which drops nothing out.
    #[must_use]
    pub fn small(vocab_size: usize) -> Self {
        let transformer = TransformerEncoderConfig::new(64, 128, 4, 3).with_dropout(0.0);
        Self::new(transformer.with_norm_first(true).with_quiet_softmax(true), vocab_size, 48)
    }

    /// With values that burn draws.
    #[must_use]
    pub fn init(&self, device: &Device) -> TextGenerationModel {
        let width = self.transformer.d_model;
        TextGenerationModel {
            transformer: self.transformer.init(device),
            embedding_token: EmbeddingConfig::new(self.vocab_size, width).init(device),
            embedding_pos: EmbeddingConfig::new(self.max_seq_length, width).init(device),
            output: LinearConfig::new(width, self.vocab_size).init(device),
        }
    }
}

/// The whole model.
#[derive(Module, Debug)]
pub struct TextGenerationModel {
    /// The layers between.
    pub transformer: TransformerEncoder,
    /// A vector for each token.
    pub embedding_token: Embedding,
    /// A vector for each place.
    pub embedding_pos: Embedding,
    /// To logits.
    pub output: Linear,
}

impl TextGenerationModel {
    /// Tokens, `[samples, length]`, to what the first layer gets, `[samples, length, width]`.
    #[must_use]
    pub fn embed(&self, tokens: Tensor<2, Int>) -> Tensor<3> {
        let [samples, length] = tokens.dims();
        let places = Tensor::arange(0..length as i64, &tokens.device()).reshape([1, length]);
        let places = self.embedding_pos.forward(places.repeat_dim(0, samples));
        (places + self.embedding_token.forward(tokens)) / 2
    }

    /// One layer, whose tokens see those before them that are not padding.
    #[must_use]
    pub fn layer(&self, number: usize, x: Tensor<3>, mask_pad: Tensor<2, Bool>) -> Tensor<3> {
        let [samples, length, _] = x.dims();
        let mask_attn = generate_autoregressive_mask(samples, length, &x.device());
        self.transformer.layers[number].forward(x, Some(mask_pad), Some(mask_attn))
    }

    /// Tokens, and which are padding, `[samples, length]` both, to logits, `[samples, length, tokens]`.
    #[must_use]
    pub fn forward(&self, tokens: Tensor<2, Int>, mask_pad: &Tensor<2, Bool>) -> Tensor<3> {
        let layers = 0..self.transformer.layers.len();
        let x = layers.fold(self.embed(tokens), |x, number| self.layer(number, x, mask_pad.clone()));
        self.output.forward(x)
    }
}

/// The mean over the targets that are not padding.
#[must_use]
pub fn cross_entropy(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<1> {
    let loss = CrossEntropyLossConfig::new().with_pad_tokens(Some(vec![PAD])).init(&logits.device());
    loss.forward(logits.flatten(0, 1), targets.flatten(0, 1))
}

/// How many targets are not padding.
#[must_use]
pub fn count(targets: Tensor<2, Int>) -> Tensor<1> {
    targets.not_equal_scalar(PAD as i64).float().sum()
}
