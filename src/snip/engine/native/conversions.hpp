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

// to[c][r] = from[r][c]; columns outermost, so that short rows of `to` are written whole.
static void transpose_tile(const float* from, int64_t from_row, float* to, int64_t to_row, int64_t rows,
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
