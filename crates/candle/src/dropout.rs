//! Dropout whose mask is drawn from the seed, the step, the rank and the place in the model.
//!
//! Law: called again in the same step, as by recomputation, it draws the same mask. Outside of training steps, and in
//! a model that candle trains alone, it passes its input on.

use candle_core::{DType, Result, Tensor};
use candle_nn::{Init, VarBuilder};
use warpweft_base::noise::{mixed, unit};

/// The last part of the name of a tensor that tells a `Dropout` where it is.
const STATE: &str = "warpweft_dropout";

/// Words of the state.
const WORDS: usize = 6;

/// Is it the name of a dropout's state?
pub(crate) fn is_state(name: &str) -> bool {
    name.rsplit('.').next() == Some(STATE)
}

/// Where a dropout is called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) trains: bool,
    pub(crate) seed: u64,
    pub(crate) step: u32,
    pub(crate) rank: u32,
    pub(crate) micro_batch: u32,
}

impl Place {
    /// What a dropout reads.
    pub(crate) fn words(self) -> [u32; WORDS] {
        let Self { trains, seed, step, rank, micro_batch } = self;
        [u32::from(trains), (seed >> 32) as u32, seed as u32, step, rank, micro_batch]
    }
}

/// Dropout: sets elements to zero with a probability `p`, and divides the others by `1 − p`.
#[derive(Clone, Debug)]
pub struct Dropout {
    probability: f32,
    state: Tensor,
    salt: u64,
}

impl Dropout {
    /// A dropout at the place that `vb` names; no two of a model are at the same.
    ///
    /// # Errors
    /// What the builder says.
    pub fn new(probability: f32, vb: &VarBuilder<'_>) -> Result<Self> {
        let state = vb.get_with_hints_dtype(WORDS, STATE, Init::Const(0.0), DType::U32)?;
        let salt = vb.prefix().bytes().fold(0, |hash, byte| mixed(hash ^ u64::from(byte)));
        Ok(Self { probability, state, salt })
    }

    /// The input, with the mask of this call in training.
    ///
    /// # Errors
    /// Candle's.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let state = self.state.to_vec1::<u32>()?;
        if state.first().is_none_or(|trains| *trains == 0) || self.probability <= 0.0 {
            return Ok(input.clone());
        }
        let hash = state.iter().fold(self.salt, |hash, word| mixed(hash ^ u64::from(*word)));
        let stays = f64::from(1.0 - self.probability);
        let scale = if stays > 0.0 { (1.0 / stays) as f32 } else { 0.0 };
        let draw = |place: usize| if unit(mixed(hash ^ place as u64)) <= stays { scale } else { 0.0 };
        let mask: Vec<f32> = (0..input.elem_count()).map(draw).collect();
        let mask = Tensor::from_vec(mask, input.shape(), input.device())?;
        input * mask.to_dtype(input.dtype())?
    }
}
