//! Addresses of every rank's memory, as one rank sees them.
//!
//! Law: arena, words and receive buffer are laid out alike on every rank, so a place is an offset and the rank whose
//! memory it is in. Ranks are those of a team, numbered in it. Homes of ranks whose memory is not reached are
//! null, and no transport writes there.

use super::receive_buffers::stride;
use super::signal::Home;
use crate::device::address::DeviceAddress;
use crate::world::hosts::Hosts;
use warpweft_base::id::RankId;

/// The memory of a team, as one rank reaches it, for a collective of one lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) rank: RankId,
    /// The memory of the team, in rank order.
    pub(crate) homes: &'a [Home],
    pub(crate) hosts: Hosts,
    /// Where this lane's part of every rank's receive buffer begins.
    pub(crate) receive_buffer: usize,
}

impl View<'_> {
    pub(super) fn arena(&self, rank: RankId) -> DeviceAddress {
        self.homes[rank.index()].arena
    }

    /// This rank's arena.
    pub(super) fn own(&self) -> DeviceAddress {
        self.arena(self.rank)
    }

    /// This rank's words.
    pub(super) fn own_signals(&self) -> DeviceAddress {
        self.homes[self.rank.index()].signals
    }

    /// In the receive buffer of `holder`, `ahead` bytes into the lane's part: the `number`th of values of `bytes`
    /// bytes.
    pub(super) fn received(
        &self,
        holder: RankId,
        ahead: usize,
        bytes: usize,
        number: usize,
    ) -> DeviceAddress {
        self.homes[holder.index()].receive_buffer.plus(self.receive_buffer + ahead + stride(bytes) * number)
    }

    /// Where the lane's part of every rank's receive buffer begins, counted from its arena.
    pub(super) fn receive_buffer_from_arena(&self) -> usize {
        let own = self.homes[self.rank.index()];
        self.receive_buffer + (own.receive_buffer.number() - own.arena.number()) as usize
    }

    /// Whose memory it is. That of a rank is one allocation, which begins with its arena.
    pub(super) fn owner(&self, address: DeviceAddress) -> Option<DeviceAddress> {
        self.homes.iter().map(|home| home.arena).filter(|arena| *arena <= address).max()
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = RankId> + use<> {
        (0..self.homes.len()).map(RankId::at)
    }

    /// All others, beginning with the next.
    pub(super) fn others(&self) -> impl Iterator<Item = RankId> + use<> {
        let (rank, ranks) = (self.rank.index(), self.homes.len());
        (1..ranks).map(move |step| RankId::at((rank + step) % ranks))
    }
}
