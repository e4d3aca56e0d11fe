// A kernel that computes for so many cycles, reads and writes no memory meanwhile, and leaves a trace.

extern "C" __global__ void spin(long long cycles, unsigned int* count) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
    // At the very end: who pulls before the kernel is done finds the count of the replay before.
    if (blockIdx.x == 0 && threadIdx.x == 0) *count += 1;
}
