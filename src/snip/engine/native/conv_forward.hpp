// Sparse convolution: for each tile of outputs and chunk of input channels, pack the input once,
// then for each output channel keep a tile in registers and add one scaled piece of the packed
// input per surviving weight.

struct Entry {
    int32_t offset;  // bytes into the packed input
    float value;
};

// Where one register tile of G rows x T vectors comes from and goes to.
struct RegisterTile {
    const char* packed;
    int64_t row_bytes;    // packed input between neighbouring output rows
    const float* from;    // partial sums, or null to begin at `start`
    int64_t from_row;
    float* to;
    int64_t to_row;
    float start;
    bool relu;
};

template <int T, int G>
static void accumulate(const Entry* entry, const Entry* end, const RegisterTile& t) {
    vf acc[G * T];
    if (t.from) {
        SNIP_UNROLL for (int i = 0; i < G * T; i++)
            acc[i] = load<vf>(t.from + i / T * t.from_row + i % T * VL);
    } else {
        vf start = splat<vf>(t.start);
        SNIP_UNROLL for (int i = 0; i < G * T; i++) acc[i] = start;
    }
    for (; entry < end; entry++) {
        vf w = splat<vf>(entry->value);
        const char* x = t.packed + entry->offset;
        SNIP_UNROLL for (int g = 0; g < G; g++) {
            const char* row = x + g * t.row_bytes;
            SNIP_UNROLL for (int i = 0; i < T; i++)
                acc[g * T + i] += w * load<vf>(reinterpret_cast<const float*>(row) + i * VL);
        }
    }
    if (t.relu) {
        SNIP_UNROLL for (int i = 0; i < G * T; i++) acc[i] = relu_of(acc[i]);
    }
    SNIP_UNROLL for (int i = 0; i < G * T; i++)
        store<vf>(t.to + i / T * t.to_row + i % T * VL, acc[i]);
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

struct ConvOutput {
    const ConvPlan& plan;
    const float* bias;
    float* y;
    bool relu;
    // Whole vectors fall on whole outputs, so registers may be stored where they belong at once.
    bool direct(const TilePlace& t) const {
        return plan.out_step_h == 1 && plan.out_step_w == 1 && t.cols * plan.lanes % VL == 0;
    }
    int64_t phases() const { return int64_t(plan.out_step_h) * plan.out_step_w; }
    int64_t row_floats() const { return int64_t(plan.out_w) * plan.lanes; }
    float start(int64_t out) const { return bias ? bias[out / phases()] : 0.0f; }
    float* at(const TilePlace& t, int64_t out, int64_t row, int64_t col) const {
        int64_t channel = t.block * plan.out_channels + out / phases();
        int64_t phase = out % phases();
        row = row * plan.out_step_h + phase / plan.out_step_w;
        col = col * plan.out_step_w + phase % plan.out_step_w;
        return y + ((channel * plan.out_h + row) * plan.out_w + col) * plan.lanes;
    }
    // Outputs of this phase that exist from grid position `from` on, at most `count`.
    int64_t inside(int64_t from, int64_t count, int64_t phase, int64_t step, int64_t size) const {
        return most(0, least(count, ceil_div(size - phase, step) - from));
    }
};

// Writes a finished tile that could not be stored directly; null `sums` stands for the bias alone.
static void spread(const ConvOutput& o, const TilePlace& t, int64_t out, const float* sums,
                   int64_t sums_row) {
    const ConvPlan& p = o.plan;
    int64_t phase = out % o.phases(), lanes = p.lanes;
    int64_t rows = o.inside(t.row, t.rows, phase / p.out_step_w, p.out_step_h, p.out_h);
    int64_t cols = o.inside(t.col, t.cols, phase % p.out_step_w, p.out_step_w, p.out_w);
    float start = o.relu ? relu_of(o.start(out)) : o.start(out);
    for (int64_t r = 0; r < rows; r++) {
        float* to = o.at(t, out, t.row + r, t.col);
        for (int64_t c = 0; c < cols; c++, to += p.out_step_w * lanes) {
            if (sums)
                copy_floats(to, sums + r * sums_row + c * lanes, lanes);
            else
                for (int64_t j = 0; j < lanes; j++) to[j] = start;
        }
    }
}

// One segment: the weights of one out on one chunk of input channels, over the whole tile.
static void run_segment(const ConvOutput& o, const TilePlace& t, const Registers& regs,
                        int64_t segment, const Entry* entries, const float* packed, float* sums) {
    const ConvPlan& p = o.plan;
    int64_t out = p.segment_out[segment], place = p.segment_place[segment];
    bool final = place & LAST, direct = final && o.direct(t);
    int64_t sums_row = regs.vectors * VL;
    RegisterTile tile;
    tile.row_bytes = int64_t(p.in_step_h) * p.pack_w * p.lanes * 4;
    tile.start = o.start(out);
    tile.relu = final && o.relu;
    tile.from_row = sums_row;
    tile.to_row = direct ? o.row_floats() : sums_row;
    for (int64_t row = 0, height; row < t.rows; row += height) {
        height = regs.rows_at(t.rows - row);
        float* goal = direct ? o.at(t, out, t.row + row, t.col) : sums + row * sums_row;
        for (int64_t piece = 0; piece < regs.pieces; piece++) {
            int64_t v0 = regs.vectors * piece / regs.pieces;
            int64_t v1 = regs.vectors * (piece + 1) / regs.pieces;
            tile.packed = reinterpret_cast<const char*>(packed + v0 * VL) + row * tile.row_bytes;
            tile.from = place & FIRST ? nullptr : sums + row * sums_row + v0 * VL;
            tile.to = goal + v0 * VL;
            accumulate_table.of[v1 - v0][height](entries + p.segment_entry[segment],
                                                 entries + p.segment_entry[segment + 1], tile);
        }
    }
    if (final && !direct) spread(o, t, out, sums, sums_row);
}

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
    Registers regs = registers_for(ceil_div(t.cols * p.lanes, VL), t.rows, MAX_ACC);
    int64_t tile_floats = t.rows * regs.vectors * VL;
    float* packed = snip::scratch(snip::PACKED_INPUT, packed_floats(p));
    float* sums = snip::scratch(snip::PARTIAL_OUTPUT, (to - from) * tile_floats);
    for (int64_t chunk = 0; chunk < p.chunks; chunk++) {
        int64_t segment = first_segment(p, chunk, from), end = first_segment(p, chunk, to);
        if (segment == end) continue;
        pack_chunk(p, chunk, x, t, false, packed);
        for (; segment < end; segment++)
            run_segment(o, t, regs, segment, entries, packed,
                        sums + (p.segment_out[segment] - from) * tile_floats);
    }
    for (int64_t i = 0; i < p.silents; i++)
        if (p.silent[i] >= from && p.silent[i] < to) spread(o, t, p.silent[i], nullptr, 0);
}

// y = convolution of x (+ bias) (then ReLU), both tensors [ceil(batch/lanes), C, H, W, lanes].
static void conv_forward(const ConvPlan* plan, const float* values, const float* x,
                         const float* bias, float* y, int64_t batch, int32_t relu,
                         int32_t threads) {
    const ConvPlan& p = *plan;
    ConvOutput o{p, bias, y, relu != 0};
    Entry* entries = reinterpret_cast<Entry*>(snip::scratch(snip::ENTRIES, 2 * p.entries));
    auto gather = [&](int64_t part) {
        for (int64_t k = part * 65536, end = least(k + 65536, p.entries); k < end; k++)
            entries[k] = Entry{p.offset[k], values[p.order[k]]};
    };
    snip::parallel(ceil_div(p.entries, 65536), threads, gather);
    int64_t tiles = ceil_div(batch, p.lanes) * tiles_of(p);
    int64_t outs = p.out_channels * o.phases();
    int64_t parts = threads > 1 ? least(outs, ceil_div(2 * threads, tiles)) : 1;
    auto body = [&](int64_t task) {
        int64_t part = task % parts;
        conv_tile(o, x, place_of(p, task / parts, batch), entries, outs * part / parts,
                  outs * (part + 1) / parts);
    };
    snip::parallel(tiles * parts, threads, body);
}
