// Gradients of the sparse linear layer: one dot product per surviving weight (dW), the transposed
// product (dX), and one pass that applies ReLU's derivative to dY and sums its rows (dbias).
#pragma once
#include "linear.hpp"
#include "memory.hpp"

namespace snip::SNIP_ISA {

// dw[k] = dot(dy[r], x[cols[k]]) for N weights of one row at once, which share the loads of dy.
template <class V, int N>
static inline void dots(const float* dy, const float* x, int64_t ldx, const int32_t* cols, float* dw,
                        int64_t batch, V tail, bool add) {
    constexpr int W = Width<V>::lanes;
    const float* row[N];
    V even[N], odd[N];
    SNIP_UNROLL for (int j = 0; j < N; j++) {
        row[j] = x + cols[j] * ldx;
        even[j] = odd[j] = splat<V>(0.0f);
    }
    int64_t b = 0;
    for (; b + 2 * W <= batch; b += 2 * W) {
        V d = load<V>(dy + b), e = load<V>(dy + b + W);
        SNIP_UNROLL for (int j = 0; j < N; j++) even[j] += d * load<V>(row[j] + b);
        SNIP_UNROLL for (int j = 0; j < N; j++) odd[j] += e * load<V>(row[j] + b + W);
    }
    if (b + W <= batch) {
        V d = load<V>(dy + b);
        SNIP_UNROLL for (int j = 0; j < N; j++) even[j] += d * load<V>(row[j] + b);
        b += W;
    }
    if (b < batch) {
        SNIP_UNROLL for (int j = 0; j < N; j++) odd[j] += tail * load<V>(row[j] + batch - W);
    }
    SNIP_UNROLL for (int j = 0; j < N; j++) even[j] += odd[j];
    float sums[N];
    if constexpr (W == 1) {
        SNIP_UNROLL for (int j = 0; j < N; j++) sums[j] = even[j];
    } else {
        sums_of<V, N>(even, sums);
    }
    SNIP_UNROLL for (int j = 0; j < N; j++) dw[j] = add ? dw[j] + sums[j] : sums[j];
}

// The last whole vector of a row of dy without the lanes that an earlier vector already covers.
template <class V>
static inline V tail_of(const float* dy, int64_t batch) {
    constexpr int W = Width<V>::lanes;
    float lanes[W] = {};
    for (int64_t rest = batch % W, j = 0; j < rest; j++) lanes[W - rest + j] = dy[batch - rest + j];
    return load<V>(lanes);
}

template <class V>
static void weight_columns(const int32_t* rowptr, const int32_t* cols, const float* x, int64_t ldx,
                           const float* dy, int64_t lddy, float* dw, int64_t batch, int64_t r0, int64_t r1,
                           bool add) {
    for (int64_t r = r0; r < r1; r++) {
        int64_t k = rowptr[r], end = rowptr[r + 1];
        const float* d = dy + r * lddy;
        V tail = tail_of<V>(d, batch);
        for (; k + 4 <= end; k += 4) dots<V, 4>(d, x, ldx, cols + k, dw + k, batch, tail, add);
        switch (end - k) {
            case 3: dots<V, 3>(d, x, ldx, cols + k, dw + k, batch, tail, add); break;
            case 2: dots<V, 2>(d, x, ldx, cols + k, dw + k, batch, tail, add); break;
            case 1: dots<V, 1>(d, x, ldx, cols + k, dw + k, batch, tail, add); break;
        }
    }
}

// A long batch (all steps of a recurrent layer) in pieces, so that x of a piece stays in the cache
// while all weights meet it.
constexpr int64_t PIECE = 448;

template <class V>
static void weight_rows(const int32_t* rowptr, const int32_t* cols, const float* x, int64_t ldx,
                        const float* dy, int64_t lddy, float* dw, int64_t batch, int64_t r0, int64_t r1) {
    int64_t pieces = most(1, batch / PIECE);
    for (int64_t piece = 0; piece < pieces; piece++) {
        int64_t from = batch / VL * piece / pieces * VL;
        int64_t to = piece + 1 == pieces ? batch : batch / VL * (piece + 1) / pieces * VL;
        weight_columns<V>(rowptr, cols, x + from, ldx, dy + from, lddy, dw, to - from, r0, r1, piece > 0);
    }
}

// g = dy where y > 0 (all of dy without y), dbias = row sums of g.
static void mask_row(const float* dy, const float* y, float* g, float* dbias, int64_t batch) {
    vf total = splat<vf>(0.0f);
    int64_t b = 0;
    for (; b + VL <= batch; b += VL) {
        vf d = load<vf>(dy + b);
        if (y) {
            d = keep_lanes(d, load<vf>(y + b) > splat<vf>(0.0f));
            store<vf>(g + b, d);
        }
        total += d;
    }
    float rest = 0;
    for (; b < batch; b++) {
        float d = y && !(y[b] > 0) ? 0.0f : dy[b];
        if (y) g[b] = d;
        rest += d;
    }
    if (dbias) *dbias = sum(total) + rest;
}

// Null pointers leave a step out: y (no ReLU), dx, dw, dbias.
SNIP_KERNEL void linear_backward(const int32_t* rowptr, const int32_t* cols, const int32_t* t_rowptr,
                                 const int32_t* t_cols, const int32_t* t_order, const float* values,
                                 const float* x, int64_t ldx, const float* dy, int64_t lddy, const float* y,
                                 int64_t ldy, float* dx, int64_t lddx, float* dw, float* dbias, int64_t rows,
                                 int64_t columns, int64_t batch, int32_t threads) {
    check_counts(rows, columns, batch);
    const float* g = dy;
    int64_t ldg = lddy;
    if (y) {
        ldg = ceil_div(batch, 16) * 16;
        g = scratch(MASKED, rows * ldg);
    }
    if (y || dbias) {
        int64_t parts = parts_for(rows * batch, threads);
        auto mask = [&](int64_t part) {
            for (int64_t r = rows * part / parts; r < rows * (part + 1) / parts; r++)
                mask_row(dy + r * lddy, y ? y + r * ldy : nullptr, const_cast<float*>(g) + r * ldg,
                         dbias ? dbias + r : nullptr, batch);
        };
        parallel(parts, threads, mask);
    }
    Product back{t_rowptr, t_cols, t_order, values, g, ldg, nullptr, dx, lddx, 0};
    int64_t parts = parts_for((rowptr[rows] + columns) * batch, threads);
    int64_t dx_parts = dx ? parts : 0, dw_parts = dw ? parts : 0;
    auto body = [&](int64_t task) {
        if (task < dx_parts) {
            product_rows(back, batch, part_of_rows(t_rowptr, columns, task, parts),
                         part_of_rows(t_rowptr, columns, task + 1, parts));
        } else {
            int64_t part = task - dx_parts;
            auto* weights = batch < 4 ? weight_rows<float> : batch < VL ? weight_rows<v4> : weight_rows<vf>;
            weights(rowptr, cols, x, ldx, g, ldg, dw, batch, part_of_rows(rowptr, rows, part, parts),
                    part_of_rows(rowptr, rows, part + 1, parts));
        }
    };
    parallel(dx_parts + dw_parts, threads, body);
}

}  // namespace snip::SNIP_ISA
