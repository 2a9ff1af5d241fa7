// What LSTM and GRU share: the walk over a whole sequence. Buffers are columns, step after step, and
// within a step batch element after batch element. Elements stand in order of falling length, so that a
// step has the first few of them. Batch elements do not interact, so each thread takes some of them
// through all steps without waiting for the others. Products with the inputs of all steps at once are
// plain linear kernels, done by the caller.
#pragma once
#include "copies.hpp"
#include "errors.hpp"
#include "linear.hpp"
#include "memory.hpp"
#include "parallel.hpp"

namespace snip::SNIP_ISA {

struct Sequence {
    int64_t hidden, batch, steps;
    const int64_t* sizes;  // [steps] how many elements each step has; null if all have the whole batch
    int threads;

    Sequence(int64_t hidden_, int64_t batch_, int64_t steps_, const int64_t* sizes_, int threads_)
        : hidden(hidden_),
          batch(batch_),
          steps(steps_),
          sizes(sizes_),
          threads(static_cast<int>(most(1, threads_))) {
        check_counts(hidden, batch, steps);
        for (int64_t t = 0; sizes && t < steps; t++)
            if (sizes[t] < 1 || sizes[t] > (t ? sizes[t - 1] : batch))
                refuse("a step has one element at least, and no more than the step before, not", sizes[t]);
    }
    int64_t size(int64_t t) const { return sizes ? sizes[t] : batch; }
    int64_t columns() const {
        int64_t sum = 0;
        for (int64_t t = 0; t < steps; t++) sum += size(t);
        return sum;
    }
};

// Where a step lies in the caller's buffers. Those of states begin with the initial one, [rows, batch].
struct StepPlace {
    int64_t column;         // its first, in buffers without an initial state
    int64_t before, after;  // the columns of the states before it and after it
    int64_t size;

    StepPlace(const Sequence& s, int64_t t, int64_t column_)
        : column(column_),
          before(t ? s.batch + column_ - s.size(t - 1) : 0),
          after(s.batch + column_),
          size(s.size(t)) {}
};

// Some elements of the batch. Between steps a thread keeps its share of what the next product reads in a
// buffer of its own: in the caller's buffers a step's rows lie pages apart.
struct Share {
    int64_t first, count, row;  // columns of the batch, and floats per row of the buffer

    Share(int64_t first_, int64_t count_) : first(first_), count(count_), row(ceil_div(count_, 16) * 16) {}
    float* buffer(int64_t rows) const { return scratch(STATE, rows * row); }
    int64_t count_of(const StepPlace& step) const { return most(0, least(count, step.size - first)); }
};

// Runs body(share) on shares of the batch of whole vectors.
template <class F>
static inline void each_share(const Sequence& s, F body) {
    int64_t vectors = most(1, s.batch / VL);
    int64_t shares = s.hidden * s.batch * s.steps * 8 < SERIAL_WORK ? 1 : least(vectors, s.threads);
    auto share = [&](int64_t i) {
        int64_t from = vectors * i / shares * VL;
        int64_t to = i + 1 == shares ? s.batch : vectors * (i + 1) / shares * VL;
        body(Share(from, to - from));
    };
    parallel(shares, s.threads, share);
}

// Hidden units whose products are computed together: calls are few, and the sums stay in the cache.
constexpr int64_t RUN = 16;

// A run of hidden units at one step.
struct UnitRun {
    int64_t column, before, after;  // where the step and its states begin for this share (StepPlace)
    int64_t count;                  // elements of the share that have this step
    int64_t unit, units;            // the first unit, and how many
    const float* now;               // the state before the step, [hidden, share.row]
    float* next;                    // receives the state after it
    float* room;                    // [room, share.row]
};

// Runs body(share, run) for all runs of all steps, from the state in the first columns of h. `packed`
// puts the units of a lone sequence side by side in the buffers.
template <class F>
static void run_steps(const Sequence& s, const float* h, int64_t h_row, int64_t room, bool packed, F body) {
    each_share(s, [&](Share share) {
        if (packed) share.row = 1;
        int64_t state = s.hidden * share.row;
        float* now = share.buffer(2 * s.hidden + room);
        float *next = now + state, *extra = next + state;
        for (int64_t j = 0; j < s.hidden; j++)
            copy_floats(now + j * share.row, h + j * h_row + share.first, share.count);
        for (int64_t t = 0, column = 0; t < s.steps; column += s.size(t++)) {
            StepPlace step(s, t, column);
            int64_t count = share.count_of(step), first = share.first;
            if (!count) break;  // and no later step has more
            for (int64_t unit = 0; unit < s.hidden; unit += RUN)
                body(share, UnitRun{step.column + first, step.before + first, step.after + first, count, unit,
                                    least(RUN, s.hidden - unit), now, next, extra});
            float* swap = now;
            now = next;
            next = swap;
        }
    });
}

// The transposed hidden-to-hidden weights.
struct BackWeights {
    const int32_t *rowptr, *cols, *order;
    const float* values;
};

// All steps backwards. body(unit, step, element, n, d) fills d with the gradients of the unit's gates at a
// step for n batch elements from `element` on. Their product with the weights becomes the gradient of the
// state before the step, in carry [hidden, batch] (added to it with ACCUMULATE).
template <int GATES, class F>
static void run_steps_back(const Sequence& s, const BackWeights& w, float* carry, int64_t carry_row,
                           int flags, F body) {
    each_share(s, [&](Share share) {
        float* here = share.buffer(GATES * s.hidden);  // the gates' gradients of this step
        int64_t column = s.columns();
        for (int64_t t = s.steps - 1; t >= 0; t--) {
            column -= s.size(t);
            StepPlace step(s, t, column);
            int64_t count = share.count_of(step);
            if (!count) continue;
            for (int64_t j = 0; j < s.hidden; j++)
                for (int64_t b = 0; b < count; b += VL) {
                    vf d[GATES];
                    body(j, step, share.first + b, count - b, d);
                    SNIP_UNROLL for (int i = 0; i < GATES; i++)
                        store<vf>(here + (i * s.hidden + j) * share.row + b, d[i]);
                }
            Product p{w.rowptr,  w.cols, w.order, w.values, here, share.row, nullptr, carry + share.first,
                      carry_row, flags};
            product_rows(p, count, 0, s.hidden);
        }
    });
}

}  // namespace snip::SNIP_ISA
