// Every element passes through the same vector code wherever it falls in a row, so results do not depend
// on how rows are shared out.
#include "model/ops/normalized_update_rows.h"

#include <cmath>

#include "model/ops/row_vectors.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

float reciprocal_root(float squares) { return squares > 0.0f ? 1.0f / std::sqrt(squares) : 0.0f; }

template <typename T>
void forward(const NormalizedUpdateRows& rows, std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
        const T* h = static_cast<const T*>(rows.h) + row * rows.width;
        const T* a = static_cast<const T*>(rows.a) + row * rows.width;
        T* y = static_cast<T*>(rows.y) + row * rows.width;
        Vec squares{};
        for_each_vector(rows.width, [&](auto get, auto) {
            const Vec value = get(a);
            squares += value * value;
        });
        const float of_a = reciprocal_root(sum(squares));
        const auto moved = [&](auto get) {
            const Vec from = get(h);
            return from + get(rows.alpha) * (get(a) * of_a - from);
        };
        squares = Vec{};
        for_each_vector(rows.width, [&](auto get, auto) {
            const Vec value = moved(get);
            squares += value * value;
        });
        const float of_sum = reciprocal_root(sum(squares));
        rows.inverse[2 * row] = of_a;
        rows.inverse[2 * row + 1] = of_sum;
        for_each_vector(rows.width, [&](auto get, auto put) { put(y, moved(get) * of_sum); });
    }
}

template <typename T>
void backward(const NormalizedUpdateRows& rows,
              std::int64_t begin,
              std::int64_t end,
              float* dalpha) {
    for (std::int64_t row = begin; row < end; ++row) {
        const T* h = static_cast<const T*>(rows.h) + row * rows.width;
        const T* a = static_cast<const T*>(rows.a) + row * rows.width;
        const T* dy = static_cast<const T*>(rows.dy) + row * rows.width;
        T* dh = static_cast<T*>(rows.dh) + row * rows.width;
        T* da = static_cast<T*>(rows.da) + row * rows.width;
        const float of_a = rows.inverse[2 * row], of_sum = rows.inverse[2 * row + 1];
        const auto y = [&](auto get) {
            const Vec from = get(h);
            return (from + get(rows.alpha) * (get(a) * of_a - from)) * of_sum;
        };
        Vec along{};
        for_each_vector(rows.width, [&](auto get, auto) { along += get(dy) * y(get); });
        const float along_y = sum(along);
        // Of the sum before the outer norm.
        const auto gradient = [&](auto get) { return of_sum * (get(dy) - y(get) * along_y); };
        along = Vec{};
        for_each_vector(rows.width, [&](auto get, auto put) {
            const Vec g = gradient(get), b = get(a) * of_a;
            along += get(rows.alpha) * g * b;
            put(dalpha, get(static_cast<const float*>(dalpha)) + g * (b - get(h)));
        });
        const float along_a = sum(along);
        for_each_vector(rows.width, [&](auto get, auto put) {
            const Vec g = gradient(get), alpha = get(rows.alpha);
            put(da, of_a * (alpha * g - get(a) * of_a * along_a));
            put(dh, (1.0f - alpha) * g);
        });
    }
}

}  // namespace

void normalized_update_forward_rows(const NormalizedUpdateRows& rows,
                                    std::int64_t begin,
                                    std::int64_t end) {
    for_type(rows.bf16, [&]<typename T>() { forward<T>(rows, begin, end); });
}

void normalized_update_backward_rows(const NormalizedUpdateRows& rows,
                                     std::int64_t begin,
                                     std::int64_t end,
                                     float* dalpha) {
    for_type(rows.bf16, [&]<typename T>() { backward<T>(rows, begin, end, dalpha); });
}

}  // namespace evenkeel::EVENKEEL_ISA
