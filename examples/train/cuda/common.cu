// What models of text have in common on a GPU: embedding, GELU and the losses of a head, with the formulas of `ops.rs`,
// `head.rs` and `embedding.rs`. An example's own kernels follow in the same source. Matrix products are cuBLAS's.
//
// Laws: a kernel touches exactly the elements its launch in Rust names. Every sum has one written order and no
// kernel uses atomics, so a run is repeated bit for bit. A NaN goes in and comes out. Row kernels take blocks of
// THREADS threads, element kernels as many blocks as cover their elements.

#define THREADS 128

// Where the largest of no values begins.
#define NEGATIVE_INFINITY (-__int_as_float(0x7f800000))

#define KERNEL extern "C" __global__ void

// The element of this thread.
__device__ size_t element() {
    return (size_t)blockIdx.x * blockDim.x + threadIdx.x;
}

// The sum of every thread's value, for every thread: halves are added onto halves.
__device__ float sum_over_block(float value) {
    __shared__ float partial[THREADS];
    partial[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    const float sum = partial[0];
    __syncthreads();
    return sum;
}

// The largest of every thread's value, for every thread; NaN is passed over, as on the CPU.
__device__ float max_over_block(float value) {
    __shared__ float partial[THREADS];
    partial[threadIdx.x] = value;
    __syncthreads();
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) partial[threadIdx.x] = fmaxf(partial[threadIdx.x], partial[threadIdx.x + half]);
        __syncthreads();
    }
    const float largest = partial[0];
    __syncthreads();
    return largest;
}

__device__ float dot(const float *a, const float *b, unsigned count) {
    float sum = 0.0f;
    for (unsigned i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
}

// ---- embedding

// x[i] = table[tokens[i]]; one thread per element of x, [tokens, width].
KERNEL embed(const unsigned char *tokens, const float *table, float *x, unsigned count, unsigned width) {
    const size_t i = element();
    if (i >= (size_t)count * width) return;
    x[i] = table[tokens[i / width] * (size_t)width + i % width];
}

// table[v] = sum of the rows of `residual` whose token is v, in token order; one block per row of the table.
KERNEL embed_backward(const unsigned char *tokens, const float *residual, float *table, unsigned count,
                      unsigned width) {
    for (unsigned feature = threadIdx.x; feature < width; feature += THREADS) {
        float sum = 0.0f;
        for (unsigned token = 0; token < count; ++token)
            if (tokens[token] == blockIdx.x) sum += residual[(size_t)token * width + feature];
        table[(size_t)blockIdx.x * width + feature] = sum;
    }
}

// ---- GELU, tanh form, as x times a logistic gate

// The gate s and its derivative s'.
__device__ float gate(float x, float *slope) {
    const float steepness = 1.595769f;  // 2 * sqrt(2 / pi)
    const float cubic = 0.044715f;
    const float s = 1.0f / (1.0f + expf(-steepness * (x + cubic * x * x * x)));
    *slope = s * (1.0f - s) * steepness * (1.0f + 3.0f * cubic * x * x);
    return s;
}

// out = gelu(hidden).
KERNEL gelu(const float *hidden, float *out, unsigned count) {
    const size_t i = element();
    if (i >= count) return;
    float slope;
    out[i] = hidden[i] * gate(hidden[i], &slope);
}

// gradient *= gelu'(hidden), and activated = gelu(hidden) again.
KERNEL gelu_backward(const float *hidden, float *activated, float *gradient, unsigned count) {
    const size_t i = element();
    if (i >= count) return;
    const float x = hidden[i];
    float slope;
    const float s = gate(x, &slope);
    activated[i] = x * s;
    gradient[i] *= s + x * slope;
}

// ---- head

// One token's loss, -log softmax(logits)[target]; its logits become share * (softmax - one at the target), the
// gradient of the mean loss. One block per row.
KERNEL cross_entropy(const unsigned char *targets, float *logits, float *losses, unsigned classes, float share) {
    float *row = logits + (size_t)blockIdx.x * classes;
    const unsigned target = targets[blockIdx.x];
    const float logit = row[target];
    float largest = NEGATIVE_INFINITY;
    for (unsigned i = threadIdx.x; i < classes; i += THREADS) largest = fmaxf(largest, row[i]);
    largest = max_over_block(largest);
    float sum = 0.0f;
    for (unsigned i = threadIdx.x; i < classes; i += THREADS) {
        row[i] = expf(row[i] - largest);
        sum += row[i];
    }
    sum = sum_over_block(sum);
    const float inverse = 1.0f / sum;
    for (unsigned i = threadIdx.x; i < classes; i += THREADS)
        row[i] = (row[i] * inverse - (i == target ? 1.0f : 0.0f)) * share;
    if (threadIdx.x == 0) losses[blockIdx.x] = largest + logf(sum) - logit;
}

// mean[0] = the mean of `count` values, summed in f64. One block.
KERNEL mean_of(const float *values, float *mean, unsigned count) {
    __shared__ double partial[THREADS];
    double sum = 0.0;
    for (unsigned i = threadIdx.x; i < count; i += THREADS) sum += (double)values[i];
    partial[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (unsigned i = 1; i < THREADS; ++i) sum += partial[i];
    mean[0] = (float)(sum / (double)count);
}
