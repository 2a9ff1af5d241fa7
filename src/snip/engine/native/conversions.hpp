// Conversions between rows (NCHW, or [batch, features]), blocks [blocks, ..., lanes] and columns
// [features, batch]; kernels/conversions.py describes the layouts.
#pragma once
#include "copies.hpp"
#include "errors.hpp"
#include "marks.hpp"
#include "parallel.hpp"

namespace snip::SNIP_ISA {

static inline void transpose4(const float* from, int64_t from_row, float* to, int64_t to_row) {
    v4 rows[4];
    SNIP_UNROLL for (int i = 0; i < 4; i++) rows[i] = load<v4>(from + i * from_row);
    turn(rows);
    SNIP_UNROLL for (int i = 0; i < 4; i++) store<v4>(to + i * to_row, rows[i]);
}

#if defined(__AVX512F__)
// Transposes 16 x 16: within the quarters of the vectors first, then whole quarters.
static inline void transpose_block(const float* from, int64_t from_row, float* to, int64_t to_row) {
    vf v[4][4];
    SNIP_UNROLL for (int i = 0; i < 16; i++) v[i / 4][i % 4] = load<vf>(from + i * from_row);
    SNIP_UNROLL for (int i = 0; i < 4; i++) turn(v[i]);
    SNIP_UNROLL for (int j = 0; j < 4; j++) {
        __m512 a = _mm512_shuffle_f32x4(v[0][j], v[1][j], 0x44);
        __m512 b = _mm512_shuffle_f32x4(v[2][j], v[3][j], 0x44);
        __m512 c = _mm512_shuffle_f32x4(v[0][j], v[1][j], 0xEE);
        __m512 d = _mm512_shuffle_f32x4(v[2][j], v[3][j], 0xEE);
        _mm512_storeu_ps(to + j * to_row, _mm512_shuffle_f32x4(a, b, 0x88));
        _mm512_storeu_ps(to + (4 + j) * to_row, _mm512_shuffle_f32x4(a, b, 0xDD));
        _mm512_storeu_ps(to + (8 + j) * to_row, _mm512_shuffle_f32x4(c, d, 0x88));
        _mm512_storeu_ps(to + (12 + j) * to_row, _mm512_shuffle_f32x4(c, d, 0xDD));
    }
}
#elif defined(__AVX2__)
// Transposes 8 x 8: within the halves of the vectors first, then whole halves.
static inline void transpose_block(const float* from, int64_t from_row, float* to, int64_t to_row) {
    vf v[2][4];
    SNIP_UNROLL for (int i = 0; i < 8; i++) v[i / 4][i % 4] = load<vf>(from + i * from_row);
    SNIP_UNROLL for (int i = 0; i < 2; i++) turn(v[i]);
    SNIP_UNROLL for (int j = 0; j < 4; j++) {
        _mm256_storeu_ps(to + j * to_row, _mm256_permute2f128_ps(v[0][j], v[1][j], 0x20));
        _mm256_storeu_ps(to + (4 + j) * to_row, _mm256_permute2f128_ps(v[0][j], v[1][j], 0x31));
    }
}
#else
static inline void transpose_block(const float* from, int64_t from_row, float* to, int64_t to_row) {
    transpose4(from, from_row, to, to_row);
}
#endif

// to[c][r] = from[r][c] for what is no whole block of VL x VL.
static void transpose_rest(const float* from, int64_t from_row, float* to, int64_t to_row, int64_t rows,
                           int64_t cols) {
    int64_t c = 0;
    for (; c + 4 <= cols; c += 4) {
        int64_t r = 0;
        for (; r + 4 <= rows; r += 4)
            transpose4(from + r * from_row + c, from_row, to + c * to_row + r, to_row);
        for (; r < rows; r++)
            for (int64_t j = c; j < c + 4; j++) to[j * to_row + r] = from[r * from_row + j];
    }
    for (; c < cols; c++)
        for (int64_t r = 0; r < rows; r++) to[c * to_row + r] = from[r * from_row + c];
}

// to[c][r] = from[r][c]; columns outermost, so that short rows of `to` are written whole.
static void transpose_tile(const float* from, int64_t from_row, float* to, int64_t to_row, int64_t rows,
                           int64_t cols) {
    int64_t high = rows / VL * VL, wide = cols / VL * VL;
    for (int64_t c = 0; c < wide; c += VL)
        for (int64_t r = 0; r < high; r += VL)
            transpose_block(from + r * from_row + c, from_row, to + c * to_row + r, to_row);
    transpose_rest(from + high * from_row, from_row, to + high, to_row, rows - high, wide);
    transpose_rest(from + wide, from_row, to + wide * to_row, to_row, rows, cols - wide);
}

constexpr int64_t TILE = 64;

// [rows, cols] to [cols, rows], each with its own distance between rows.
SNIP_KERNEL void transpose(const float* from, int64_t from_row, float* to, int64_t to_row, int64_t rows,
                           int64_t cols, int32_t threads) {
    check_counts(rows, cols);
    int64_t across = ceil_div(cols, TILE), down = ceil_div(rows, TILE);
    auto body = [&](int64_t task) {
        int64_t c = task % across * TILE;
        for (int64_t r = task / across * TILE, end = least(rows, r + TILE); r < end; r = end)
            transpose_tile(from + r * from_row + c, from_row, to + c * to_row + r, to_row, end - r,
                           least(TILE, cols - c));
    };
    parallel(across * down, rows * cols < SERIAL_MOVES ? 1 : threads, body);
}

static inline void check_blocks(int64_t features, int64_t lanes, int64_t batch) {
    check_counts(features, batch);
    if (lanes < 1) refuse("blocks have 1 lane or more, not", lanes);
}

// [batch, features] to [blocks, features, lanes], zero beyond the batch.
SNIP_KERNEL void rows_to_blocks(const float* rows, float* blocks, int64_t features, int64_t lanes,
                                int64_t batch, int32_t threads) {
    check_blocks(features, lanes, batch);
    int64_t across = ceil_div(features, TILE), down = ceil_div(batch, lanes);
    auto body = [&](int64_t task) {
        int64_t block = task / across, f = task % across * TILE, count = least(TILE, features - f);
        int64_t valid = least(lanes, batch - block * lanes);
        float* to = blocks + (block * features + f) * lanes;
        transpose_tile(rows + block * lanes * features + f, features, to, lanes, valid, count);
        if (valid < lanes) drop_lanes(to, count, lanes, valid);
    };
    parallel(across * down, features * batch < SERIAL_MOVES ? 1 : threads, body);
}

SNIP_KERNEL void blocks_to_rows(const float* blocks, float* rows, int64_t features, int64_t lanes,
                                int64_t batch, int32_t threads) {
    check_blocks(features, lanes, batch);
    int64_t across = ceil_div(features, TILE), down = ceil_div(batch, lanes);
    auto body = [&](int64_t task) {
        int64_t block = task / across, f = task % across * TILE, count = least(TILE, features - f);
        transpose_tile(blocks + (block * features + f) * lanes, lanes, rows + block * lanes * features + f,
                       features, count, least(lanes, batch - block * lanes));
    };
    parallel(across * down, features * batch < SERIAL_MOVES ? 1 : threads, body);
}

// [blocks, features, lanes] to columns [features, batch].
SNIP_KERNEL void blocks_to_columns(const float* blocks, float* out, int64_t out_row, int64_t features,
                                   int64_t lanes, int64_t batch, int32_t threads) {
    check_blocks(features, lanes, batch);
    auto body = [&](int64_t task) {
        for (int64_t f = task * TILE, end = least(features, f + TILE); f < end; f++)
            for (int64_t b = 0; b < batch; b += lanes)
                copy_floats(out + f * out_row + b, blocks + (b / lanes * features + f) * lanes,
                            least(lanes, batch - b));
    };
    parallel(ceil_div(features, TILE), features * batch < SERIAL_MOVES ? 1 : threads, body);
}

SNIP_KERNEL void columns_to_blocks(const float* in, int64_t in_row, float* blocks, int64_t features,
                                   int64_t lanes, int64_t batch, int32_t threads) {
    check_blocks(features, lanes, batch);
    auto body = [&](int64_t task) {
        for (int64_t f = task * TILE, end = least(features, f + TILE); f < end; f++)
            for (int64_t b = 0; b < batch; b += lanes) {
                int64_t valid = least(lanes, batch - b);
                float* to = blocks + (b / lanes * features + f) * lanes;
                copy_floats(to, in + f * in_row + b, valid);
                zero_floats(to + valid, lanes - valid);
            }
    };
    parallel(ceil_div(features, TILE), features * batch < SERIAL_MOVES ? 1 : threads, body);
}

}  // namespace snip::SNIP_ISA
