// The router, the slots and the experts on a GPU, with the formulas of `closure.rs` and `experts.rs`. Comes after
// `common.cu`, whose laws hold here too.
//
// Law: counts are written and read here, the host never sees them. A slot is read and written up to its count. A place
// is a row of all slots, [slots * capacity]; NO_PLACE is that of a pick for which its slot has no room.

#define NO_PLACE 0xffffffffu

// ---- the router

// A token's probabilities, and the experts of the largest ones; of equal ones the first. One thread per token.
KERNEL choose(const float *x, const float *router, float *probabilities, unsigned *chosen, unsigned tokens,
              unsigned experts, unsigned picks, unsigned width) {
    const size_t token = element();
    if (token >= tokens) return;
    float *own = probabilities + token * experts;
    float largest = NEGATIVE_INFINITY, sum = 0.0f;
    for (unsigned expert = 0; expert < experts; ++expert) {
        own[expert] = dot(x + token * width, router + (size_t)expert * width, width);
        largest = fmaxf(largest, own[expert]);
    }
    for (unsigned expert = 0; expert < experts; ++expert) {
        own[expert] = expf(own[expert] - largest);
        sum += own[expert];
    }
    for (unsigned expert = 0; expert < experts; ++expert) own[expert] /= sum;
    unsigned *best = chosen + token * picks;
    for (unsigned pick = 0; pick < picks; ++pick) {
        unsigned found = experts;
        for (unsigned expert = 0; expert < experts; ++expert) {
            bool before = false;
            for (unsigned other = 0; other < pick; ++other) before |= best[other] == expert;
            if (!before && (found == experts || own[expert] > own[found])) found = expert;
        }
        best[pick] = found;
    }
}

// An expert's picks in the order of the tokens: how many there are, beyond the capacity too, and the place of each. One
// thread per expert.
KERNEL place(const unsigned *chosen, unsigned *places, unsigned *given, float *busy, unsigned picks, unsigned experts,
             unsigned capacity) {
    const size_t expert = element();
    if (expert >= experts) return;
    unsigned count = 0;
    for (unsigned pick = 0; pick < picks; ++pick) {
        if (chosen[pick] != expert) continue;
        places[pick] = count < capacity ? (unsigned)expert * capacity + count : NO_PLACE;
        ++count;
    }
    given[expert] = count;
    busy[expert] = (float)count;
}

// Tokens into their slots; `each` is the picks of a token. One thread per pick and feature.
KERNEL send(const float *x, const unsigned *places, float *sent, unsigned picks, unsigned each, unsigned width) {
    const size_t i = element(), pick = i / width, feature = i % width;
    if (pick >= picks || places[pick] == NO_PLACE) return;
    sent[(size_t)places[pick] * width + feature] = x[pick / each * width + feature];
}

// The gradient of the router's scores from that of its probabilities. One thread per token.
KERNEL softmax_backward(const float *probabilities, const float *pulls, float *scores, unsigned tokens,
                        unsigned experts) {
    const size_t token = element(), first = token * experts;
    if (token >= tokens) return;
    const float mean = dot(probabilities + first, pulls + first, experts);
    for (size_t i = first; i < first + experts; ++i) scores[i] = probabilities[i] * (pulls[i] - mean);
}

// ---- the experts: those of the rank are `own`, and slot s is for expert s % own of them

// out = x * w in the filled rows of an expert's slots; `w` is [inputs, outputs] or, transposed, [outputs, inputs]. One
// thread per element of `out`, [rows, outputs].
KERNEL expert_product(const unsigned *taken, const float *x, const float *w, float *out, unsigned rows,
                      unsigned capacity, unsigned own, unsigned expert, unsigned inputs, unsigned outputs,
                      unsigned transposed) {
    const size_t row = element() / outputs, output = element() % outputs, slot = row / capacity;
    if (row >= rows || slot % own != expert || row % capacity >= taken[slot]) return;
    const size_t first = transposed ? output * inputs : output, step = transposed ? 1 : outputs;
    float sum = 0.0f;
    for (unsigned input = 0; input < inputs; ++input) sum += x[row * inputs + input] * w[first + input * step];
    out[row * outputs + output] = sum;
}

// gradient = leftT * right over the filled rows of an expert's slots, one after the other; zeros if there are none. One
// thread per element of `gradient`, [height, width].
KERNEL expert_gradient(const unsigned *taken, const float *left, const float *right, float *gradient, unsigned slots,
                       unsigned capacity, unsigned own, unsigned expert, unsigned height, unsigned width) {
    const size_t i = element();
    if (i >= (size_t)height * width) return;
    float sum = 0.0f;
    for (unsigned slot = expert; slot < slots; slot += own)
        for (size_t row = (size_t)slot * capacity; row < (size_t)slot * capacity + taken[slot]; ++row)
            sum += left[row * height + i / width] * right[row * width + i % width];
    gradient[i] = sum;
}

// ---- the head

// y = x, and what a token's experts made of it, each times its probability. One thread per element of `y`.
KERNEL add_up(const float *x, const float *back, const unsigned *places, const unsigned *chosen,
              const float *probabilities, float *y, unsigned tokens, unsigned experts, unsigned each, unsigned width) {
    const size_t i = element(), token = i / width;
    if (token >= tokens) return;
    float sum = x[i];
    for (size_t pick = token * each; pick < (token + 1) * each; ++pick)
        if (places[pick] != NO_PLACE)
            sum += probabilities[token * experts + chosen[pick]] * back[(size_t)places[pick] * width + i % width];
    y[i] = sum;
}

// The load-balance loss, also added to `loss`, and its gradient: factor * share of picks * probability. One block.
KERNEL balance_loss(const float *probabilities, const float *load, float *pulls, float *balance, float *loss,
                    unsigned count, unsigned experts, float factor) {
    float all = 0.0f, sum = 0.0f;
    for (unsigned expert = 0; expert < experts; ++expert) all += load[expert];
    for (unsigned i = threadIdx.x; i < count; i += THREADS) {
        pulls[i] = factor * load[i % experts] / all;
        sum += pulls[i] * probabilities[i];
    }
    sum = sum_over_block(sum);
    if (threadIdx.x > 0) return;
    balance[0] = sum;
    loss[0] += sum;
}

// The gradients of a pick: its probability's, added to `pulls`, and that of the row that came back. One thread per pick.
KERNEL picks_backward(const float *slope, const float *back, const unsigned *places, const unsigned *chosen,
                      const float *probabilities, float *pulls, float *sent, unsigned picks, unsigned experts,
                      unsigned each, unsigned width) {
    const size_t pick = element();
    if (pick >= picks || places[pick] == NO_PLACE) return;
    const size_t token = pick / each, by = token * experts + chosen[pick], row = (size_t)places[pick] * width;
    pulls[by] += dot(slope + token * width, back + row, width);
    for (unsigned feature = 0; feature < width; ++feature)
        sent[row + feature] = probabilities[by] * slope[token * width + feature];
}

// What flows back to a token by the residual stream and by its experts. One thread per element of `to`.
KERNEL add_back(const float *slope, const float *back, const unsigned *places, float *to, unsigned tokens,
                unsigned each, unsigned width) {
    const size_t i = element(), token = i / width;
    if (token >= tokens) return;
    float sum = slope[i];
    for (size_t pick = token * each; pick < (token + 1) * each; ++pick)
        if (places[pick] != NO_PLACE) sum += back[(size_t)places[pick] * width + i % width];
    to[i] = sum;
}
