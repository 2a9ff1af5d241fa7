// Walks the planes of blocks [blocks, C, H * W, lanes]: vectors that are cut off at the end of a plane,
// and the lanes of the last block that lie beyond the batch.
#pragma once
#include "errors.hpp"
#include "parallel.hpp"
#include "vec.hpp"

namespace snip::SNIP_ISA {

// The first n < VL floats of a vector; nothing beyond them is touched.
static inline vf load_part(const float* p, int64_t n) {
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p);
#elif defined(__AVX2__)
    static const int32_t keep[2 * VL] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return (vf)_mm256_maskload_ps(p, _mm256_loadu_si256((const __m256i*)(keep + VL - n)));
#else
    float lanes[VL] = {};
    for (int64_t j = 0; j < n; j++) lanes[j] = p[j];
    return load<vf>(lanes);
#endif
}

static inline void store_part(float* p, vf v, int64_t n) {
    float lanes[VL];
    store<vf>(lanes, v);
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) store<v4>(p + j, load<v4>(lanes + j));
    for (; j < n; j++) p[j] = lanes[j];
}

// Loads or stores a whole vector, or the first n floats of one.
static inline vf load_upto(const float* p, int64_t n) { return n >= VL ? load<vf>(p) : load_part(p, n); }
static inline void store_upto(float* p, vf v, int64_t n) {
    if (n >= VL)
        store<vf>(p, v);
    else
        store_part(p, v, n);
}

struct Blocks {
    int64_t channels, plane, lanes, batch;  // plane: floats per channel and block

    Blocks(int64_t channels_, int64_t plane_, int64_t lanes_, int64_t batch_)
        : channels(channels_), plane(plane_), lanes(lanes_), batch(batch_) {
        check_counts(channels, plane, batch);
        // What LaneMask needs, unless no lane lies beyond the batch.
        bool power_of_two = lanes >= 1 && lanes <= MOST_LANES && (lanes & (lanes - 1)) == 0;
        if (!power_of_two && (lanes < 1 || batch % lanes != 0))
            refuse("lanes must be a power of two of at most 64, not", lanes);
    }

    int64_t count() const { return ceil_div(batch, lanes); }
    int64_t valid(int64_t block) const { return least(lanes, batch - block * lanes); }
    int64_t at(int64_t block, int64_t channel) const { return (block * channels + channel) * plane; }
    int64_t work() const { return count() * channels * plane; }
    int64_t samples() const { return plane / lanes * batch; }  // per channel
};

// Which floats of a vector that starts at float i of a plane belong to the batch.
struct LaneMask {
    int32_t keep[MOST_LANES];
    int64_t lanes;
    bool whole;

    LaneMask(int64_t lanes_, int64_t valid) : lanes(lanes_), whole(valid >= lanes_) {
        if (whole) return;  // nearly always
        for (int64_t j = 0; j < MOST_LANES; j++) keep[j] = j % lanes < valid ? -1 : 0;
    }
    vi at(int64_t i) const { return *reinterpret_cast<const vi_any*>(keep + (lanes > VL ? i % lanes : 0)); }
};

// Calls body(i, n, keep) for each vector of a plane: n floats of it exist from float i on, and
// those outside `keep` are padding of the batch.
template <class F>
static inline void each_vector(int64_t plane, const LaneMask& mask, F body) {
    vi all = vi{} - 1;
    for (int64_t i = 0; i < plane; i += VL) body(i, plane - i, mask.whole ? all : mask.at(i));
}

// Runs body(channel) for every channel, on several threads when there is enough to do.
template <class F>
static inline void each_channel(const Blocks& b, int threads, F body) {
    parallel(b.channels, b.work() < SERIAL_MOVES ? 1 : threads, body);
}

}  // namespace snip::SNIP_ISA
