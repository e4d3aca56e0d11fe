//! The parts of the stack's computation, and the memory that each touches.
//!
//! Law (SK-1): the parts of a step and their order follow from the number of blocks alone. A call is a run of
//! them, and carries them out one after the other; its declaration is that of its parts together.

use warpweft_base::id::{BufferId, WeightId};
use warpweft_plan::model::{Access, BufferAccess, Phase};

use super::shape::Projection;

/// One step of the mathematics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// One weight of a block, forward.
    Forward(usize, Projection),
    /// The sum of the last output.
    Loss,
    /// One weight of a block, backward.
    Backward(usize, Projection),
}

impl Part {
    /// Those of a stack of so many blocks, in the order in which every variant runs them.
    pub(super) fn of_step(blocks: usize) -> Vec<Self> {
        let forward = |block| Projection::ALL.map(|projection| Self::Forward(block, projection));
        let backward = |block| {
            let mut parts = Projection::ALL.map(|projection| Self::Backward(block, projection));
            parts.reverse();
            parts
        };
        let mut parts: Vec<Self> = (0..blocks).flat_map(forward).collect();
        parts.extend((blocks > 0).then_some(Self::Loss));
        parts.extend((0..blocks).rev().flat_map(backward));
        parts
    }

    /// The block it belongs to, in one direction.
    pub(super) const fn block(self) -> Option<(usize, Phase)> {
        match self {
            Self::Forward(block, _) => Some((block, Phase::Forward)),
            Self::Loss => None,
            Self::Backward(block, _) => Some((block, Phase::Backward)),
        }
    }
}

/// What the parts of one block find where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// qkv, proj, fc1, fc2.
    pub(super) weights: [WeightId; 4],
    /// Output of the block before; the first block's is the closure's own.
    pub(super) x: Option<BufferId>,
    pub(super) qkv: BufferId,
    pub(super) middle: BufferId,
    pub(super) hidden: BufferId,
    pub(super) saved: Saved,
    pub(super) output: BufferId,
    /// Gradient of the output; the last block's is the closure's own.
    pub(super) dy: Option<BufferId>,
    /// Gradient of `hidden`, or of its GELU, by [`Saved`].
    pub(super) hidden_gradient: BufferId,
    pub(super) middle_gradient: BufferId,
    /// Gradient of `x`.
    pub(super) dx: BufferId,
}

/// What of its inputs a block leaves for the gradients of its weights, and so which part takes GELU.
#[derive(Clone, Copy, Debug)]
pub(super) enum Saved {
    /// The inputs in bf16. fc1 forward writes GELU of `hidden` here, fc2 backward turns its gradient into
    /// that of `hidden`.
    Values {
        /// GELU of `hidden`.
        activated: BufferId,
    },
    /// What each weight's product keeps of its input, in the order of [`Projection::ALL`]. fc2 forward and
    /// fc1 backward take GELU on the way.
    Codes([BufferId; 4]),
}

impl Saved {
    /// Where the product with a weight keeps what its gradient reads.
    pub(super) const fn kept(self, projection: Projection) -> Option<BufferId> {
        match self {
            Self::Values { .. } => None,
            Self::Codes(kept) => Some(kept[projection as usize]),
        }
    }
}

impl Block {
    pub(super) const fn weight(&self, projection: Projection) -> WeightId {
        self.weights[projection as usize]
    }

    /// Where the gradient of a weight finds the product's input, as [`Saved`] says; the first block's x is
    /// the closure's own.
    pub(super) const fn input(&self, projection: Projection) -> Option<BufferId> {
        match (self.saved, projection) {
            (Saved::Codes(_), _) => self.saved.kept(projection),
            (Saved::Values { .. }, Projection::Qkv) => self.x,
            (Saved::Values { .. }, Projection::Proj) => Some(self.qkv),
            (Saved::Values { .. }, Projection::Fc1) => Some(self.middle),
            (Saved::Values { activated }, Projection::Fc2) => Some(activated),
        }
    }

    /// Buffers of a part forward.
    pub(super) fn forward(&self, projection: Projection) -> Vec<BufferAccess> {
        let Self { x, qkv, middle, hidden, saved, output, .. } = *self;
        let mut buffers = match (projection, saved) {
            (Projection::Qkv, _) => after(x, &[writes(qkv)]),
            (Projection::Proj, _) => after(x, &[reads(qkv), writes(middle)]),
            (Projection::Fc1, Saved::Values { activated }) => {
                vec![reads(middle), writes(hidden), writes(activated)]
            }
            (Projection::Fc1, Saved::Codes(_)) => vec![reads(middle), writes(hidden)],
            (Projection::Fc2, Saved::Values { activated }) => {
                vec![reads(activated), reads(middle), writes(output)]
            }
            (Projection::Fc2, Saved::Codes(_)) => vec![reads(hidden), reads(middle), writes(output)],
        };
        buffers.extend(saved.kept(projection).map(writes));
        buffers
    }

    /// Buffers of a part backward; all blocks share `qkv_gradient`.
    pub(super) fn backward(&self, projection: Projection, qkv_gradient: BufferId) -> Vec<BufferAccess> {
        let Self { hidden, saved, dy, hidden_gradient, middle_gradient, dx, .. } = *self;
        let mut buffers = match projection {
            Projection::Fc2 => after(dy, &[writes(hidden_gradient)]),
            Projection::Fc1 => after(dy, &[reads(hidden_gradient), writes(middle_gradient)]),
            Projection::Proj => {
                let updated = BufferAccess { buffer: qkv_gradient, access: Access::Update };
                vec![reads(middle_gradient), updated]
            }
            Projection::Qkv => vec![reads(qkv_gradient), reads(middle_gradient), writes(dx)],
        };
        let takes_gelu = matches!(
            (saved, projection),
            (Saved::Values { .. }, Projection::Fc2) | (Saved::Codes(_), Projection::Fc1)
        );
        buffers.extend(takes_gelu.then_some(reads(hidden)));
        buffers.extend(self.input(projection).map(reads));
        buffers
    }
}

/// What a call does with buffers that its parts touch in turn: each once. Whether it needs what was there
/// says the first part that touches it.
pub(super) fn together(parts: impl IntoIterator<Item = BufferAccess>) -> Vec<BufferAccess> {
    let mut all: Vec<BufferAccess> = Vec::new();
    for part in parts {
        match all.iter_mut().find(|earlier| earlier.buffer == part.buffer) {
            Some(BufferAccess { access, .. }) if *access == Access::Read && part.access.writes() => {
                *access = Access::Update;
            }
            Some(_) => {}
            None => all.push(part),
        }
    }
    all
}

/// Does a call that accesses `buffers` write `buffer` before any of its parts reads it?
pub(super) fn is_written_first(buffers: &[BufferAccess], buffer: BufferId) -> bool {
    buffers.contains(&writes(buffer))
}

const fn reads(buffer: BufferId) -> BufferAccess {
    BufferAccess { buffer, access: Access::Read }
}

pub(super) const fn writes(buffer: BufferId) -> BufferAccess {
    BufferAccess { buffer, access: Access::Write }
}

/// What is read where there is such a buffer, then the others.
pub(super) fn after(read: Option<BufferId>, others: &[BufferAccess]) -> Vec<BufferAccess> {
    read.map(reads).into_iter().chain(others.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_touch_one_buffer_are_one_access_and_the_first_of_them_says_what_is_needed() {
        let [one, other, third] = [0, 1, 2].map(BufferId::at);
        let updates = |buffer| BufferAccess { buffer, access: Access::Update };
        let parts = [writes(one), reads(other), reads(one), updates(third), reads(third), writes(other)];
        assert_eq!(together(parts), [writes(one), updates(other), updates(third)]);
        assert_eq!(together([reads(one), reads(one)]), [reads(one)]);
        assert!(is_written_first(&[writes(one), updates(other)], one));
        assert!(!is_written_first(&[writes(one), updates(other)], other));
    }

    /// SK-1.
    #[test]
    fn backward_runs_the_parts_of_forward_from_behind() {
        let parts = Part::of_step(3);
        assert_eq!(parts.len(), 3 * 8 + 1);
        for (one, other) in parts.iter().zip(parts.iter().rev()) {
            match (*one, *other) {
                (Part::Forward(block, projection), mirrored) => {
                    assert_eq!(mirrored, Part::Backward(block, projection));
                }
                (Part::Loss, mirrored) => assert_eq!(mirrored, Part::Loss),
                (Part::Backward(block, projection), mirrored) => {
                    assert_eq!(mirrored, Part::Forward(block, projection));
                }
            }
        }
        assert_eq!(parts[0], Part::Forward(0, Projection::Qkv));
    }
}
