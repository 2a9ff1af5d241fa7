// Copying and clearing runs of floats.
#pragma once
#include "vec.hpp"

namespace snip::SNIP_ISA {

static inline void copy_floats(float* to, const float* from, int64_t n) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) store<vf>(to + i, load<vf>(from + i));
    for (; i < n; i++) to[i] = from[i];
}

static inline void zero_floats(float* to, int64_t n) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) store<vf>(to + i, splat<vf>(0.0f));
    for (; i < n; i++) to[i] = 0;
}

// Zeroes the lanes from `valid` on, of so many positions.
static inline void drop_lanes(float* packed, int64_t positions, int64_t lanes, int64_t valid) {
    for (int64_t i = 0; i < positions; i++)
        for (int64_t j = valid; j < lanes; j++) packed[i * lanes + j] = 0;
}

}  // namespace snip::SNIP_ISA
