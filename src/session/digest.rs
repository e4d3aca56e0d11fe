//! A number that says which checkpoint this is.
//!
//! Law: processes with the same checkpoint have the same number, and others do not ([`Digest`]). It covers what an
//! import reads: planes follow from the masters.

use super::{Carried, Checkpoint};
use crate::digest::Digest;

impl Checkpoint {
    /// The number; never 0.
    pub(super) fn digest(&self) -> u64 {
        let mut digest = Digest::default();
        digest.add(&self.optimizer_step.to_le_bytes());
        if let Some(by) = self.updated_by {
            digest.add(by.word().as_bytes());
        }
        // An import finds weights by name, so their order is nothing that processes could differ in.
        let mut weights: Vec<_> = self.weights.iter().collect();
        weights.sort_by_key(|weight| &weight.name);
        for weight in weights {
            digest.add(weight.name.as_bytes());
            digest.add(weight.format.to_string().as_bytes());
            for values in [&weight.master, &weight.exp_avg, &weight.exp_avg_sq] {
                digest.add(bytemuck::cast_slice(values));
            }
            if let Some(delayed) = &weight.delayed {
                digest.add(&delayed.scale.to_le_bytes());
                digest.add(bytemuck::cast_slice(&delayed.history));
            }
        }
        match &self.carried {
            Carried::Zeros => digest.add(b"zeros"),
            Carried::Buffers(buffers) => {
                for buffer in buffers {
                    digest.add(buffer.name.as_bytes());
                    buffer.ranks.iter().for_each(|rank| digest.add(rank));
                }
            }
        }
        digest.short().max(1)
    }
}
