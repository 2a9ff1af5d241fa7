// Sparse convolution: for each tile of outputs and chunk of input channels, pack the input once,
// then for each output channel keep a tile in registers and add one scaled piece of the packed
// input per surviving weight.
#pragma once
#include "conv_pack.hpp"
#include "marks.hpp"
#include "memory.hpp"
#include "parallel.hpp"

namespace snip::SNIP_ISA {

struct Entry {
    int32_t offset;  // bytes into the packed input
    float value;
};

// Where register tiles of G rows x T vectors come from and go to, `repeat` of them one below another.
struct RegisterTile {
    const char* packed;
    int64_t row_bytes;  // packed input between neighbouring output rows
    const float* from;  // partial sums, or null to begin at `start`
    int64_t from_row;
    float* to;
    int64_t to_row;
    float start;
    float scale, shift;  // of the finished sums, with `affine`
    bool affine, relu;
    bool fresh;  // `to` has not been touched lately
    int64_t repeat;
};

template <int T, int G>
static void accumulate(const Entry* first, const Entry* end, const RegisterTile& t) {
    // Copies: the stores below might alias the struct, and passing it by value stalls on forwarding.
    const char* packed = t.packed;
    const float* from = t.from;
    float* to = t.to;
    const int64_t row_bytes = t.row_bytes, from_row = t.from_row, to_row = t.to_row;
    const bool affine = t.affine, relu = t.relu, fresh = t.fresh;
    for (int64_t repeat = t.repeat; repeat > 0; repeat--) {
        vf acc[G * T];
        if (fresh) {
            // Stores that miss the cache commit one after the other: fetch their lines meanwhile.
            SNIP_UNROLL for (int i = 0; i < G * T; i += 16 / VL)
                __builtin_prefetch(to + i / T * to_row + i % T * VL, 1);
        }
        if (from) {
            SNIP_UNROLL for (int i = 0; i < G * T; i++) acc[i] =
                load<vf>(from + i / T * from_row + i % T * VL);
            from += G * from_row;
        } else {
            vf start = splat<vf>(t.start);
            SNIP_UNROLL for (int i = 0; i < G * T; i++) acc[i] = start;
        }
        for (const Entry* entry = first; entry < end; entry++) {
            vf w = splat<vf>(entry->value);
            const char* x = packed + entry->offset;
            SNIP_UNROLL for (int g = 0; g < G; g++) {
                const float* row = reinterpret_cast<const float*>(x + g * row_bytes);
                SNIP_UNROLL for (int i = 0; i < T; i++) acc[g * T + i] += w * load<vf>(row + i * VL);
            }
        }
        if (affine) {
            vf scale = splat<vf>(t.scale), shift = splat<vf>(t.shift);
            SNIP_UNROLL for (int i = 0; i < G * T; i++) acc[i] = acc[i] * scale + shift;
        }
        if (relu) {
            SNIP_UNROLL for (int i = 0; i < G * T; i++) acc[i] = relu_of(acc[i]);
        }
        SNIP_UNROLL for (int i = 0; i < G * T; i++) store<vf>(to + i / T * to_row + i % T * VL, acc[i]);
        packed += G * row_bytes;
        to += G * to_row;
    }
}

typedef void (*Accumulate)(const Entry*, const Entry*, const RegisterTile&);

struct AccumulateTable {
    Accumulate of[MAX_ACC + 1][MAX_ACC + 1] = {};  // [vectors][rows]
    constexpr AccumulateTable() { fill<1, 1>(); }
    template <int T, int G>
    constexpr void fill() {
        of[T][G] = accumulate<T, G>;
        if constexpr (2 * G * T <= MAX_ACC) fill<T, 2 * G>();
        if constexpr (G == 1 && T < MAX_ACC) fill<T + 1, 1>();
    }
};
static constexpr AccumulateTable accumulate_table;

// The tensor written, seen from one tile.
struct ConvOutput {
    const ConvPlan& plan;
    const float* scale;  // per channel, of the sums before the bias is added; or null
    const float* bias;
    float* y;
    bool relu;

    bool one_phase() const { return plan.out_step_h == 1 && plan.out_step_w == 1; }
    int64_t phases() const { return int64_t(plan.out_step_h) * plan.out_step_w; }
    int64_t channel_of(int64_t out) const { return one_phase() ? out : out / phases(); }
    // Whole vectors fall on whole outputs, so registers may be stored where they belong at once.
    bool direct(const TilePlace& t) const { return one_phase() && t.cols * plan.lanes % VL == 0; }
    float shift(int64_t out) const { return bias ? bias[channel_of(out)] : 0.0f; }
    float start(int64_t out) const { return scale ? 0.0f : shift(out); }
    float* at(const TilePlace& t, int64_t channel, int64_t row, int64_t col) const {
        channel += t.block * plan.out_channels;
        return y + ((channel * plan.out_h + row) * plan.out_w + col) * plan.lanes;
    }
};

// Writes a finished tile that could not be stored directly; null `sums` stands for the bias alone.
static void spread(const ConvOutput& o, const TilePlace& t, int64_t out, const float* sums,
                   int64_t sums_row) {
    const ConvPlan& p = o.plan;
    int64_t phase = out % o.phases(), lanes = p.lanes;
    int64_t row = t.row * p.out_step_h + phase / p.out_step_w;
    int64_t col = t.col * p.out_step_w + phase % p.out_step_w;
    // A phase may have one row or column less than the grid.
    int64_t rows = most(0, least(t.rows, ceil_div(p.out_h - row, p.out_step_h)));
    int64_t cols = most(0, least(t.cols, ceil_div(p.out_w - col, p.out_step_w)));
    float start = o.relu ? relu_of(o.shift(out)) : o.shift(out);
    for (int64_t r = 0; r < rows; r++) {
        float* to = o.at(t, o.channel_of(out), row + r * p.out_step_h, col);
        for (int64_t c = 0; c < cols; c++, to += p.out_step_w * lanes) {
            if (sums)
                copy_floats(to, sums + r * sums_row + c * lanes, lanes);
            else
                for (int64_t j = 0; j < lanes; j++) to[j] = start;
        }
    }
}

// The first entry in [low, high) of one segment whose packed row is at least `row`.
static int64_t entry_from_row(const ConvPlan& p, int64_t low, int64_t high, int64_t row) {
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (p.row[middle] < row)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// What the segments of one tile have in common.
struct SegmentRunner {
    const ConvOutput& o;
    const TilePlace& t;
    const Registers& regs;
    const Entry* entries;
    const char* packed;
    bool direct, bordered;  // bordered: some rows of the packed input lie outside the image
    int64_t row_bytes, sums_row, y_row, y_plane;
    float* y;

    SegmentRunner(const ConvOutput& o_, const TilePlace& t_, const Registers& regs_, const Entry* entries_,
                  const float* packed_)
        : o(o_), t(t_), regs(regs_), entries(entries_), packed(reinterpret_cast<const char*>(packed_)) {
        const ConvPlan& p = o.plan;
        direct = o.direct(t);
        int64_t top = t.row * p.in_step_h + p.top;
        bordered = top < 0 || top + p.pack_h - (p.tile_h - t.rows) * p.in_step_h > p.in_h;
        row_bytes = int64_t(p.in_step_h) * p.pack_w * p.lanes * 4;
        sums_row = regs.vectors * VL;
        y_row = int64_t(p.out_w) * p.lanes;
        y_plane = p.out_h * y_row;
        y = o.at(t, 0, t.row, t.col);
    }

    // The weights of one out on one chunk of input channels, over the whole tile.
    void run(int64_t segment, float* sums) const {
        const ConvPlan& p = o.plan;
        int64_t out = p.segment_out[segment], place = p.segment_place[segment];
        int64_t begin = p.segment_entry[segment], stop = p.segment_entry[segment + 1];
        int64_t first = begin, end = stop;
        bool final = place & LAST, finish = final && direct;
        RegisterTile tile{packed,
                          row_bytes,
                          nullptr,
                          sums_row,
                          nullptr,
                          finish ? y_row : sums_row,
                          o.start(out),
                          1.0f,
                          o.shift(out),
                          final && o.scale,
                          final && o.relu,
                          finish || (place & FIRST),
                          0};
        if (tile.affine) tile.scale = o.scale[o.channel_of(out)];
        const float* from = place & FIRST ? nullptr : sums;
        float* to = finish ? y + out * y_plane : sums;
        for (int64_t row = 0, height; row < t.rows; row += height * tile.repeat) {
            height = regs.rows_at(t.rows - row);
            tile.repeat = bordered ? 1 : height == 1 ? t.rows - row : (t.rows - row) / height;
            if (bordered) {  // entries outside [first, end) would only add zeros
                int64_t top = (t.row + row) * p.in_step_h + p.top;
                first = entry_from_row(p, begin, stop, -(top + (height - 1) * p.in_step_h));
                end = entry_from_row(p, first, stop, p.in_h - top);
            }
            for (int64_t piece = 0, v = 0, width; piece < regs.pieces; piece++, v += width) {
                width = regs.width_of(piece);
                tile.packed = packed + row * row_bytes + v * VL * 4;
                tile.from = from ? from + row * sums_row + v * VL : nullptr;
                tile.to = to + row * tile.to_row + v * VL;
                accumulate_table.of[width][height](entries + first, entries + end, tile);
            }
        }
        if (final && !direct) spread(o, t, out, sums, sums_row);
    }
};

static int64_t first_segment(const ConvPlan& p, int64_t chunk, int64_t out) {
    int64_t low = p.chunk_segment[chunk], high = p.chunk_segment[chunk + 1];
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (p.segment_out[middle] < out)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Outs [from, to) of one tile.
static void conv_tile(const ConvOutput& o, const float* x, const TilePlace& t, const Entry* entries,
                      int64_t from, int64_t to) {
    const ConvPlan& p = o.plan;
    Registers regs(ceil_div(t.cols * p.lanes, VL), t.rows, MAX_ACC);
    int64_t tile_floats = t.rows * regs.vectors * VL;
    float* packed = scratch(PACKED_INPUT, packed_floats(p));
    float* sums = scratch(PARTIAL_OUTPUT, (to - from) * tile_floats);
    SegmentRunner runner(o, t, regs, entries, packed);
    for (int64_t chunk = 0; chunk < p.chunks; chunk++) {
        int64_t segment = first_segment(p, chunk, from), end = first_segment(p, chunk, to);
        if (segment == end) continue;
        pack_chunk(p, chunk, x, t, false, packed);
        for (; segment < end; segment++)
            runner.run(segment, sums + (p.segment_out[segment] - from) * tile_floats);
    }
    for (int64_t i = 0; i < p.silents; i++)
        if (p.silent[i] >= from && p.silent[i] < to) spread(o, t, p.silent[i], nullptr, 0);
}

static int64_t conv_work(const ConvPlan& p, int64_t batch) {
    return p.entries * int64_t(p.grid_h) * p.grid_w * ceil_div(batch, p.lanes) * p.lanes;
}

// y = convolution of x (* scale) (+ bias) (then ReLU), tensors [ceil(batch/lanes), C, H, W, lanes].
SNIP_KERNEL void conv_forward(const ConvPlan* plan, const float* values, const float* x, const float* scale,
                              const float* bias, float* y, int64_t batch, int32_t relu, int32_t threads) {
    const ConvPlan& p = *plan;
    check_plan(p, batch);
    threads = conv_work(p, batch) < SERIAL_WORK ? 1 : threads;
    ConvOutput o{p, scale, bias, y, relu != 0};
    Entry* entries = reinterpret_cast<Entry*>(scratch(ENTRIES, int64_t(2) * p.entries));
    auto gather = [&](int64_t part) {
        for (int64_t k = part * 65536, end = least(k + 65536, p.entries); k < end; k++)
            entries[k] = Entry{p.offset[k], values[p.order[k]]};
    };
    parallel(ceil_div(p.entries, 65536), threads, gather);
    int64_t tiles = ceil_div(batch, p.lanes) * tiles_of(p);
    int64_t outs = p.out_channels * o.phases();
    int64_t parts = threads > 1 ? least(outs, ceil_div(2 * threads, tiles)) : 1;
    auto body = [&](int64_t task) {
        int64_t part = task % parts;
        conv_tile(o, x, place_of(p, task / parts, batch), entries, outs * part / parts,
                  outs * (part + 1) / parts);
    };
    parallel(tiles * parts, threads, body);
}

}  // namespace snip::SNIP_ISA
