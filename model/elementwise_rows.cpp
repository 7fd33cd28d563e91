// Every element passes through the same vector code wherever it falls in a row, so results do not depend
// on how rows are shared out.
#include "model/elementwise_rows.h"

#include "model/normal_tail.h"
#include "model/row_vectors.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

template <typename T>
void rms_norm_forward(const RmsNormRows& rows, std::int64_t begin, std::int64_t end) {
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
        for_each_vector(rows.width,
                        [&](auto get, auto put) { put(y, get(x) * rstd * get(rows.gain)); });
    }
}

template <typename T>
void rms_norm_backward(const RmsNormRows& rows,
                       std::int64_t begin,
                       std::int64_t end,
                       float* dgain) {
    for (std::int64_t row = begin; row < end; ++row) {
        const T* x = static_cast<const T*>(rows.x) + row * rows.width;
        const T* dy = static_cast<const T*>(rows.dy) + row * rows.width;
        T* dx = static_cast<T*>(rows.y) + row * rows.width;
        const float rstd = rows.rstd[row];
        Vec dot{};
        for_each_vector(rows.width, [&](auto get, auto put) {
            const Vec zu = get(dy) * (get(x) * rstd);
            put(dgain, get(static_cast<const float*>(dgain)) + zu);
            dot += zu * get(rows.gain);
        });
        const float mean = sum(dot) / static_cast<float>(rows.width);
        for_each_vector(rows.width, [&](auto get, auto put) {
            const Vec gradient = rstd * (get(rows.gain) * get(dy) - get(x) * rstd * mean);
            put(dx, rows.accumulate ? gradient + get(static_cast<const T*>(dx)) : gradient);
        });
    }
}

EVENKEEL_INLINE Vec sigmoid(Vec x) { return 1.0f / (1.0f + exp(-x)); }

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

void rms_norm_forward_rows(const RmsNormRows& rows, std::int64_t begin, std::int64_t end) {
    for_type(rows.bf16, [&]<typename T>() { rms_norm_forward<T>(rows, begin, end); });
}

void rms_norm_backward_rows(const RmsNormRows& rows,
                            std::int64_t begin,
                            std::int64_t end,
                            float* dgain) {
    for_type(rows.bf16, [&]<typename T>() { rms_norm_backward<T>(rows, begin, end, dgain); });
}

void swiglu_forward_rows(bool bf16,
                         const void* gate_up,
                         void* y,
                         std::int64_t width,
                         std::int64_t begin,
                         std::int64_t end) {
    for_type(bf16, [&]<typename T>() {
        for (std::int64_t row = begin; row < end; ++row) {
            const T* gate = static_cast<const T*>(gate_up) + row * 2 * width;
            T* out = static_cast<T*>(y) + row * width;
            for_each_vector(width, [&](auto get, auto put) {
                const Vec g = get(gate);
                put(out, g * sigmoid(g) * get(gate + width));
            });
        }
    });
}

void swiglu_backward_rows(bool bf16,
                          const void* dy,
                          const void* gate_up,
                          void* dgate_up,
                          std::int64_t width,
                          std::int64_t begin,
                          std::int64_t end) {
    for_type(bf16, [&]<typename T>() {
        for (std::int64_t row = begin; row < end; ++row) {
            const T* gradient = static_cast<const T*>(dy) + row * width;
            const T* gate = static_cast<const T*>(gate_up) + row * 2 * width;
            T* dgate = static_cast<T*>(dgate_up) + row * 2 * width;
            for_each_vector(width, [&](auto get, auto put) {
                const Vec d = get(gradient), g = get(gate), up = get(gate + width);
                const Vec s = sigmoid(g);
                put(dgate, d * up * (s * (1.0f + g * (1.0f - s))));
                put(dgate + width, d * (g * s));
            });
        }
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

}  // namespace evenkeel::EVENKEEL_ISA
