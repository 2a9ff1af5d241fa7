// Copies the part of the input that a tile of outputs needs, channel by channel, with zeros outside
// the image. The copy costs little beside the products and buys three things: a weight is one fixed
// offset (no borders, any stride and dilation), the tile fits the cache, and channels whose distance
// is a power of two do not fight for the same cache sets.
#pragma once
#include "conv_plan.hpp"
#include "copies.hpp"
#include "errors.hpp"

namespace snip::SNIP_ISA {

struct TilePlace {
    int64_t block;       // which block of the batch
    int64_t row, col;    // first output of the tile
    int64_t rows, cols;  // outputs in it (fewer at the edge)
    int64_t valid;       // lanes that belong to the batch, the rest are padding
};

// Refuses sizes with which the kernels would divide by zero or leave their memory.
static inline void check_plan(const ConvPlan& p, int64_t batch) {
    check_counts(batch, p.in_channels, p.in_h, p.in_w, p.out_h, p.out_w, p.grid_h, p.grid_w, p.pack_h,
                 p.pack_w, p.chunks, p.segments, p.entries, p.silents);
    if (p.lanes < 1 || p.lanes > MOST_LANES) refuse("a convolution has 1 to 64 lanes, not", p.lanes);
    if (p.tile_h < 1) refuse("a tile has 1 output row or more, not", p.tile_h);
    if (p.tile_w < 1) refuse("a tile has 1 output column or more, not", p.tile_w);
    const int32_t positive[] = {p.out_channels, p.in_step_h,  p.in_step_w,
                                p.out_step_h,   p.out_step_w, p.pack_phases};
    for (int32_t number : positive)
        if (number < 1) refuse("channels, steps and phases are 1 or more, not", number);
}

static inline int64_t tiles_of(const ConvPlan& p) {
    return ceil_div(p.grid_h, p.tile_h) * ceil_div(p.grid_w, p.tile_w);
}

static inline TilePlace place_of(const ConvPlan& p, int64_t index, int64_t batch) {
    int64_t across = ceil_div(p.grid_w, p.tile_w), tiles = tiles_of(p);
    TilePlace t;
    t.block = index / tiles;
    t.row = index % tiles / across * p.tile_h;
    t.col = index % tiles % across * p.tile_w;
    t.rows = least(p.tile_h, p.grid_h - t.row);
    t.cols = least(p.tile_w, p.grid_w - t.col);
    t.valid = least(p.lanes, batch - t.block * p.lanes);
    return t;
}

// The positions of one column phase of a packed row: `before` lie left of the image, those from
// `inside` on right of it. The same for every row of a tile, so worked out once.
struct PhaseColumns {
    int64_t first, step, before, inside, count;

    PhaseColumns(const ConvPlan& p, const TilePlace& t, int64_t phase)
        : first(t.col * p.in_step_w + p.left + phase), step(p.in_step_w), count(p.pack_w / p.pack_phases) {
        before = first < 0 ? least(count, ceil_div(-first, step)) : 0;
        inside = first < p.in_w ? most(before, least(count, ceil_div(p.in_w - first, step))) : before;
    }
    void pack(float* to, const float* row, int64_t lanes) const {
        zero_floats(to, before * lanes);
        if (step == 1) {
            copy_floats(to + before * lanes, row + (first + before) * lanes, (inside - before) * lanes);
        } else {
            for (int64_t j = before; j < inside; j++)
                copy_floats(to + j * lanes, row + (first + j * step) * lanes, lanes);
        }
        zero_floats(to + inside * lanes, (count - inside) * lanes);
    }
};

// One column phase of every channel and row. `clean` zeroes the lanes beyond the batch: the gradient
// of a weight sums over lanes.
static void pack_phase(const ConvPlan& p, int64_t chunk, const float* x, const TilePlace& t, int64_t phase,
                       bool clean, float* packed) {
    PhaseColumns columns(p, t, phase);
    int64_t in_row = int64_t(p.in_w) * p.lanes, to_row = int64_t(p.pack_w) * p.lanes;
    int64_t top = t.row * p.in_step_h + p.top, rows = p.pack_h - (p.tile_h - t.rows) * p.in_step_h;
    const float* image = x + t.block * p.in_channels * p.in_h * in_row;
    for (int64_t i = p.chunk_channel[chunk]; i < p.chunk_channel[chunk + 1]; i++) {
        const float* channel = image + int64_t(p.channels[i]) * p.in_h * in_row;
        float* to =
            packed + (i - p.chunk_channel[chunk]) * p.pack_h * to_row + phase * columns.count * p.lanes;
        for (int64_t r = 0; r < rows; r++, to += to_row) {
            if (top + r < 0 || top + r >= p.in_h)
                zero_floats(to, columns.count * p.lanes);
            else
                columns.pack(to, channel + (top + r) * in_row, p.lanes);
            if (clean) drop_lanes(to, columns.count, p.lanes, t.valid);
        }
    }
}

static void pack_chunk(const ConvPlan& p, int64_t chunk, const float* x, const TilePlace& t, bool clean,
                       float* packed) {
    for (int64_t phase = 0; phase < p.pack_phases; phase++)
        pack_phase(p, chunk, x, t, phase, clean && t.valid < p.lanes, packed);
    // The last vector of a row may reach past it. That must not find what an earlier call left: in
    // the gradient of the weights it is multiplied by zero, and a NaN would survive.
    int64_t row = int64_t(p.pack_w) * p.lanes, channel = p.pack_h * row;
    int64_t rows = p.pack_h - (p.tile_h - t.rows) * p.in_step_h;
    int64_t channels = p.chunk_channel[chunk + 1] - p.chunk_channel[chunk];
    int64_t beyond = least(VL, (p.pack_h - rows) * row);
    for (int64_t i = 0; i < channels; i++) zero_floats(packed + i * channel + rows * row, beyond);
    zero_floats(packed + channels * channel, VL);
}

static inline int64_t packed_floats(const ConvPlan& p) {
    int64_t widest = 0;
    for (int64_t c = 0; c < p.chunks; c++) widest = most(widest, p.chunk_channel[c + 1] - p.chunk_channel[c]);
    return widest * p.pack_h * p.pack_w * p.lanes + VL;
}

// How the vectors of a tile of outputs are shared out over registers: some rows of at most as many
// vectors as fit, in whole cache lines. Worked out once per tile, since divisions would show beside
// short segments.
struct Registers {
    int64_t vectors;     // per row of the tile
    int64_t pieces;      // of a row, differing by one line at most
    int64_t height = 1;  // rows together, when a row is a single piece; a power of two

    Registers(int64_t vectors_, int64_t rows, int64_t most_held) : vectors(vectors_) {
        line = vectors % (16 / VL) ? 1 : 16 / VL;
        int64_t lines = vectors / line;
        pieces = ceil_div(lines, most_held / line);
        if (pieces == 1)
            while (2 * height <= rows && 2 * height * vectors <= most_held) height *= 2;
        width = lines / pieces;
        wider = lines % pieces;
    }
    int64_t rows_at(int64_t left) const {
        int64_t rows = height;
        while (rows > left) rows /= 2;
        return rows;
    }
    int64_t width_of(int64_t piece) const { return (width + (piece < wider)) * line; }

  private:
    int64_t line, width, wider;
};

}  // namespace snip::SNIP_ISA
