// One vector type per instruction set, written with the compilers' vector extension so that every
// kernel exists once. Each header of kernels opens the namespace of the instruction set for which it
// is compiled: build.py names it, and in an editor it follows from the compiler's flags.
#pragma once
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#include <stdint.h>

#if defined(SNIP_ISA)
#elif defined(__AVX512F__)
#define SNIP_ISA avx512
#elif defined(__AVX2__)
#define SNIP_ISA avx2
#else
#define SNIP_ISA portable
#endif

namespace snip::SNIP_ISA {

#if defined(__AVX512F__)
constexpr int VL = 16;        // floats per vector
constexpr int MAX_ACC = 24;   // accumulators that stay in registers beside the broadcast
constexpr int MAX_HELD = 24;  // vectors held while two accumulators run
#elif defined(__AVX2__)
constexpr int VL = 8;
constexpr int MAX_ACC = 14;
constexpr int MAX_HELD = 12;
#else
constexpr int VL = 4;  // SSE2 and NEON both have it
constexpr int MAX_ACC = 12;
constexpr int MAX_HELD = 12;
#endif

// GCC turns short loops over an array of accumulators into memset/memcpy and then spills all of
// them on every iteration (measured: a third of the speed); asking for the unrolling prevents it.
#define SNIP_UNROLL _Pragma("GCC unroll 32")

typedef float vf __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));
typedef float vf_any __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef int32_t vi_any __attribute__((vector_size(VL * 4), aligned(4), may_alias));
typedef float v4 __attribute__((vector_size(16)));
typedef float v4_any __attribute__((vector_size(16), aligned(4), may_alias));

// Width<V>: what the templates of the linear kernels need to know of a vector or a lone float.
template <class V>
struct Width {
    static constexpr int lanes = sizeof(V) / 4;
};
template <class V>
struct Unaligned;
template <>
struct Unaligned<float> {
    typedef float type;
};
template <>
struct Unaligned<v4> {
    typedef v4_any type;
};
#if defined(__AVX2__)
template <>
struct Unaligned<vf> {
    typedef vf_any type;
};
#endif

template <class V>
static inline V load(const float* p) {
    return *reinterpret_cast<const typename Unaligned<V>::type*>(p);
}
template <class V>
static inline void store(float* p, V v) {
    *reinterpret_cast<typename Unaligned<V>::type*>(p) = v;
}

// Written out because a loop over the lanes does not become a broadcast.
template <class V>
static inline V splat(float s);
template <>
inline float splat<float>(float s) {
    return s;
}
template <>
inline v4 splat<v4>(float s) {
    return v4{s, s, s, s};
}
#if defined(__AVX512F__)
template <>
inline vf splat<vf>(float s) {
    return vf{s, s, s, s, s, s, s, s, s, s, s, s, s, s, s, s};
}
#elif defined(__AVX2__)
template <>
inline vf splat<vf>(float s) {
    return vf{s, s, s, s, s, s, s, s};
}
#endif

template <class V>
static inline float sum(V v) {
    float total = 0;
    SNIP_UNROLL for (int i = 0; i < Width<V>::lanes; i++) total += v[i];
    return total;
}
template <>
inline float sum<float>(float v) {
    return v;
}

#if defined(__clang__)
#define SNIP_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
typedef int32_t shuffle4 __attribute__((vector_size(16)));
#define SNIP_SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, shuffle4{i, j, k, l})
#endif

// Transposes the 4 x 4 matrix that four vectors hold, in each of their quarters if they are wider.
static inline void turn(v4 rows[4]) {
    v4 low = SNIP_SHUFFLE(rows[0], rows[1], 0, 4, 1, 5), high = SNIP_SHUFFLE(rows[0], rows[1], 2, 6, 3, 7);
    v4 low2 = SNIP_SHUFFLE(rows[2], rows[3], 0, 4, 1, 5), high2 = SNIP_SHUFFLE(rows[2], rows[3], 2, 6, 3, 7);
    rows[0] = SNIP_SHUFFLE(low, low2, 0, 1, 4, 5);
    rows[1] = SNIP_SHUFFLE(low, low2, 2, 3, 6, 7);
    rows[2] = SNIP_SHUFFLE(high, high2, 0, 1, 4, 5);
    rows[3] = SNIP_SHUFFLE(high, high2, 2, 3, 6, 7);
}
#if defined(__AVX512F__)
static inline void turn(vf v[4]) {
    __m512 a = _mm512_unpacklo_ps(v[0], v[1]), b = _mm512_unpackhi_ps(v[0], v[1]);
    __m512 c = _mm512_unpacklo_ps(v[2], v[3]), d = _mm512_unpackhi_ps(v[2], v[3]);
    v[0] = _mm512_shuffle_ps(a, c, 0x44), v[1] = _mm512_shuffle_ps(a, c, 0xEE);
    v[2] = _mm512_shuffle_ps(b, d, 0x44), v[3] = _mm512_shuffle_ps(b, d, 0xEE);
}
#elif defined(__AVX2__)
static inline void turn(vf v[4]) {
    __m256 a = _mm256_unpacklo_ps(v[0], v[1]), b = _mm256_unpackhi_ps(v[0], v[1]);
    __m256 c = _mm256_unpacklo_ps(v[2], v[3]), d = _mm256_unpackhi_ps(v[2], v[3]);
    v[0] = _mm256_shuffle_ps(a, c, 0x44), v[1] = _mm256_shuffle_ps(a, c, 0xEE);
    v[2] = _mm256_shuffle_ps(b, d, 0x44), v[3] = _mm256_shuffle_ps(b, d, 0xEE);
}
#endif

// The sums of N <= 4 vectors at once, far cheaper than one after the other.
template <class V, int N>
static inline void sums_of(const V* v, float* to) {
    V each[4] = {};
    SNIP_UNROLL for (int j = 0; j < N; j++) each[j] = v[j];
    turn(each);
    float lanes[Width<V>::lanes];
    store<V>(lanes, (each[0] + each[1]) + (each[2] + each[3]));
    v4 total = load<v4>(lanes);
    SNIP_UNROLL for (int i = 4; i < Width<V>::lanes; i += 4) total += load<v4>(lanes + i);
    if constexpr (N == 4) {
        store<v4>(to, total);
    } else {
        SNIP_UNROLL for (int j = 0; j < N; j++) to[j] = total[j];
    }
}

// Keeps a NaN, as torch's ReLU does.
template <class V>
static inline V relu_of(V v) {
    V zero = splat<V>(0.0f);
    return v < zero ? zero : v;
}

// The lanes of v where keep is all ones, zero elsewhere (a NaN in a dropped lane does not survive).
static inline vf keep_lanes(vf v, vi keep) { return (vf)((vi)v & keep); }

// Whether a comparison holds in any lane.
static inline bool any_of(vi mask) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)mask, (__m256i)mask);
#else
    int32_t found = 0;
    SNIP_UNROLL for (int i = 0; i < VL; i++) found |= mask[i];
    return found != 0;
#endif
}

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// When a second thread pays. It is there within microseconds while it spins after the last region;
// once it sleeps, the scheduler may put it on the caller's own core, and the region then ends with
// the caller's time slice (measured: 4 ms instead of 20 us). So small work is done alone.
constexpr int64_t SERIAL_WORK = 1 << 20;   // multiply-adds, some 50 us
constexpr int64_t SERIAL_MOVES = 1 << 18;  // floats read and written
constexpr int64_t PART_WORK = 1 << 16;     // multiply-adds that make a task

}  // namespace snip::SNIP_ISA
