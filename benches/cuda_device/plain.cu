// A plain kernel: reads and writes given numbers of bytes and does nothing else, as fast as any kernel that moves them
// could be.

typedef unsigned int u32;
typedef unsigned long long u64;

constexpr u32 THREADS = 256;
// Accesses of 16 bytes that a thread has in flight.
constexpr u32 AT_A_TIME = 4;

// Each block has its share of both ranges, in lines of 128 bytes. What is written depends on what was read, as it
// does in any kernel of use.
extern "C" __global__ void __launch_bounds__(THREADS)
    read_and_write(const uint4* from, u64 read_lines, uint4* to, u64 written_lines) {
    u64 begin = read_lines * blockIdx.x / gridDim.x * 8;
    u64 end = read_lines * (blockIdx.x + 1) / gridDim.x * 8;
    u32 seen = 0;
    for (u64 at = begin + threadIdx.x; at < end; at += AT_A_TIME * THREADS) {
        uint4 units[AT_A_TIME];
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) {
            u64 own = at + i * THREADS;
            units[i] = own < end ? __ldg(from + own) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (u32 i = 0; i < AT_A_TIME; ++i) seen |= units[i].x ^ units[i].y ^ units[i].z ^ units[i].w;
    }
    begin = written_lines * blockIdx.x / gridDim.x * 8;
    end = written_lines * (blockIdx.x + 1) / gridDim.x * 8;
    for (u64 at = begin + threadIdx.x; at < end; at += THREADS) to[at] = make_uint4(seen, seen, seen, seen);
    // Never so, which the compiler does not know: reads without a trace would be left out.
    if (written_lines == 0 && seen == 0x5EED5EEDu && begin == ~0ull) to[0].x = seen;
}
