// Max pooling and means of whole planes, on blocks.
#pragma once
#include "copies.hpp"
#include "errors.hpp"
#include "lanes.hpp"
#include "marks.hpp"
#include "parallel.hpp"

namespace snip::SNIP_ISA {

SNIP_STRUCT Window {
    int32_t in_h, in_w, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h,
        dilation_w;
};

typedef uint8_t vb_any __attribute__((vector_size(VL), aligned(1), may_alias));

// The part of a window that lies inside the plane: taps [first, last) along one axis, tap i at input
// position start + i * step.
struct Taps {
    int32_t first, last;
    int64_t start;

    Taps(int64_t out, int32_t stride, int32_t pad, int32_t taps, int32_t step, int32_t size)
        : first(0), last(taps), start(out * stride - pad) {
        while (first < taps && start + int64_t(first) * step < 0) first++;
        while (last > first && start + int64_t(last - 1) * step >= size) last--;
    }
};

struct Patch {
    const Window& w;
    Taps rows, cols;

    Patch(const Window& window, int64_t oy, int64_t ox)
        : w(window),
          rows(oy, w.stride_h, w.pad_h, w.kernel_h, w.dilation_h, w.in_h),
          cols(ox, w.stride_w, w.pad_w, w.kernel_w, w.dilation_w, w.in_w) {}
    // Calls body(number within the window, input position).
    template <class F>
    void each(F body) const {
        for (int32_t ky = rows.first; ky < rows.last; ky++)
            for (int32_t kx = cols.first; kx < cols.last; kx++)
                body(ky * w.kernel_w + kx, (rows.start + int64_t(ky) * w.dilation_h) * w.in_w + cols.start +
                                               int64_t(kx) * w.dilation_w);
    }
};

// One output position: the largest of its window per lane, and which of the window it was. A NaN
// wins, as in torch; anything wins over nothing yet.
static void pool_position(const Patch& patch, const float* plane, int64_t lanes, float* y, uint8_t* which) {
    int64_t j = 0;
    for (; j + VL <= lanes; j += VL) {
        vf best = splat<vf>(-__builtin_inff());
        vi place = vi{} - 1;
        patch.each([&](int32_t k, int64_t position) {
            vf v = load<vf>(plane + position * lanes + j);
            vi wins = (v > best) | (v != v) | (place < vi{});
            best = wins ? v : best;
            place = wins ? vi{} + k : place;
        });
        store<vf>(y + j, best);
        *reinterpret_cast<vb_any*>(which + j) = __builtin_convertvector(place, vb_any);
    }
    for (; j < lanes; j++) {
        float best = -__builtin_inff();
        int32_t place = -1;
        patch.each([&](int32_t k, int64_t position) {
            float v = plane[position * lanes + j];
            if (!(v > best || v != v || place < 0)) return;
            best = v;
            place = k;
        });
        y[j] = best;
        which[j] = uint8_t(place);
    }
}

// Gives dy of one output position back to the input it came from: added, or with ALONE, when every
// input lies in exactly one window, simply written.
template <bool ALONE>
static void unpool_position(const Patch& patch, const float* dy, const uint8_t* which, int64_t lanes,
                            float* plane) {
    int64_t j = 0;
    for (; j + VL <= lanes; j += VL) {
        vi place = __builtin_convertvector(*reinterpret_cast<const vb_any*>(which + j), vi);
        vf d = load<vf>(dy + j);
        patch.each([&](int32_t k, int64_t position) {
            float* to = plane + position * lanes + j;
            vf here = keep_lanes(d, place == k);
            store<vf>(to, ALONE ? here : load<vf>(to) + here);
        });
    }
    for (; j < lanes; j++)
        patch.each([&](int32_t k, int64_t position) {
            float here = which[j] == k ? dy[j] : 0.0f, *to = plane + position * lanes + j;
            *to = ALONE ? here : *to + here;
        });
}

// A window that lies inside the plane whole, of a size known when this is compiled: `corner` is its
// first input, `row` the floats between rows. Nearly all of pooling is this.
template <int K>
static void pool_inside(const float* corner, int64_t row, int64_t lanes, float* y, uint8_t* which) {
    for (int64_t j = 0; j < lanes; j += VL) {
        vf best = load<vf>(corner + j);
        vi place = vi{};
        SNIP_UNROLL for (int k = 1; k < K * K; k++) {
            vf v = load<vf>(corner + k / K * row + k % K * lanes + j);
            vi wins = (v > best) | (v != v);
            best = wins ? v : best;
            place = wins ? vi{} + k : place;
        }
        store<vf>(y + j, best);
        *reinterpret_cast<vb_any*>(which + j) = __builtin_convertvector(place, vb_any);
    }
}

template <int K>
static void unpool_inside(const float* dy, const uint8_t* which, int64_t row, int64_t lanes, float* corner) {
    for (int64_t j = 0; j < lanes; j += VL) {
        vi place = __builtin_convertvector(*reinterpret_cast<const vb_any*>(which + j), vi);
        vf d = load<vf>(dy + j);
        SNIP_UNROLL for (int k = 0; k < K * K; k++)
            store<vf>(corner + k / K * row + k % K * lanes + j, keep_lanes(d, place == k));
    }
}

// Whether pool_inside<2> covers all of it: windows of 2 x 2 side by side, none cut off.
static bool is_plain_2x2(const Window& w, int64_t lanes) {
    return w.kernel_h == 2 && w.kernel_w == 2 && w.stride_h == 2 && w.stride_w == 2 && w.pad_h == 0 &&
           w.pad_w == 0 && w.dilation_h == 1 && w.dilation_w == 1 && 2 * w.out_h <= w.in_h &&
           2 * w.out_w <= w.in_w && lanes % VL == 0;
}

// Runs body(input corner, output position) over a plane of such windows.
template <class F>
static inline void each_2x2(const Window& w, int64_t plane, F body) {
    for (int64_t oy = 0; oy < w.out_h; oy++)
        for (int64_t ox = 0; ox < w.out_w; ox++)
            body((plane * w.in_h + 2 * oy) * w.in_w + 2 * ox, (plane * w.out_h + oy) * w.out_w + ox);
}

static inline void check_window(const Window& w, int64_t planes, int64_t lanes) {
    check_counts(planes, lanes, w.pad_h, w.pad_w);
    int64_t positions = int64_t(w.kernel_h) * w.kernel_w;
    if (w.kernel_h < 1 || w.kernel_w < 1 || positions > MOST_POSITIONS)
        refuse("a pooling window has 1 to 255 positions, not", positions);
    const int32_t positive[] = {w.in_h,     w.in_w,     w.out_h,      w.out_w,
                                w.stride_h, w.stride_w, w.dilation_h, w.dilation_w};
    for (int32_t number : positive)
        if (number < 1) refuse("planes, strides and dilations of a pooling are 1 or more, not", number);
}

static inline int pool_threads(const Window& w, int64_t planes, int64_t lanes, int threads) {
    return planes * w.in_h * w.in_w * lanes < SERIAL_MOVES ? 1 : threads;
}

// Runs body(plane, position, patch) over every output position of every plane.
template <class F>
static inline void each_patch(const Window& w, int64_t planes, int64_t lanes, int threads, F body) {
    auto one = [&](int64_t plane) {
        for (int64_t oy = 0; oy < w.out_h; oy++)
            for (int64_t ox = 0; ox < w.out_w; ox++)
                body(plane, (plane * w.out_h + oy) * w.out_w + ox, Patch(w, oy, ox));
    };
    parallel(planes, pool_threads(w, planes, lanes, threads), one);
}

// Largest of each window; `which` keeps its number within the window (at most 255 of them).
SNIP_KERNEL void max_pool(const float* x, float* y, uint8_t* which, const Window* w, int64_t planes,
                          int64_t lanes, int32_t threads) {
    check_window(*w, planes, lanes);
    int64_t in = int64_t(w->in_h) * w->in_w * lanes;
    if (is_plain_2x2(*w, lanes)) {
        auto one = [&](int64_t plane) {
            each_2x2(*w, plane, [&](int64_t from, int64_t at) {
                pool_inside<2>(x + from * lanes, w->in_w * lanes, lanes, y + at * lanes, which + at * lanes);
            });
        };
        return parallel(planes, pool_threads(*w, planes, lanes, threads), one);
    }
    each_patch(*w, planes, lanes, threads, [&](int64_t plane, int64_t at, const Patch& patch) {
        pool_position(patch, x + plane * in, lanes, y + at * lanes, which + at * lanes);
    });
}

SNIP_KERNEL void max_pool_backward(const float* dy, const uint8_t* which, float* dx, const Window* w,
                                   int64_t planes, int64_t lanes, int32_t threads) {
    check_window(*w, planes, lanes);
    int64_t in = int64_t(w->in_h) * w->in_w * lanes, out = int64_t(w->out_h) * w->out_w;
    bool alone = w->kernel_h == w->stride_h && w->kernel_w == w->stride_w && w->dilation_h == 1 &&
                 w->dilation_w == 1 && w->pad_h == 0 && w->pad_w == 0 &&
                 int64_t(w->out_h) * w->stride_h >= w->in_h && int64_t(w->out_w) * w->stride_w >= w->in_w;
    if (alone && is_plain_2x2(*w, lanes)) {
        auto one = [&](int64_t plane) {
            each_2x2(*w, plane, [&](int64_t to, int64_t at) {
                unpool_inside<2>(dy + at * lanes, which + at * lanes, w->in_w * lanes, lanes,
                                 dx + to * lanes);
            });
        };
        return parallel(planes, pool_threads(*w, planes, lanes, threads), one);
    }
    auto* unpool = alone ? unpool_position<true> : unpool_position<false>;
    each_patch(*w, planes, lanes, threads, [&](int64_t plane, int64_t at, const Patch& patch) {
        if (!alone && at == plane * out) zero_floats(dx + plane * in, in);
        unpool(patch, dy + at * lanes, which + at * lanes, lanes, dx + plane * in);
    });
}

// The sum of `count` vectors that lie `step` floats apart, of which the first n floats exist. Runs of
// 64 are added up by themselves first, so that a large plane does not round more than a small one.
static vf sum_apart(const float* x, int64_t count, int64_t step, int64_t n) {
    vf total = splat<vf>(0.0f);
    for (int64_t first = 0; first < count; first += 64) {
        vf run = splat<vf>(0.0f);
        for (int64_t i = first; i < least(count, first + 64); i++) run += load_upto(x + i * step, n);
        total += run;
    }
    return total;
}

// The mean of each plane of blocks [blocks, C, positions, lanes], as columns [C, batch] whose rows lie
// `row` floats apart.
SNIP_KERNEL void mean_pool(const float* x, float* y, int64_t row, int64_t channels, int64_t positions,
                           int64_t lanes, int64_t batch, int32_t threads) {
    if (lanes > MOST_LANES) refuse("lanes must be at most 64, not", lanes);
    Blocks b{channels, positions * lanes, lanes, batch};
    // Where a vector spans several positions, it takes them together, and the rest one by one.
    int64_t together = lanes < VL ? VL / lanes : 1, whole = positions / together;
    each_channel(b, threads, [&](int64_t c) {
        for (int64_t block = 0; block < b.count(); block++) {
            const float* plane = x + b.at(block, c);
            float sums[MOST_LANES] = {}, vector[VL];
            for (int64_t j = 0; j < lanes; j += VL) {
                store<vf>(vector, sum_apart(plane + j, whole, together * lanes, together * lanes - j));
                for (int64_t k = 0; k < least(VL, together * lanes - j); k++)
                    sums[(j + k) % lanes] += vector[k];
            }
            for (int64_t i = whole * together * lanes; i < b.plane; i++) sums[i % lanes] += plane[i];
            for (int64_t j = 0; j < b.valid(block); j++)
                y[c * row + block * lanes + j] = sums[j] / float(positions);
        }
    });
}

}  // namespace snip::SNIP_ISA
