// Every element passes through the same vector code wherever it falls in a row, so results do not depend
// on how rows are shared out.
#include "model/ops/elementwise_rows.h"

#include "model/ops/normal_tail.h"
#include "model/ops/row_vectors.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

template <typename T>
void rms_norm_forward(const NormRows& rows, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        const T* x = static_cast<const T*>(rows.x) + row * rows.width;
        T* y = static_cast<T*>(rows.y) + row * rows.width;
        Vec squares[2] = {};
        int turn = 0;
        for_each_vector(rows.width, [&](auto get, auto) {
            const Vec value = get(x);
            squares[turn] += value * value;
            turn ^= 1;
        });
        const float rstd = reciprocal_rms(sum(squares[0] + squares[1]), x, rows.width, rows.eps);
        rows.rstd[row] = rstd;
        for_each_vector(rows.width, [&](auto get, auto put) {
            put(y, get(x) * rstd * (get(rows.gain) + rows.gain_offset));
        });
    }
}

template <typename T>
void rms_norm_backward(const NormRows& rows, std::int64_t begin, std::int64_t end, float* dgain) {
    for (std::int64_t row = begin; row < end; ++row) {
        const T* x = static_cast<const T*>(rows.x) + row * rows.width;
        const T* dy = static_cast<const T*>(rows.dy) + row * rows.width;
        T* dx = static_cast<T*>(rows.y) + row * rows.width;
        const float rstd = rows.rstd[row];
        Vec dot{};
        for_each_vector(rows.width, [&](auto get, auto put) {
            const Vec zu = get(dy) * (get(x) * rstd);
            put(dgain, get(static_cast<const float*>(dgain)) + zu);
            dot += zu * (get(rows.gain) + rows.gain_offset);
        });
        const float mean = sum(dot) / static_cast<float>(rows.width);
        for_each_vector(rows.width, [&](auto get, auto put) {
            const Vec gain = get(rows.gain) + rows.gain_offset;
            const Vec gradient = rstd * (gain * get(dy) - get(x) * rstd * mean);
            put(dx, rows.accumulate ? gradient + get(static_cast<const T*>(dx)) : gradient);
        });
    }
}

// A row of LayerNorm without gain and bias: (x - mean) * rstd. Where numbers are so large that a difference of
// two may not be finite, rstd is tiny, and halves are taken.
struct Standardized {
    float factor, mean, rstd;

    EVENKEEL_INLINE Standardized(float row_mean, float row_rstd) {
        factor = row_rstd < 1e-30f ? 0.5f : 1.0f;
        mean = row_mean * factor;
        rstd = row_rstd / factor;
    }
    EVENKEEL_INLINE Vec of(Vec x) const { return (x * factor - mean) * rstd; }
};

template <typename T>
void layer_norm_forward(const NormRows& rows, std::int64_t begin, std::int64_t end) {
    const auto width = static_cast<float>(rows.width);
    for (std::int64_t row = begin; row < end; ++row) {
        const T* x = static_cast<const T*>(rows.x) + row * rows.width;
        T* y = static_cast<T*>(rows.y) + row * rows.width;
        Vec total{};
        for_each_vector(rows.width, [&](auto get, auto) { total += get(x); });
        float mean = sum(total) / width;
        float squares = 0.0f;
        {
            // What is left of a row is loaded with zeros, which are no deviations.
            Vec of_lanes{};
            std::int64_t c = 0;
            for (; c + kLanes <= rows.width; c += kLanes) {
                const Vec d = load(x + c) - mean;
                of_lanes += d * d;
            }
            squares = sum(of_lanes);
            for (; c < rows.width; ++c) {
                const float d = load_partial(x + c, 1)[0] - mean;
                squares += d * d;
            }
        }
        const float variance = squares / width;
        float rstd = 1.0f / __builtin_sqrtf(variance + rows.eps);
        if (!(variance <= kLargeMean && variance + rows.eps >= kSmallMean)) [[unlikely]] {
            double exact = 0.0;
            for (std::int64_t c = 0; c < rows.width; ++c) {
                exact += static_cast<double>(load_partial(x + c, 1)[0]);
            }
            exact /= static_cast<double>(rows.width);
            mean = static_cast<float>(exact);
            rstd = careful_reciprocal_root(x, rows.width, exact, static_cast<double>(rows.width),
                                           rows.eps);
        }
        rows.rstd[row] = rstd;
        rows.mean[row] = mean;
        const Standardized row_of(mean, rstd);
        for_each_vector(rows.width, [&](auto get, auto put) {
            Vec value = row_of.of(get(x)) * (get(rows.gain) + rows.gain_offset);
            if (rows.bias != nullptr) value += get(rows.bias);
            put(y, value);
        });
    }
}

template <typename T>
void layer_norm_backward(
    const NormRows& rows, std::int64_t begin, std::int64_t end, float* dgain, float* dbias) {
    const auto width = static_cast<float>(rows.width);
    for (std::int64_t row = begin; row < end; ++row) {
        const T* x = static_cast<const T*>(rows.x) + row * rows.width;
        const T* dy = static_cast<const T*>(rows.dy) + row * rows.width;
        T* dx = static_cast<T*>(rows.y) + row * rows.width;
        const float rstd = rows.rstd[row];
        const Standardized row_of(rows.mean[row], rstd);
        Vec dot{}, total{};
        for_each_vector(rows.width, [&](auto get, auto put) {
            const Vec d = get(dy), gain = get(rows.gain) + rows.gain_offset;
            const Vec zu = d * row_of.of(get(x));
            put(dgain, get(static_cast<const float*>(dgain)) + zu);
            put(dbias, get(static_cast<const float*>(dbias)) + d);
            total += d * gain;
            dot += zu * gain;
        });
        const float mean = sum(total) / width, along = sum(dot) / width;
        for_each_vector(rows.width, [&](auto get, auto put) {
            const Vec gain = get(rows.gain) + rows.gain_offset;
            const Vec gradient = rstd * ((gain * get(dy) - mean) - row_of.of(get(x)) * along);
            put(dx, rows.accumulate ? gradient + get(static_cast<const T*>(dx)) : gradient);
        });
    }
}

EVENKEEL_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

// What a gate multiplies with: g sigmoid(z(g)), with dz/dg.
struct GateSlope {
    Vec z, slope;
};
struct Silu {
    EVENKEEL_INLINE static GateSlope of(Vec g) { return {g, broadcast(1.0f)}; }
};
// x / 2 (1 + tanh u) = x sigmoid(2 u). Beyond |x| = 10 the sigmoid is 0 or 1 in fp32.
struct TanhGelu {
    EVENKEEL_INLINE static GateSlope of(Vec g) {
        const Vec square = g * g;
        const Vec bounded = square > 100.0f ? broadcast(100.0f) : square;
        const Vec slope = kTanhGeluLinear + 3.0f * kTanhGeluCubic * bounded;
        return {g * (kTanhGeluLinear + kTanhGeluCubic * bounded),
                square > 100.0f ? broadcast(0.0f) : slope};
    }
};

template <typename T, typename Gate>
void gated_forward(
    const void* gate_up, void* y, std::int64_t width, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        const T* gate = static_cast<const T*>(gate_up) + row * 2 * width;
        T* out = static_cast<T*>(y) + row * width;
        for_each_vector(width, [&](auto get, auto put) {
            const Vec g = get(gate);
            put(out, g * sigmoid(Gate::of(g).z) * get(gate + width));
        });
    }
}

template <typename T, typename Gate>
void gated_backward(const void* dy,
                    const void* gate_up,
                    void* dgate_up,
                    std::int64_t width,
                    std::int64_t begin,
                    std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        const T* gradient = static_cast<const T*>(dy) + row * width;
        const T* gate = static_cast<const T*>(gate_up) + row * 2 * width;
        T* dgate = static_cast<T*>(dgate_up) + row * 2 * width;
        for_each_vector(width, [&](auto get, auto put) {
            const Vec d = get(gradient), g = get(gate), up = get(gate + width);
            const GateSlope gate_slope = Gate::of(g);
            const Vec s = sigmoid(gate_slope.z);
            put(dgate, d * up * (s * (1.0f + g * gate_slope.slope * (1.0f - s))));
            put(dgate + width, d * (g * s));
        });
    }
}

// Phi(x), the normal distribution function, and its density times sqrt(2 pi).
struct NormalDistribution {
    Vec below;
    Vec density;
};

EVENKEEL_INLINE NormalDistribution normal_distribution(Vec x) {
    const Vec a = x < 0.0f ? -x : x;
    const Vec t = 1.0f / (1.0f + kNormalTailSlope * a);
    const Vec density = exp(-0.5f * x * x);
    Vec q = broadcast(kNormalTail[0]);
    for (int i = 1; i < kNormalTailTerms; ++i) q = q * t + kNormalTail[i];
    const Vec tail = density * t * q;
    return {x < 0.0f ? tail : 1.0f - tail, density};
}

}  // namespace

void rms_norm_forward_rows(const NormRows& rows, std::int64_t begin, std::int64_t end) {
    for_type(rows.bf16, [&]<typename T>() { rms_norm_forward<T>(rows, begin, end); });
}

void rms_norm_backward_rows(const NormRows& rows,
                            std::int64_t begin,
                            std::int64_t end,
                            float* dgain) {
    for_type(rows.bf16, [&]<typename T>() { rms_norm_backward<T>(rows, begin, end, dgain); });
}

void layer_norm_forward_rows(const NormRows& rows, std::int64_t begin, std::int64_t end) {
    for_type(rows.bf16, [&]<typename T>() { layer_norm_forward<T>(rows, begin, end); });
}

void layer_norm_backward_rows(
    const NormRows& rows, std::int64_t begin, std::int64_t end, float* dgain, float* dbias) {
    for_type(rows.bf16,
             [&]<typename T>() { layer_norm_backward<T>(rows, begin, end, dgain, dbias); });
}

void gated_forward_rows(bool bf16,
                        bool gelu,
                        const void* gate_up,
                        void* y,
                        std::int64_t width,
                        std::int64_t begin,
                        std::int64_t end) {
    for_type(bf16, [&]<typename T>() {
        if (gelu) return gated_forward<T, TanhGelu>(gate_up, y, width, begin, end);
        gated_forward<T, Silu>(gate_up, y, width, begin, end);
    });
}

void gated_backward_rows(bool bf16,
                         bool gelu,
                         const void* dy,
                         const void* gate_up,
                         void* dgate_up,
                         std::int64_t width,
                         std::int64_t begin,
                         std::int64_t end) {
    for_type(bf16, [&]<typename T>() {
        if (gelu) return gated_backward<T, TanhGelu>(dy, gate_up, dgate_up, width, begin, end);
        gated_backward<T, Silu>(dy, gate_up, dgate_up, width, begin, end);
    });
}

void gelu_forward_range(bool bf16, const void* x, void* y, std::int64_t begin, std::int64_t end) {
    for_type(bf16, [&]<typename T>() {
        const T* in = static_cast<const T*>(x) + begin;
        T* out = static_cast<T*>(y) + begin;
        for_each_vector(end - begin, [&](auto get, auto put) {
            const Vec value = get(in);
            put(out, value * normal_distribution(value).below);
        });
    });
}

void gelu_backward_range(
    bool bf16, const void* dy, const void* x, void* dx, std::int64_t begin, std::int64_t end) {
    for_type(bf16, [&]<typename T>() {
        const T* gradient = static_cast<const T*>(dy) + begin;
        const T* in = static_cast<const T*>(x) + begin;
        T* out = static_cast<T*>(dx) + begin;
        for_each_vector(end - begin, [&](auto get, auto put) {
            const Vec value = get(in);
            const NormalDistribution phi = normal_distribution(value);
            put(out, get(gradient) * (phi.below + kNormalDensityAtZero * value * phi.density));
        });
    });
}

void add_range(bool bf16, void* y, const void* x, std::int64_t begin, std::int64_t end) {
    for_type(bf16, [&]<typename T>() {
        T* sum = static_cast<T*>(y) + begin;
        const T* term = static_cast<const T*>(x) + begin;
        for_each_vector(end - begin, [&](auto get, auto put) {
            put(sum, get(static_cast<const T*>(sum)) + get(term));
        });
    });
}

void scale_range(bool bf16, void* y, float factor, std::int64_t begin, std::int64_t end) {
    for_type(bf16, [&]<typename T>() {
        T* values = static_cast<T*>(y) + begin;
        for_each_vector(end - begin, [&](auto get, auto put) {
            put(values, get(static_cast<const T*>(values)) * factor);
        });
    });
}

}  // namespace evenkeel::EVENKEEL_ISA
