// Convolutions of 3 x 3 and stride 1 that are hardly sparse: dense, on blocks, by Winograd's minimal
// filtering F(2x2, 3x3) (Lavin and Gray 2016). A tile of 2 x 2 outputs costs 16 products per pair of
// channels where the direct way has 36, so it beats the sparse kernel from about half density on; in
// single precision it loses no more than a few units in the last place.
#pragma once
#include "errors.hpp"
#include "marks.hpp"
#include "memory.hpp"
#include "parallel.hpp"
#include "vec.hpp"

namespace snip::SNIP_ISA {

constexpr int64_t PLACES = 16;  // of a transformed 4 x 4 tile
constexpr int64_t TOGETHER = 2;  // tiles

SNIP_STRUCT Winograd {
    int64_t channels, outs;  // of the tensor read and of the one written
    int64_t in_h, in_w, out_h, out_w, pad_h, pad_w;
    int64_t lanes, batch;

    int64_t across() const { return ceil_div(out_w, 2); }
    int64_t tiles() const { return ceil_div(out_h, 2) * across(); }
    int64_t blocks() const { return ceil_div(batch, lanes); }
    int64_t floats() const { return TOGETHER * lanes; }  // of one channel and place
    // Between places: a cache line more, or all 16 would fight for the same cache set.
    int64_t apart(int64_t channels) const { return channels * floats() + 16; }
};

// One row or column of 4: B^T d.
template <class V>
static inline void turn_input(const V* d, int64_t step, V* to, int64_t to_step) {
    to[0] = d[0] - d[2 * step];
    to[to_step] = d[step] + d[2 * step];
    to[2 * to_step] = d[2 * step] - d[step];
    to[3 * to_step] = d[step] - d[3 * step];
}

// The 4 x 4 inputs of a tile, zero outside the image, transformed; `to` advances by `apart` a place.
static void transform_input(const Winograd& w, const float* channel, int64_t tile, float* to, int64_t apart) {
    int64_t top = tile / w.across() * 2 - w.pad_h, left = tile % w.across() * 2 - w.pad_w;
    for (int64_t j = 0; j < w.lanes; j += VL) {
        vf d[16], half[16], done[16];
        SNIP_UNROLL for (int i = 0; i < 16; i++) {
            int64_t y = top + i / 4, x = left + i % 4;
            bool inside = y >= 0 && y < w.in_h && x >= 0 && x < w.in_w;
            d[i] = inside ? load<vf>(channel + (y * w.in_w + x) * w.lanes + j) : splat<vf>(0.0f);
        }
        SNIP_UNROLL for (int i = 0; i < 4; i++) turn_input(d + i, 4, half + i, 4);
        SNIP_UNROLL for (int i = 0; i < 4; i++) turn_input(half + 4 * i, 1, done + 4 * i, 1);
        SNIP_UNROLL for (int i = 0; i < 16; i++) store<vf>(to + i * apart + j, done[i]);
    }
}

// A^T m A of the 16 places of a tile, (* scale) + shift, then ReLU, to the outputs that exist.
static void transform_output(const Winograd& w, const float* from, int64_t apart, int64_t tile, float scale,
                             float shift, bool relu, float* channel) {
    int64_t row = tile / w.across() * 2, col = tile % w.across() * 2;
    for (int64_t j = 0; j < w.lanes; j += VL) {
        vf m[16], half[8];
        SNIP_UNROLL for (int i = 0; i < 16; i++) m[i] = load<vf>(from + i * apart + j);
        SNIP_UNROLL for (int i = 0; i < 4; i++) {
            half[i] = m[i] + m[4 + i] + m[8 + i];
            half[4 + i] = m[4 + i] - m[8 + i] - m[12 + i];
        }
        SNIP_UNROLL for (int r = 0; r < 2; r++) {
            const vf* h = half + 4 * r;
            vf y[2] = {h[0] + h[1] + h[2], h[1] - h[2] - h[3]};
            SNIP_UNROLL for (int c = 0; c < 2; c++) {
                if (row + r >= w.out_h || col + c >= w.out_w) continue;
                vf v = y[c] * splat<vf>(scale) + splat<vf>(shift);
                store<vf>(channel + ((row + r) * w.out_w + col + c) * w.lanes + j, relu ? relu_of(v) : v);
            }
        }
    }
}

// R rows of m = u v for one place: u [out, in], v [in, floats], T vectors of it at once.
template <int R, int T>
static void multiply_rows(const float* u, const float* v, float* m, int64_t in, int64_t row) {
    vf acc[R * T];
    SNIP_UNROLL for (int i = 0; i < R * T; i++) acc[i] = splat<vf>(0.0f);
    for (int64_t c = 0; c < in; c++, v += row) {
        vf x[T];
        SNIP_UNROLL for (int t = 0; t < T; t++) x[t] = load<vf>(v + t * VL);
        SNIP_UNROLL for (int r = 0; r < R; r++) {
            vf s = splat<vf>(u[r * in + c]);
            SNIP_UNROLL for (int t = 0; t < T; t++) acc[r * T + t] += s * x[t];
        }
    }
    SNIP_UNROLL for (int i = 0; i < R * T; i++) store<vf>(m + i / T * row + i % T * VL, acc[i]);
}

static void multiply_place(const Winograd& w, const float* u, const float* v, float* m) {
    constexpr int T = VL >= 16 ? 2 : 4, R = MAX_ACC / T;
    for (int64_t t = 0; t < w.floats(); t += T * VL) {
        int64_t r = 0;
        for (; r + R <= w.outs; r += R)
            multiply_rows<R, T>(u + r * w.channels, v + t, m + r * w.floats() + t, w.channels, w.floats());
        for (; r < w.outs; r++)
            multiply_rows<1, T>(u + r * w.channels, v + t, m + r * w.floats() + t, w.channels, w.floats());
    }
}

// u [16, out, in] = G g G^T of dense weights [out, in, 3, 3]; `back` turns them for the product back
// to the input, where `out` and `in` have changed places.
SNIP_KERNEL void winograd_weights(const float* weights, float* u, int64_t out, int64_t in, int32_t back,
                                  int32_t threads) {
    check_counts(out, in);
    auto body = [&](int64_t o) {
        for (int64_t c = 0; c < in; c++) {
            const float* g = weights + (back ? c * out + o : o * in + c) * 9;
            float half[12];
            for (int j = 0; j < 3; j++) {
                float a = g[back ? 8 - j : j], b = g[back ? 5 - j : 3 + j], d = g[back ? 2 - j : 6 + j];
                half[j] = a;
                half[3 + j] = 0.5f * (a + b + d);
                half[6 + j] = 0.5f * (a - b + d);
                half[9 + j] = d;
            }
            for (int i = 0; i < 4; i++) {
                float a = half[3 * i], b = half[3 * i + 1], d = half[3 * i + 2];
                float row[4] = {a, 0.5f * (a + b + d), 0.5f * (a - b + d), d};
                for (int j = 0; j < 4; j++) u[((4 * i + j) * out + o) * in + c] = row[j];
            }
        }
    };
    parallel(out, out * in * 16 < SERIAL_MOVES ? 1 : threads, body);
}

// y = convolution of x (* scale) (+ bias) (then ReLU); lanes must be a multiple of 16.
SNIP_KERNEL void winograd_forward(const Winograd* winograd, const float* u, const float* x,
                                  const float* scale, const float* bias, float* y, int32_t relu,
                                  int32_t threads) {
    const Winograd& w = *winograd;
    check_counts(w.channels, w.outs, w.in_h, w.in_w, w.out_h, w.out_w, w.pad_h, w.pad_w, w.batch);
    if (w.lanes < 16 || w.lanes % 16) refuse("lanes must be a multiple of 16, not", w.lanes);
    int64_t groups = ceil_div(w.tiles(), TOGETHER), n = w.floats();
    auto body = [&](int64_t task) {
        int64_t block = task / groups, first = task % groups * TOGETHER;
        int64_t count = least(TOGETHER, w.tiles() - first);
        float* v = scratch(PACKED_INPUT, PLACES * w.apart(w.channels));
        float* m = scratch(PARTIAL_OUTPUT, PLACES * w.apart(w.outs));
        for (int64_t c = 0; c < w.channels; c++)
            for (int64_t t = 0; t < count; t++)
                transform_input(w, x + (block * w.channels + c) * w.in_h * w.in_w * w.lanes, first + t,
                                v + c * n + t * w.lanes, w.apart(w.channels));
        for (int64_t k = 0; k < PLACES; k++)
            multiply_place(w, u + k * w.outs * w.channels, v + k * w.apart(w.channels),
                           m + k * w.apart(w.outs));
        for (int64_t o = 0; o < w.outs; o++)
            for (int64_t t = 0; t < count; t++)
                transform_output(w, m + o * n + t * w.lanes, w.apart(w.outs), first + t,
                                 scale ? scale[o] : 1.0f, bias ? bias[o] : 0.0f, relu != 0,
                                 y + (block * w.outs + o) * w.out_h * w.out_w * w.lanes);
    };
    parallel(w.blocks() * groups, threads, body);
}

}  // namespace snip::SNIP_ISA
