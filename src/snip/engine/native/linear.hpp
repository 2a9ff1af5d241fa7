// Sparse times dense on columns: x is [features, batch] with the batch contiguous, so every surviving
// weight is one broadcast and a row of multiply-adds. The weights are in CSR (rowptr, cols, values).
#pragma once
#include "errors.hpp"
#include "marks.hpp"
#include "parallel.hpp"
#include "vec.hpp"

namespace snip::SNIP_ISA {

SNIP_ENUM LinearFlags { RELU = 1, ACCUMULATE = 2, TURNED = 4 };

// y[r] = sum over k in row r of values[k] * x[cols[k]]; values go through `order` when it is given
// (the transposed product reads the same values in another order).
struct Product {
    const int32_t *rowptr, *cols, *order;
    const float* values;
    const float* x;
    int64_t ldx;
    const float* bias;
    float* y;
    int64_t ldy;
    int flags;
};

// T vectors of one row at a time; the last starts at `last`, overlapping its neighbour when the
// batch is no multiple of the vector, so that nothing is read or written out of bounds.
template <class V, int T>
static void product_tile(const Product& p, int64_t start, int64_t last, int64_t r0, int64_t r1) {
    constexpr int W = Width<V>::lanes;
    for (int64_t r = r0; r < r1; r++) {
        float* y = p.y + r * p.ldy + start;
        V acc[T];
        V first = splat<V>(p.bias ? p.bias[r] : 0.0f);
        SNIP_UNROLL for (int t = 0; t < T; t++) acc[t] = first;
        if (p.flags & ACCUMULATE) {
            SNIP_UNROLL for (int t = 0; t < T; t++) acc[t] += load<V>(y + (t + 1 < T ? t * W : last));
        }
        for (int64_t k = p.rowptr[r], end = p.rowptr[r + 1]; k < end; k++) {
            V w = splat<V>(p.values[p.order ? p.order[k] : k]);
            const float* x = p.x + p.cols[k] * p.ldx + start;
            SNIP_UNROLL for (int t = 0; t < T - 1; t++) acc[t] += w * load<V>(x + t * W);
            acc[T - 1] += w * load<V>(x + last);
        }
        if (p.flags & RELU) {
            SNIP_UNROLL for (int t = 0; t < T; t++) acc[t] = relu_of(acc[t]);
        }
        SNIP_UNROLL for (int t = 0; t < T; t++) store<V>(y + (t + 1 < T ? t * W : last), acc[t]);
    }
}

template <class V, int T>
static inline void product_width(int64_t width, const Product& p, int64_t start, int64_t last, int64_t r0,
                                 int64_t r1) {
    if (width == T) {
        product_tile<V, T>(p, start, last, r0, r1);
    } else if constexpr (T > 1) {
        product_width<V, T - 1>(width, p, start, last, r0, r1);
    }
}

template <class V>
static void product_vectors(const Product& p, int64_t batch, int64_t r0, int64_t r1) {
    constexpr int W = Width<V>::lanes;
    int64_t vectors = ceil_div(batch, W), tiles = ceil_div(vectors, MAX_ACC);
    for (int64_t tile = 0; tile < tiles; tile++) {
        int64_t from = vectors * tile / tiles, to = vectors * (tile + 1) / tiles;
        int64_t last = least((to - 1) * W, batch - W) - from * W;
        product_width<V, MAX_ACC>(to - from, p, from * W, last, r0, r1);
    }
}

// A ReLU as a bound: a branch would be taken by the sign of every sum, which no processor predicts.
static float lower_bound(const Product& p) { return p.flags & RELU ? 0.0f : -__builtin_inff(); }

#if defined(__AVX512F__)
// A batch of one whose inputs lie side by side: a row of weights at once. Rows are of different lengths,
// which no processor predicts, so the loop over a row must be taken once as often as possible.
static void product_gathered(const Product& p, int64_t r0, int64_t r1) {
    float least_y = lower_bound(p);
    for (int64_t r = r0; r < r1; r++) {
        __m512 sum = _mm512_setzero_ps();
        int64_t k = p.rowptr[r], end = p.rowptr[r + 1];
        do {
            __mmask16 some = end - k >= VL ? __mmask16(0xffff) : __mmask16((1u << (end - k)) - 1);
            __m512i cols = _mm512_maskz_loadu_epi32(some, p.cols + k);
            __m512 x = _mm512_mask_i32gather_ps(_mm512_setzero_ps(), some, cols, p.x, 4);
            sum = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(some, p.values + k), x, sum);
            k += VL;
        } while (k < end);
        float y = _mm512_reduce_add_ps(sum) + (p.bias ? p.bias[r] : 0.0f);
        if (p.flags & ACCUMULATE) y += p.y[r * p.ldy];
        p.y[r * p.ldy] = y < least_y ? least_y : y;
    }
}
#endif

// A batch of one: dot products with gathered inputs, four sums at a time to hide the latency.
static void product_single(const Product& p, int64_t r0, int64_t r1) {
    float least_y = lower_bound(p);
#if defined(__AVX512F__)
    if (p.ldx == 1 && !p.order) return product_gathered(p, r0, r1);
#endif
    for (int64_t r = r0; r < r1; r++) {
        float s[4] = {p.bias ? p.bias[r] : 0.0f, 0, 0, 0};
        if (p.flags & ACCUMULATE) s[1] = p.y[r * p.ldy];
        int64_t k = p.rowptr[r], end = p.rowptr[r + 1];
        for (; k + 4 <= end; k += 4)
            SNIP_UNROLL for (int j = 0; j < 4; j++) s[j] +=
                p.values[p.order ? p.order[k + j] : k + j] * p.x[p.cols[k + j] * p.ldx];
        for (; k < end; k++) s[0] += p.values[p.order ? p.order[k] : k] * p.x[p.cols[k] * p.ldx];
        float y = (s[0] + s[1]) + (s[2] + s[3]);
        p.y[r * p.ldy] = y < least_y ? least_y : y;
    }
}

static void product_rows(const Product& p, int64_t batch, int64_t r0, int64_t r1) {
    if (batch == 1) return product_single(p, r0, r1);
    if (batch < 4) return product_vectors<float>(p, batch, r0, r1);
    if (batch < VL) return product_vectors<v4>(p, batch, r0, r1);
    product_vectors<vf>(p, batch, r0, r1);
}

// First row of part `part` of `parts` with about equal numbers of weights (and of rows).
static int64_t part_of_rows(const int32_t* rowptr, int64_t rows, int64_t part, int64_t parts) {
    int64_t goal = (rowptr[rows] + rows) * part / parts, low = 0, high = rows;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (rowptr[middle] + middle < goal)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int64_t parts_for(int64_t work, int threads) {
    return threads <= 1 || work < SERIAL_WORK ? 1 : least(4 * threads, work / PART_WORK);
}

SNIP_KERNEL void linear_forward(const int32_t* rowptr, const int32_t* cols, const int32_t* order,
                                const float* values, const float* x, int64_t ldx, const float* bias, float* y,
                                int64_t ldy, int64_t rows, int64_t batch, int32_t flags, int32_t threads) {
    check_counts(rows, batch);
    Product p{rowptr, cols, order, values, x, ldx, bias, y, ldy, flags};
    int64_t parts = parts_for((rowptr[rows] + rows) * batch, threads);
    auto body = [&](int64_t part) {
        product_rows(p, batch, part_of_rows(rowptr, rows, part, parts),
                     part_of_rows(rowptr, rows, part + 1, parts));
    };
    parallel(parts, threads, body);
}

}  // namespace snip::SNIP_ISA
