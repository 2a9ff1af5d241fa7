// Copies the part of the input that a tile of outputs needs, channel by channel, with zeros outside
// the image. The copy costs little beside the products and buys three things: a weight is one fixed
// offset (no borders, any stride and dilation), the tile fits the cache, and channels whose distance
// is a power of two do not fight for the same cache sets.

struct TilePlace {
    int64_t block;               // which block of the batch
    int64_t row, col;            // first output of the tile
    int64_t rows, cols;          // outputs in it (fewer at the edge)
    int64_t valid;               // lanes that belong to the batch, the rest are padding
};

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

// One packed row of one column phase: `count` positions from input column `col` in steps of `step`.
static inline void pack_row(float* to, const float* row, int64_t col, int64_t step, int64_t count,
                            int64_t width, int64_t lanes) {
    int64_t before = col < 0 ? least(count, ceil_div(-col, step)) : 0;
    int64_t inside = most(before, least(count, ceil_div(width - col, step)));
    zero_floats(to, before * lanes);
    if (step == 1) {
        copy_floats(to + before * lanes, row + (col + before) * lanes, (inside - before) * lanes);
    } else {
        for (int64_t j = before; j < inside; j++)
            copy_floats(to + j * lanes, row + (col + j * step) * lanes, lanes);
    }
    zero_floats(to + inside * lanes, (count - inside) * lanes);
}

static inline void drop_lanes(float* packed, int64_t positions, int64_t lanes, int64_t valid) {
    for (int64_t i = 0; i < positions; i++)
        for (int64_t j = valid; j < lanes; j++) packed[i * lanes + j] = 0;
}

// `clean` zeroes the lanes beyond the batch: the gradient of a weight sums over lanes.
static void pack_chunk(const ConvPlan& p, int64_t chunk, const float* x, const TilePlace& t,
                       bool clean, float* packed) {
    int64_t plane = int64_t(p.in_h) * p.in_w * p.lanes, width = p.pack_w / p.pack_phases;
    int64_t rows = least(p.pack_h, p.pack_h - (p.tile_h - t.rows) * p.in_step_h);
    const float* image = x + t.block * p.in_channels * plane;
    for (int64_t i = p.chunk_channel[chunk]; i < p.chunk_channel[chunk + 1]; i++) {
        const float* channel = image + p.channels[i] * plane;
        float* to = packed + (i - p.chunk_channel[chunk]) * p.pack_h * p.pack_w * p.lanes;
        for (int64_t r = 0; r < rows; r++, to += p.pack_w * p.lanes) {
            int64_t row = t.row * p.in_step_h + p.top + r;
            if (row < 0 || row >= p.in_h) {
                zero_floats(to, p.pack_w * p.lanes);
                continue;
            }
            for (int64_t phase = 0; phase < p.pack_phases; phase++)
                pack_row(to + phase * width * p.lanes, channel + row * p.in_w * p.lanes,
                         t.col * p.in_step_w + p.left + phase, p.in_step_w, width, p.in_w, p.lanes);
            if (clean && t.valid < p.lanes) drop_lanes(to, p.pack_w, p.lanes, t.valid);
        }
    }
}

// Asks for the input of a coming chunk a row at a time while the present one is computed: its rows
// are short and far apart, which the hardware does not foresee.
struct Ahead {
    const ConvPlan& p;
    const float* image;
    int64_t channel, end, row, rows, first_row, offset, floats;

    Ahead(const ConvPlan& plan, int64_t chunk, const float* x, const TilePlace& t) : p(plan) {
        image = x + t.block * p.in_channels * p.in_h * p.in_w * p.lanes;
        channel = chunk < p.chunks ? p.chunk_channel[chunk] : 0;
        end = chunk < p.chunks ? p.chunk_channel[chunk + 1] : 0;
        first_row = t.row * p.in_step_h + p.top;
        row = most(0, -first_row);
        rows = least(p.pack_h - (p.tile_h - t.rows) * p.in_step_h, p.in_h - first_row);
        int64_t col = most(0, t.col * p.in_step_w + p.left);
        offset = col * p.lanes;
        floats = least(p.in_w - col, p.pack_w / p.pack_phases * p.in_step_w) * p.lanes;
    }
    int64_t count() const { return rows > row ? (end - channel) * (rows - row) : 0; }
    void next(int64_t wanted) {
        for (; wanted > 0 && channel < end; wanted--) {
            const float* at = image + (int64_t(p.channels[channel]) * p.in_h + first_row + row) * p.in_w * p.lanes;
            for (int64_t i = 0; i < floats; i += 16) __builtin_prefetch(at + offset + i, 0, 2);
            if (++row >= rows) {
                row = most(0, -first_row);
                channel++;
            }
        }
    }
};

static inline int64_t packed_floats(const ConvPlan& p) {
    int64_t widest = 0;
    for (int64_t c = 0; c < p.chunks; c++)
        widest = most(widest, p.chunk_channel[c + 1] - p.chunk_channel[c]);
    return widest * p.pack_h * p.pack_w * p.lanes + VL;
}

// How the vectors of a tile of outputs are shared out over registers: some rows of at most as many
// vectors as fit. Worked out once per tile, since divisions would show beside short segments.
struct Registers {
    int64_t vectors;     // per row of the tile
    int64_t pieces;      // of a row, pieces differing by one vector at most
    int64_t height = 1;  // rows together, when a row is a single piece; a power of two

    Registers(int64_t vectors_, int64_t rows, int64_t most_held)
        : vectors(vectors_), pieces(ceil_div(vectors_, most_held)) {
        if (pieces == 1)
            while (2 * height <= rows && 2 * height * vectors <= most_held) height *= 2;
        width = vectors / pieces;
        wider = vectors % pieces;
    }
    int64_t rows_at(int64_t left) const {
        int64_t rows = height;
        while (rows > left) rows /= 2;
        return rows;
    }
    int64_t width_of(int64_t piece) const { return width + (piece < wider); }

  private:
    int64_t width, wider;
};
