//! Values of a rank's state from the bytes as which it is stored.
//!
//! Law: it does not matter whether these lie in the arena or in a copy of it. Masters and moments are handed out as f32
//! however they are stored; of a list that there is not, nothing.

use bytemuck::Pod;
use half::bf16;

use super::ExecError;
use crate::checkpoint::StatePart;
use crate::config::Moments;
use warpweft_base::id::{RankId, WeightId};
use warpweft_format::{Orientation, join_master};
use warpweft_plan::layout::{Content, Weights};

/// The state of one rank, as it is stored.
pub(super) trait StoredState {
    /// Whose it is.
    fn owner(&self) -> RankId;

    /// How it is laid out.
    fn weights(&self) -> &Weights;

    /// The first bytes of what is stored under `content`.
    ///
    /// # Errors
    /// [`ExecError::Misfit`] where there are not so many; what the backend refuses.
    fn copy_stored(&self, content: Content, bytes: &mut [u8]) -> Result<(), ExecError>;

    /// The rank's rows of a master or a moment, as f32; empty where there is no such list.
    ///
    /// # Errors
    /// As [`StoredState::copy_stored`].
    fn rows(&self, weight: WeightId, part: StatePart) -> Result<Vec<f32>, ExecError> {
        match part {
            StatePart::Master => self.master(weight),
            StatePart::State(list) => self.moment(Content::State(weight, list), weight),
        }
    }

    /// The rank's real elements of `weight`, as `T` is stored.
    ///
    /// # Errors
    /// As [`StoredState::copy_stored`].
    fn values<T: Pod>(&self, content: Content, weight: WeightId) -> Result<Vec<T>, ExecError> {
        let layout = self.weights().layout(weight);
        let elements = layout.shard.rows_of(self.owner()).rows * layout.shard.shape.cols;
        let mut values = vec![T::zeroed(); elements];
        self.copy_stored(content, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    /// The master as f32, joined if it is stored in halves; empty where there is none.
    ///
    /// # Errors
    /// As [`StoredState::copy_stored`].
    fn master(&self, weight: WeightId) -> Result<Vec<f32>, ExecError> {
        let weights = self.weights();
        let layout = weights.layout(weight);
        if layout.is_planes_alone() {
            return Ok(Vec::new());
        }
        if !weights.splits_masters(layout.bucket) {
            return self.values(Content::Master(weight), weight);
        }
        let high: Vec<u16> = self.values(Content::Shard(weight, Orientation::Rowwise), weight)?;
        let low: Vec<i16> = self.values(Content::MasterRemainder(weight), weight)?;
        Ok(high.into_iter().zip(low).map(|(high, low)| join_master(high, low)).collect())
    }

    /// What is kept of a weight beside its master.
    fn lists(&self, weight: WeightId) -> impl Iterator<Item = Content> {
        let weights = self.weights();
        Content::kept(weights.state, weight).take(weights.lists_of(weights.layout(weight)))
    }

    /// A moment as f32, whatever it is stored as; empty where there is none.
    ///
    /// # Errors
    /// As [`StoredState::copy_stored`].
    fn moment(&self, content: Content, weight: WeightId) -> Result<Vec<f32>, ExecError> {
        if !self.lists(weight).any(|kept| kept == content) {
            return Ok(Vec::new());
        }
        match self.weights().state.moments {
            Moments::F32 => self.values(content, weight),
            Moments::Bf16 => {
                Ok(self.values::<bf16>(content, weight)?.into_iter().map(bf16::to_f32).collect())
            }
        }
    }
}
