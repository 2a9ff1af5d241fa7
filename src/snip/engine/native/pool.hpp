// Pooling, and the backward pass of bias + ReLU, on blocks.

struct Window {
    int32_t in_h, in_w, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h,
        dilation_w;
};

typedef uint8_t vb __attribute__((vector_size(VL)));
typedef uint8_t vb_any __attribute__((vector_size(VL), aligned(1), may_alias));

// One output position: the largest of its window per lane, and which of the window it was.
template <class V, class Int, class Byte>
static inline void pool_position(const Window& w, const float* plane, int64_t oy, int64_t ox,
                                 int64_t lanes, float* y, uint8_t* which) {
    for (int64_t j = 0; j < lanes; j += Width<V>::lanes) {
        V best = splat<V>(-__builtin_inff());
        Int place = Int{} - 1;
        for (int32_t ky = 0; ky < w.kernel_h; ky++) {
            int64_t row = oy * w.stride_h - w.pad_h + ky * w.dilation_h;
            if (row < 0 || row >= w.in_h) continue;
            for (int32_t kx = 0; kx < w.kernel_w; kx++) {
                int64_t col = ox * w.stride_w - w.pad_w + kx * w.dilation_w;
                if (col < 0 || col >= w.in_w) continue;
                V v = load<V>(plane + (row * w.in_w + col) * lanes + j);
                Int here = Int{} + (ky * w.kernel_w + kx);
                // A NaN wins, as in torch; the first of a window wins over nothing yet (-inf).
                auto wins = (v > best) | (v != v) | (place < Int{});
                best = wins ? v : best;
                place = wins ? here : place;
            }
        }
        store<V>(y + j, best);
        *reinterpret_cast<Byte*>(which + j) = __builtin_convertvector(place, vb);
    }
}

static void pool_scalar(const Window& w, const float* plane, int64_t oy, int64_t ox, int64_t lanes,
                        float* y, uint8_t* which) {
    for (int64_t j = 0; j < lanes; j++) {
        float best = -__builtin_inff();
        int32_t place = -1;
        for (int32_t k = 0; k < w.kernel_h * w.kernel_w; k++) {
            int64_t row = oy * w.stride_h - w.pad_h + k / w.kernel_w * w.dilation_h;
            int64_t col = ox * w.stride_w - w.pad_w + k % w.kernel_w * w.dilation_w;
            if (row < 0 || row >= w.in_h || col < 0 || col >= w.in_w) continue;
            float v = plane[(row * w.in_w + col) * lanes + j];
            if (v > best || v != v || place < 0) {
                best = v;
                place = k;
            }
        }
        y[j] = best;
        which[j] = uint8_t(place);
    }
}

// Largest of each window; `which` keeps its number within the window (at most 255 of them).
static void max_pool(const float* x, float* y, uint8_t* which, const Window* window, int64_t planes,
                     int64_t lanes, int32_t threads) {
    const Window& w = *window;
    int64_t in = int64_t(w.in_h) * w.in_w * lanes, out = int64_t(w.out_h) * w.out_w * lanes;
    auto* position = lanes % VL ? pool_scalar : pool_position<vf, vi, vb_any>;
    auto body = [&](int64_t p) {
        for (int64_t oy = 0; oy < w.out_h; oy++)
            for (int64_t ox = 0; ox < w.out_w; ox++) {
                int64_t at = p * out + (oy * w.out_w + ox) * lanes;
                position(w, x + p * in, oy, ox, lanes, y + at, which + at);
            }
    };
    snip::parallel(planes, planes * in < SERIAL_WORK ? 1 : threads, body);
}

static void max_pool_backward(const float* dy, const uint8_t* which, float* dx, const Window* window,
                              int64_t planes, int64_t lanes, int32_t threads) {
    const Window& w = *window;
    int64_t in = int64_t(w.in_h) * w.in_w * lanes, out = int64_t(w.out_h) * w.out_w * lanes;
    auto body = [&](int64_t p) {
        float* plane = dx + p * in;
        zero_floats(plane, in);
        for (int64_t i = 0; i < out; i++) {
            int64_t position = i / lanes, k = which[p * out + i];
            int64_t row = position / w.out_w * w.stride_h - w.pad_h + k / w.kernel_w * w.dilation_h;
            int64_t col = position % w.out_w * w.stride_w - w.pad_w + k % w.kernel_w * w.dilation_w;
            plane[(row * w.in_w + col) * lanes + i % lanes] += dy[p * out + i];
        }
    };
    snip::parallel(planes, planes * in < SERIAL_WORK ? 1 : threads, body);
}

// Mean of each plane to feature-major [channels, batch].
static void mean_pool(const float* x, float* y, int64_t y_row, int64_t channels, int64_t plane,
                      int64_t lanes, int64_t batch, int32_t threads) {
    Blocks b{channels, plane, lanes, batch};
    each_channel(b, threads, [&](int64_t c) {
        for (int64_t n = 0; n < batch; n++) {
            const float* from = x + b.at(n / lanes, c) + n % lanes;
            float total = 0;
            for (int64_t i = 0; i < plane; i += lanes) total += from[i];
            y[c * y_row + n] = total / float(plane / lanes);
        }
    });
}

static void mean_pool_backward(const float* dy, int64_t dy_row, float* dx, int64_t channels,
                               int64_t plane, int64_t lanes, int64_t batch, int32_t threads) {
    Blocks b{channels, plane, lanes, batch};
    each_channel(b, threads, [&](int64_t c) {
        for (int64_t block = 0; block < b.count(); block++) {
            float* to = dx + b.at(block, c);
            for (int64_t j = 0; j < lanes; j++)
                to[j] = j < b.valid(block) ? dy[c * dy_row + block * lanes + j] / float(plane / lanes) : 0;
            for (int64_t i = lanes; i < plane; i++) to[i] = to[i - lanes];
        }
    });
}

// g = dy where y > 0 (dy without y), zero beyond the batch; dbias = its sums. g may be dy or null.
static void relu_backward(const float* dy, const float* y, float* g, float* dbias, int64_t channels,
                          int64_t plane, int64_t lanes, int64_t batch, int32_t threads) {
    Blocks b{channels, plane, lanes, batch};
    each_channel(b, threads, [&](int64_t c) {
        double total = 0;
        for (int64_t block = 0; block < b.count(); block++) {
            int64_t at = b.at(block, c);
            vf sums = splat<vf>(0.0f);
            each_vector(plane, LaneMask(lanes, b.valid(block)), [&](int64_t i, int64_t n, vi keep) {
                if (y) keep &= load_upto(y + at + i, n) > splat<vf>(0.0f);
                vf d = keep_lanes(load_upto(dy + at + i, n), keep);
                sums += d;
                if (g) store_upto(g + at + i, d, n);
            });
            total += sum(sums);
        }
        if (dbias) dbias[c] = float(total);
    });
}
