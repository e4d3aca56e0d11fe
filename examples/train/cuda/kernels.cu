// The example's row-wise and element-wise operations on a GPU, with the formulas of `ops.rs`, `attention.rs`,
// `head.rs` and `embedding.rs`. Matrix products are cuBLAS's.
//
// Laws: a kernel touches exactly the elements its launch in Rust names. Every sum has one written order and no
// kernel uses atomics, so a run is repeated bit for bit. A NaN goes in and comes out. Row kernels take blocks of
// THREADS threads, element kernels as many blocks as cover their elements.

#define THREADS 128

// Added to the mean square before the root.
#define EPSILON 1e-6f

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

// ---- root-mean-square norm

// 1 / rms(row), for every thread of the block.
__device__ float inverse_rms(const float *row, unsigned width) {
    float squares = 0.0f;
    for (unsigned i = threadIdx.x; i < width; i += THREADS) squares += row[i] * row[i];
    return 1.0f / sqrtf(sum_over_block(squares) / (float)width + EPSILON);
}

// out = gain * x / rms(x); one block per row.
KERNEL normalize(const float *x, const float *gain, float *out, unsigned width) {
    const size_t row = (size_t)blockIdx.x * width;
    const float inverse = inverse_rms(x + row, width);
    for (unsigned i = threadIdx.x; i < width; i += THREADS) out[row + i] = x[row + i] * inverse * gain[i];
}

// The gradient of x from that of the norm's output, added to `x_gradient` or, if `adds` is 0, written there; and
// each row's 1 / rms for `gain_backward`. One block per row.
KERNEL normalize_backward(const float *x, const float *gain, const float *gradient, float *x_gradient,
                          float *inverses, unsigned width, unsigned adds) {
    const size_t row = (size_t)blockIdx.x * width;
    const float inverse = inverse_rms(x + row, width);
    float along = 0.0f;
    for (unsigned i = threadIdx.x; i < width; i += THREADS) along += gradient[row + i] * gain[i] * x[row + i];
    const float pull = sum_over_block(along) * inverse * inverse / (float)width;
    for (unsigned i = threadIdx.x; i < width; i += THREADS) {
        const float own = inverse * (gradient[row + i] * gain[i] - x[row + i] * pull);
        x_gradient[row + i] = adds ? x_gradient[row + i] + own : own;
    }
    if (threadIdx.x == 0) inverses[blockIdx.x] = inverse;
}

// gain_gradient[i] = sum over rows of gradient * x / rms(x). A block takes 32 neighbouring features; its four
// groups of 32 threads take every fourth row, and are added in order.
KERNEL gain_backward(const float *x, const float *gradient, const float *inverses, float *gain_gradient,
                     unsigned rows, unsigned width) {
    __shared__ float partial[THREADS];
    const unsigned feature = blockIdx.x * 32 + threadIdx.x % 32;
    float sum = 0.0f;
    if (feature < width)
        for (unsigned row = threadIdx.x / 32; row < rows; row += THREADS / 32) {
            const size_t i = (size_t)row * width + feature;
            sum += gradient[i] * x[i] * inverses[row];
        }
    partial[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < 32 && feature < width) {
        for (unsigned group = 1; group < THREADS / 32; ++group) sum += partial[group * 32 + threadIdx.x];
        gain_gradient[feature] = sum;
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

// ---- attention

// Rotates queries and keys of `qkv`, [tokens, 3 * width], by their positions; sense -1 turns back. Features i and
// i + pairs of a head are pair i; `rotations` holds (cosine, sine) per position and pair. One thread per pair.
KERNEL rotate(const float *rotations, float *qkv, unsigned tokens, unsigned sequence, unsigned width,
              unsigned pairs, float sense) {
    const size_t i = element();
    if (i >= (size_t)tokens * width) return;
    const size_t token = i / width;
    // Queries and keys together are 2 * width features, which are `width` pairs.
    const unsigned head = i % width / pairs, pair = i % pairs;
    const float *turn = rotations + 2 * (token % sequence * pairs + pair);
    const float cosine = turn[0], sine = turn[1] * sense;
    float *first = qkv + token * 3 * width + (size_t)head * 2 * pairs + pair;
    float *second = first + pairs;
    const float a = *first, b = *second;
    *first = a * cosine - b * sine;
    *second = a * sine + b * cosine;
}

// Where one position of one head of one text lies: block (text * heads + head) * sequence + position.
struct Place {
    unsigned position, width, head_width;
    size_t text, feature;

    __device__ Place(unsigned sequence, unsigned heads, unsigned head_width)
        : position(blockIdx.x % sequence), width(heads * head_width), head_width(head_width),
          text((size_t)(blockIdx.x / sequence / heads) * sequence),
          feature((size_t)(blockIdx.x / sequence % heads) * head_width) {}

    // Offset of this head's part (0 query, 1 key, 2 value) of a position of this text, in [tokens, 3 * width].
    __device__ size_t part(unsigned part, unsigned position) const {
        return (text + position) * 3 * width + part * width + feature;
    }

    // Offset of this head's features of a position of this text, in [tokens, width].
    __device__ size_t mixed(unsigned position) const {
        return (text + position) * width + feature;
    }

    __device__ float scale() const { return 1.0f / sqrtf((float)head_width); }
};

__device__ float dot(const float *a, const float *b, unsigned count) {
    float sum = 0.0f;
    for (unsigned i = 0; i < count; ++i) sum += a[i] * b[i];
    return sum;
}

// One position's mix of the values up to it, and the log-sum-exp of its scores. One block per position; shared
// memory holds its `sequence` scores.
KERNEL attention_forward(const float *rotated, float *logsumexp, float *mixed, unsigned sequence, unsigned heads,
                         unsigned head_width) {
    extern __shared__ float shared[];
    float *scores = shared;
    const Place here(sequence, heads, head_width);
    const float *query = rotated + here.part(0, here.position);
    float largest = NEGATIVE_INFINITY;
    for (unsigned key = threadIdx.x; key <= here.position; key += THREADS) {
        scores[key] = here.scale() * dot(query, rotated + here.part(1, key), head_width);
        largest = fmaxf(largest, scores[key]);
    }
    largest = max_over_block(largest);
    float sum = 0.0f;
    for (unsigned key = threadIdx.x; key <= here.position; key += THREADS) {
        scores[key] = expf(scores[key] - largest);
        sum += scores[key];
    }
    sum = sum_over_block(sum);
    const float inverse = 1.0f / sum;
    for (unsigned feature = threadIdx.x; feature < head_width; feature += THREADS) {
        float mix = 0.0f;
        for (unsigned key = 0; key <= here.position; ++key)
            mix += scores[key] * inverse * rotated[here.part(2, key) + feature];
        mixed[here.mixed(here.position) + feature] = mix;
    }
    if (threadIdx.x == 0) logsumexp[blockIdx.x] = largest + logf(sum);
}

// One position's probabilities P again, the gradient of its scores dS = P * (dP - sum of P * dP), and the gradient
// of its query. Row `position` of the [texts, heads, sequence, sequence] planes is written up to the position
// itself; nobody reads further. One block per position; shared memory holds two rows.
KERNEL attention_backward_queries(const float *rotated, const float *logsumexp, const float *mixed_gradient,
                                  float *probabilities, float *score_gradient, float *qkv_gradient,
                                  unsigned sequence, unsigned heads, unsigned head_width) {
    extern __shared__ float shared[];
    float *row = shared, *slopes = shared + sequence;
    const Place here(sequence, heads, head_width);
    const float *query = rotated + here.part(0, here.position);
    const float *dy = mixed_gradient + here.mixed(here.position);
    const float level = logsumexp[blockIdx.x];
    float mean = 0.0f;
    for (unsigned key = threadIdx.x; key <= here.position; key += THREADS) {
        row[key] = expf(here.scale() * dot(query, rotated + here.part(1, key), head_width) - level);
        slopes[key] = dot(dy, rotated + here.part(2, key), head_width);
        mean += row[key] * slopes[key];
    }
    mean = sum_over_block(mean);
    const size_t line = (size_t)blockIdx.x * sequence;
    for (unsigned key = threadIdx.x; key <= here.position; key += THREADS) {
        slopes[key] = row[key] * (slopes[key] - mean);
        probabilities[line + key] = row[key];
        score_gradient[line + key] = slopes[key];
    }
    __syncthreads();
    for (unsigned feature = threadIdx.x; feature < head_width; feature += THREADS) {
        float sum = 0.0f;
        for (unsigned key = 0; key <= here.position; ++key)
            sum += slopes[key] * rotated[here.part(1, key) + feature];
        qkv_gradient[here.part(0, here.position) + feature] = here.scale() * sum;
    }
}

// The gradients of one position's key and value: sums over the queries that saw it. One block per position.
KERNEL attention_backward_keys(const float *rotated, const float *mixed_gradient, const float *probabilities,
                               const float *score_gradient, float *qkv_gradient, unsigned sequence, unsigned heads,
                               unsigned head_width) {
    const Place here(sequence, heads, head_width);
    const size_t plane = (size_t)(blockIdx.x / sequence) * sequence * sequence;
    for (unsigned feature = threadIdx.x; feature < head_width; feature += THREADS) {
        float key = 0.0f, value = 0.0f;
        for (unsigned query = here.position; query < sequence; ++query) {
            const size_t pair = plane + (size_t)query * sequence + here.position;
            key += score_gradient[pair] * rotated[here.part(0, query) + feature];
            value += probabilities[pair] * mixed_gradient[here.mixed(query) + feature];
        }
        qkv_gradient[here.part(1, here.position) + feature] = here.scale() * key;
        qkv_gradient[here.part(2, here.position) + feature] = value;
    }
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
