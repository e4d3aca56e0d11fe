//! The position of a bad value that a rank found in its own rows.
//!
//! Law: the host searches only after a step of which the device has said that there is something to find. It begins
//! with no further list of values once it has searched for a good part of the time that others wait.

use std::time::{Duration, Instant};

use super::{ExecError, Rank};
use warpweft_backend::Backend;
use warpweft_backend::rendezvous::{Reader, Truncated, Writer};
use warpweft_base::id::WeightId;

/// A value of a weight's master, of its optimizer state or of its main grad.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FoundValue {
    /// Of which weight.
    pub weight: WeightId,
    /// The row of the whole weight, counted from 0.
    pub row: usize,
    /// The column, counted from 0.
    pub column: usize,
    /// The value as it is kept.
    pub value: f32,
}

impl FoundValue {
    pub(super) fn encode(&self, writer: &mut Writer) {
        let Self { weight, row, column, value } = self;
        writer.number(weight.number()).long(*row as u64).long(*column as u64).number(value.to_bits());
    }

    /// What [`FoundValue::encode`] wrote, in a session of `weights` weights.
    pub(super) fn decode(reader: &mut Reader<'_>, weights: usize) -> Result<Self, Truncated> {
        let weight = WeightId::new(reader.number()?);
        let mut place = || usize::try_from(reader.long()?).map_err(|_| Truncated);
        let (row, column) = (place()?, place()?);
        let value = f32::from_bits(reader.number()?);
        if weight.index() < weights { Ok(Self { weight, row, column, value }) } else { Err(Truncated) }
    }
}

/// How long a rank searches, at most and as a part of the deadline: long enough for the state of billions of elements.
const SEARCH: Duration = Duration::from_secs(5);
const SEARCH_OF_DEADLINE: u32 = 4;

impl<B: Backend> Rank<B> {
    /// What `find` finds in the first of `lists` in which it finds something, unless that takes too long.
    ///
    /// # Errors
    /// What `find` says.
    pub(super) fn first_found<L, T>(
        &self,
        lists: impl Iterator<Item = L>,
        mut find: impl FnMut(L) -> Result<Option<T>, ExecError>,
    ) -> Result<Option<T>, ExecError> {
        let (begun, time) =
            (Instant::now(), SEARCH.min(self.world.rendezvous().deadline() / SEARCH_OF_DEADLINE));
        lists.take_while(|_| begun.elapsed() < time).find_map(|list| find(list).transpose()).transpose()
    }

    /// The first of the rank's rows of one weight that is NaN or has a larger magnitude than `largest`.
    pub(super) fn first_beyond(&self, weight: WeightId, rows: &[f32], largest: f32) -> Option<FoundValue> {
        let within = |value: &f32| value.abs() <= largest;
        let at = rows.iter().position(|value| !within(value))?;
        let shard = self.prologue.plan.weights.layout(weight).shard;
        let columns = shard.columns_of(self.id());
        let (row, column) = (shard.row_of(self.id(), at / columns.len()), columns.start + at % columns.len());
        Some(FoundValue { weight, row, column, value: rows[at] })
    }
}
