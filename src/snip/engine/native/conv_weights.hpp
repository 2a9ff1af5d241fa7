// Gradient of the surviving weights of a convolution: per weight the dot product of dY with the
// packed input at the weight's offset. A vector of partial sums per weight stays in cache while
// tiles of the batch pass by; it is summed over its lanes at the end.
#pragma once
#include "conv_forward.hpp"

namespace snip::SNIP_ISA {

// Adds G rows x T vectors of dy, held in registers, times the packed input, for each weight.
template <int T, int G>
static void correlate(const int32_t* offset, const int32_t* end, float* sums, const char* packed,
                      int64_t row_bytes, const float* dy, int64_t dy_row) {
    vf held[G * T];
    SNIP_UNROLL for (int i = 0; i < G * T; i++) held[i] = load<vf>(dy + i / T * dy_row + i % T * VL);
    for (; offset < end; offset++, sums += VL) {
        const char* x = packed + *offset;
        vf acc[2] = {load<vf>(sums), splat<vf>(0.0f)};
        SNIP_UNROLL for (int g = 0; g < G; g++) {
            const float* row = reinterpret_cast<const float*>(x + g * row_bytes);
            SNIP_UNROLL for (int i = 0; i < T; i++) acc[(g * T + i) % 2] +=
                held[g * T + i] * load<vf>(row + i * VL);
        }
        store<vf>(sums, acc[0] + acc[1]);
    }
}

typedef void (*Correlate)(const int32_t*, const int32_t*, float*, const char*, int64_t, const float*,
                          int64_t);

struct CorrelateTable {
    Correlate of[MAX_HELD + 1][MAX_HELD + 1] = {};  // [vectors][rows]
    constexpr CorrelateTable() { fill<1, 1>(); }
    template <int T, int G>
    constexpr void fill() {
        of[T][G] = correlate<T, G>;
        if constexpr (2 * G * T <= MAX_HELD) fill<T, 2 * G>();
        if constexpr (G == 1 && T < MAX_HELD) fill<T + 1, 1>();
    }
};
static constexpr CorrelateTable correlate_table;

// A tile of dy for outs [from, to), one after the other in whole vectors. Packed like the input and
// for the same reasons: every chunk reads it again, and its channels lie a power of two apart. Lanes
// beyond the batch and beyond the row are zero, so that they count for nothing.
static void pack_gradient(const ConvPlan& p, const TilePlace& t, const float* dy, int64_t row_floats,
                          int64_t from, int64_t to, float* packed) {
    int64_t width = t.cols * p.lanes, dy_row = int64_t(p.out_w) * p.lanes;
    for (int64_t out = from; out < to; out++) {
        int64_t channel = t.block * p.out_channels + out;
        const float* d = dy + (channel * p.out_h + t.row) * dy_row + t.col * p.lanes;
        for (int64_t r = 0; r < t.rows; r++, packed += row_floats) {
            copy_floats(packed, d + r * dy_row, width);
            if (t.valid < p.lanes) drop_lanes(packed, t.cols, p.lanes, t.valid);
            zero_floats(packed + width, row_floats - width);
        }
    }
}

// The same where it lies, if its rows are whole vectors already and a single chunk reads it but once;
// else null.
static const float* gradient_in_place(const ConvPlan& p, const TilePlace& t, const float* dy, int64_t from) {
    int64_t row = int64_t(p.out_w) * p.lanes;
    if (p.chunks > 1 || t.cols < p.out_w || row % VL || t.valid < p.lanes) return nullptr;
    return dy + ((t.block * p.out_channels + from) * p.out_h + t.row) * row;
}

// One segment over the whole tile; d is its out's part of the packed gradient.
static void correlate_segment(const ConvPlan& p, const TilePlace& t, const Registers& regs, int64_t segment,
                              const float* d, const float* packed, float* sums) {
    int64_t d_row = regs.vectors * VL, row_bytes = int64_t(p.in_step_h) * p.pack_w * p.lanes * 4;
    const int32_t* offset = p.offset + p.segment_entry[segment];
    const int32_t* end = p.offset + p.segment_entry[segment + 1];
    const char* x = reinterpret_cast<const char*>(packed);
    for (int64_t row = 0, height; row < t.rows; row += height) {
        height = regs.rows_at(t.rows - row);
        for (int64_t piece = 0, v = 0, width; piece < regs.pieces; piece++, v += width) {
            width = regs.width_of(piece);
            correlate_table.of[width][height](offset, end, sums, x + row * row_bytes + v * VL * 4, row_bytes,
                                              d + row * d_row + v * VL, d_row);
        }
    }
}

// Tiles [from, to) of the batch for segments [first, last); the sums of their weights to `partial`.
static void correlate_tiles(const ConvPlan& p, const float* x, const float* dy, int64_t batch, int64_t from,
                            int64_t to, int64_t first, int64_t last, float* partial) {
    int64_t base = p.segment_entry[first], count = p.segment_entry[last] - base;
    // Segments of a single chunk ascend in out; those of several may be any.
    int64_t low = 0, high = p.out_channels;
    for (int64_t chunk = 0; chunk < p.chunks; chunk++)
        if (first >= p.chunk_segment[chunk] && last <= p.chunk_segment[chunk + 1]) {
            low = p.segment_out[first];
            high = p.segment_out[last - 1] + 1;
        }
    float* packed = scratch(PACKED_INPUT, packed_floats(p));
    float* sums = scratch(PARTIAL_OUTPUT, count * VL);
    zero_floats(sums, count * VL);
    for (int64_t index = from; index < to; index++) {
        TilePlace t = place_of(p, index, batch);
        Registers regs(ceil_div(t.cols * p.lanes, VL), t.rows, MAX_HELD);
        int64_t tile_floats = t.rows * regs.vectors * VL, apart = tile_floats;
        const float* gradient = gradient_in_place(p, t, dy, low);
        if (gradient) {
            apart = int64_t(p.out_h) * p.out_w * p.lanes;
        } else {
            float* copy = scratch(MASKED, (high - low) * tile_floats);
            pack_gradient(p, t, dy, regs.vectors * VL, low, high, copy);
            gradient = copy;
        }
        for (int64_t chunk = 0; chunk < p.chunks; chunk++) {
            int64_t segment = most(first, p.chunk_segment[chunk]);
            int64_t end = least(last, p.chunk_segment[chunk + 1]);
            if (segment >= end) continue;
            pack_chunk(p, chunk, x, t, true, packed);
            for (; segment < end; segment++)
                correlate_segment(p, t, regs, segment, gradient + (p.segment_out[segment] - low) * apart,
                                  packed, sums + (p.segment_entry[segment] - base) * VL);
        }
    }
    for (int64_t k = 0; k < count; k++) partial[base + k] = sum(load<vf>(sums + k * VL));
}

// Segments are handled in groups whose vectors of sums fit this many bytes of cache.
constexpr int64_t SUMS_BYTES = 256 << 10;

// About `wanted` groups of equal weight, or more.
static int64_t group_segments(const ConvPlan& p, int64_t wanted, int32_t* starts) {
    int64_t groups = 0, room = 0, fits = least(SUMS_BYTES / (VL * 4), ceil_div(p.entries, wanted));
    for (int32_t s = 0; s < p.segments; s++) {
        int64_t weights = p.segment_entry[s + 1] - p.segment_entry[s];
        if (groups == 0 || weights > room) {
            starts[groups++] = s;
            room = fits;
        }
        room -= weights;
    }
    starts[groups] = p.segments;
    return groups;
}

// dw[k] for each surviving weight, with the forward plan of the layer. With `equal_sums` the threads
// divide the weights (each packs the input then) and not the batch: a sum is the same for any number of
// threads.
static void weight_sums(const ConvPlan* plan, const float* x, const float* dy, float* dw, int64_t batch,
                        bool equal_sums, int32_t threads) {
    const ConvPlan& p = *plan;
    check_plan(p, batch);
    if (p.entries == 0) return;
    threads = conv_work(p, batch) < SERIAL_WORK ? 1 : threads;
    int32_t* starts = reinterpret_cast<int32_t*>(scratch(ENTRIES, int64_t(p.segments) + 1));
    int64_t groups = group_segments(p, equal_sums ? threads : 1, starts);
    int64_t units = ceil_div(batch, p.lanes) * tiles_of(p);
    int64_t splits = threads > 1 && !equal_sums ? least(units, ceil_div(4 * threads, groups)) : 1;
    float* partial = scratch(PARTIAL_SUMS, splits * p.entries);
    auto body = [&](int64_t task) {
        int64_t group = task / splits, split = task % splits;
        correlate_tiles(p, x, dy, batch, units * split / splits, units * (split + 1) / splits, starts[group],
                        starts[group + 1], partial + split * p.entries);
    };
    parallel(groups * splits, threads, body);
    for (int64_t k = 0; k < p.entries; k++) {
        float total = 0;
        for (int64_t split = 0; split < splits; split++) total += partial[split * p.entries + k];
        dw[p.order[k]] = total;
    }
}

SNIP_KERNEL void conv_weights(const ConvPlan* plan, const float* x, const float* dy, float* dw, int64_t batch,
                              int32_t threads) {
    weight_sums(plan, x, dy, dw, batch, false, threads);
}

}  // namespace snip::SNIP_ISA
