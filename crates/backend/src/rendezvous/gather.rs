//! Large gathers to rank 0: the parts of a checkpoint.
//!
//! Law: pieces of a fixed size, one round each, and nobody sends the next before rank 0 has taken this one;
//! so no process but that of rank 0 keeps what others send, and that one no more than it was asked to.

use std::collections::BTreeMap;

use super::{Reader, Rendezvous, RendezvousError, Topic, Writer};
use warpweft_base::id::RankId;

/// Bytes of one rank in one round.
const PIECE: usize = 16 << 20;

impl Rendezvous {
    /// Brings every rank's bytes to rank 0, which gets them in rank order; the others get nothing. All ranks
    /// call it.
    ///
    /// # Errors
    /// As [`Rendezvous::exchange`].
    pub fn gather_to_first(
        &self,
        rank: RankId,
        bytes: &[u8],
    ) -> Result<Option<Vec<Vec<u8>>>, RendezvousError> {
        let own = Writer::default().long(bytes.len() as u64).take();
        let amounts = self.exchange(rank, Topic::Amounts, &own)?;
        let amount = |bytes: &[u8]| Reader::new(bytes).long().unwrap_or(0);
        let most = amounts.iter().map(|bytes| amount(bytes)).max().unwrap_or(0);
        let rounds = most.div_ceil(PIECE as u64);
        let holds_all = self.range().start == 0;
        let mut gathered = (rank == RankId::new(0)).then(|| vec![Vec::new(); amounts.len()]);
        let mut pieces = bytes.chunks(PIECE);
        for _ in 0..rounds {
            self.shared.contribute(rank, Topic::Shards, pieces.next().unwrap_or_default())?;
            if holds_all {
                let all = self.shared.collect(rank, Topic::Shards)?;
                if let Some(gathered) = &mut gathered {
                    gathered.iter_mut().zip(&all).for_each(|(whole, piece)| whole.extend_from_slice(piece));
                }
            }
            self.exchange(rank, Topic::Taken, &[])?;
        }
        Ok(gathered)
    }

    /// A rank of this process says how far it is, for the messages of all ranks about a world that stalls;
    /// an empty text takes it back.
    pub fn stand(&self, rank: RankId, text: &str) {
        self.shared.stand(rank, text);
    }

    /// How far the ranks are that said so last.
    #[must_use]
    pub fn standings(&self) -> BTreeMap<RankId, String> {
        self.shared.standings()
    }
}
