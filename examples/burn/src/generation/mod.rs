//! A transformer that continues texts, of the parts that burn's example `text-generation` has, under their names: a
//! model around `TransformerEncoder`, a batcher, and a tokenizer behind a trait.
//!
//! The text is one in memory, its tokens are bytes, and nothing is dropped out, so that a run can be repeated.

mod batcher;
mod model;
mod tokenizer;

pub use batcher::{Pair, TextGenerationBatcher, TrainingTextGenerationBatch};
pub use model::{TextGenerationModel, TextGenerationModelConfig, count, cross_entropy};
pub use tokenizer::{ByteTokenizer, PAD, Tokenizer};
