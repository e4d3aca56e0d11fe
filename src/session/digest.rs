//! A number that says which checkpoint this is.
//!
//! Law: processes with the same checkpoint have the same number, and others do not but for a chance of 2^-64.
//! It is about mistakes, not about forgery, and covers what an import reads: planes follow from the masters.

use sha2::{Digest, Sha256};

use super::{Carried, Checkpoint};

impl Checkpoint {
    /// The number; never 0.
    pub(super) fn digest(&self) -> u64 {
        let mut hash = Sha256::new();
        let mut bytes = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        bytes(&self.optimizer_step.to_le_bytes());
        // An import finds weights by name, so their order is nothing that processes could differ in.
        let mut weights: Vec<_> = self.weights.iter().collect();
        weights.sort_by_key(|weight| &weight.name);
        for weight in weights {
            bytes(weight.name.as_bytes());
            bytes(weight.format.to_string().as_bytes());
            for values in [&weight.master, &weight.exp_avg, &weight.exp_avg_sq] {
                bytes(bytemuck::cast_slice(values));
            }
            if let Some(delayed) = &weight.delayed {
                bytes(&delayed.scale.to_le_bytes());
                bytes(bytemuck::cast_slice(&delayed.history));
            }
        }
        match &self.carried {
            Carried::Zeros => bytes(b"zeros"),
            Carried::Buffers(buffers) => {
                for buffer in buffers {
                    bytes(buffer.name.as_bytes());
                    buffer.ranks.iter().for_each(|rank| bytes(rank));
                }
            }
        }
        let first = hash.finalize().first_chunk().copied().unwrap_or_default();
        u64::from_le_bytes(first).max(1)
    }
}
