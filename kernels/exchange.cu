// Bytes into the memory of peers, between two meetings with them, in one launch.
//
// Laws: those of meeting.cuh; and ranges do not overlap.

#include "meeting.cuh"

struct ExchangeArguments {
    Tiles tiles;
    const Range* ranges;
    Meetings meetings;
};
static_assert(sizeof(ExchangeArguments) == 56, "kernels::exchange::Arguments");

extern "C" __global__ void __launch_bounds__(COPIERS) exchange(const __grid_constant__ ExchangeArguments all) {
    meet_before(all.meetings);
    for (u32 tile = blockIdx.x; tile < all.tiles.count; tile += gridDim.x) {
        Place place = place_of(all.tiles, tile);
        copy_piece(all.ranges[place.tensor], u64(place.tile) * PIECE);
    }
    meet_after(all.meetings);
}
