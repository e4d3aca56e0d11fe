//! Texts as a batch: tokens, which of them are padding, and for each the one that follows.

use burn::nn::attention::{GeneratePaddingMask, SeqLengthOption, generate_padding_mask};
use burn::tensor::{Bool, Device, Int, Tensor};

use super::tokenizer::Tokenizer;

/// Makes batches of one length.
pub struct TextGenerationBatcher<T> {
    tokenizer: T,
    max_seq_length: usize,
}

/// A batch to train on, each `[samples, length]`.
#[derive(Clone, Debug)]
pub struct TrainingTextGenerationBatch {
    /// Tokens.
    pub tokens_inputs: Tensor<2, Int>,
    /// The token after each.
    pub targets: Tensor<2, Int>,
    /// Which tokens are padding.
    pub mask_pad: Tensor<2, Bool>,
}

/// What the model gets, tokens and which are padding, and the targets.
pub type Pair = ((Tensor<2, Int>, Tensor<2, Bool>), Tensor<2, Int>);

impl TrainingTextGenerationBatch {
    /// What the model gets, and the targets.
    #[must_use]
    pub fn into_pair(self) -> Pair {
        ((self.tokens_inputs, self.mask_pad), self.targets)
    }
}

impl<T: Tokenizer> TextGenerationBatcher<T> {
    /// Of sequences of `max_seq_length` tokens; longer texts are cut, shorter ones filled up.
    pub const fn new(tokenizer: T, max_seq_length: usize) -> Self {
        Self { tokenizer, max_seq_length }
    }

    /// The batch of texts.
    pub fn batch(&self, texts: &[&str], device: &Device) -> TrainingTextGenerationBatch {
        let length = self.max_seq_length;
        let tokens = texts.iter().map(|text| self.tokenizer.encode(text, true)).collect();
        // One more: the first has no token before it, and the last none after it.
        let fixed = SeqLengthOption::Fixed(length + 1);
        let GeneratePaddingMask { tensor, mask } =
            generate_padding_mask(self.tokenizer.pad_token(), tokens, fixed, device);
        TrainingTextGenerationBatch {
            tokens_inputs: tensor.clone().narrow(1, 0, length),
            targets: tensor.narrow(1, 1, length),
            mask_pad: mask.narrow(1, 0, length),
        }
    }
}
