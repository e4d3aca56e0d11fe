//! The digest of a frozen weight whose columns are cut over ranks.
//!
//! Law: FW-2 is of whole row tiles, and each rank of a tensor-parallel group has some columns of each. So they bring
//! them together, a piece at a time, in meetings of all ranks; the first of each group puts tiles together and digests
//! them. What was brought is forgotten after each piece. All ranks have as many pieces of each weight, so no rank is at
//! another meeting, and none waits for one that is not there. A meeting brings the bytes of all ranks to each process.

use super::frozen::digest_of_tile;
use super::world::failed;
use super::{ExecError, Rank};
use warpweft_backend::Backend;
use warpweft_backend::rendezvous::Topic;
use warpweft_base::id::{RankId, WeightId};
use warpweft_plan::layout::PlaneColumns;
use warpweft_plan::model::Group;

/// Bytes that a rank brings to a meeting, unless a tile has more.
const PIECE: usize = 1 << 20;

impl<B: Backend> Rank<B> {
    /// The sum of the digests of the row tiles of which the rank's group has all columns, on the first rank of the
    /// group; 0 on its others. Every rank calls it for the same weight.
    pub(super) fn sum_of_joined_tiles(&self, weight: WeightId) -> Result<u64, ExecError> {
        let weights = &self.prologue.plan.weights;
        let layout = weights.layout(weight);
        let members: Vec<RankId> = weights.mesh.members(self.id(), Group::Tensor).collect();
        // Ranks of other replicas come and bring nothing: the first has all of it.
        let owns = self.id().number() < layout.shard.owners();
        let joins = owns && members.first() == Some(&self.id());
        let tile_rows = layout.format.row_tile();
        let (stored, rows) = (layout.shard.rows_per_rank / tile_rows, layout.shard.rows_of(self.id()));
        // Every part has all rows.
        let (first, held) = (rows.begin / tile_rows, rows.rows.div_ceil(tile_rows));
        let planes = self.planes(weight)?;
        let mut sum: u64 = 0;
        for (orientation, planes) in layout.format.stored_orientations().iter().zip(&planes) {
            for spec in layout.shard_planes(*orientation) {
                let columns = |rank: &RankId| {
                    let first = layout.shard.columns_of(*rank).start;
                    PlaneColumns::new(layout, *orientation, spec.kind, first)
                };
                let columns: Vec<PlaneColumns> = members.iter().map(columns).collect();
                let (plane, bytes) = (planes.of(spec.kind), spec.bytes().checked_div(stored).unwrap_or(0));
                let at_once = (PIECE / bytes.max(1)).max(1);
                for begin in (0..stored).step_by(at_once) {
                    let end = (begin + at_once).min(stored);
                    let own = plane.get(begin * bytes..end * bytes).filter(|_| owns).unwrap_or_default();
                    let all = self.world.rendezvous().exchange(self.id(), Topic::Agreement, own);
                    let all = all.map_err(|error| failed(self.id(), error))?;
                    for tile in (begin..end.min(held)).filter(|_| joins) {
                        let mut whole = Vec::new();
                        for (member, columns) in members.iter().zip(&columns) {
                            whole.resize(bytes / columns.of_part().max(1) * columns.of_whole(), 0);
                            // A rank that is driven alone, like the simulator's, gets nothing of others.
                            let part = all.get(member.index()).map_or(&[][..], |brought| brought);
                            let part = part.get((tile - begin) * bytes..(tile + 1 - begin) * bytes);
                            columns.put(part.unwrap_or_default(), &mut whole);
                        }
                        sum = sum.wrapping_add(digest_of_tile(*orientation, spec.kind, first + tile, &whole));
                    }
                }
            }
        }
        Ok(sum)
    }
}
