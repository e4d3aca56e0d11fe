// The main job's norm and attention on a GPU, with the formulas of `ops.rs` and `attention.rs`. Comes after `common.cu`,
// whose laws hold here too.

// Added to the mean square before the root.
#define EPSILON 1e-6f

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
