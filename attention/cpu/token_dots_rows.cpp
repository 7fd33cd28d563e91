#include "attention/cpu/token_dots_rows.h"

#include "framework/simd.h"

namespace evenkeel::EVENKEEL_ISA {
namespace {

// fp32 within a head, double over heads.
template <typename T>
EVENKEEL_INLINE float dot(const DotRows& rows) {
    const T* x = static_cast<const T*>(rows.x);
    const T* y = static_cast<const T*>(rows.y);
    double total = 0.0;
    for (std::int64_t n = 0; n < rows.heads; ++n, x += rows.x_head, y += rows.y_head) {
        Vec sums[2] = {};  // two, so that additions need not wait for each other
        std::int64_t c = 0;
        for (; c + 2 * kLanes <= rows.dim; c += 2 * kLanes) {
            sums[0] += load(x + c) * load(y + c);
            sums[1] += load(x + c + kLanes) * load(y + c + kLanes);
        }
        for (; c < rows.dim; c += kLanes) {
            const std::int64_t left = rows.dim - c < kLanes ? rows.dim - c : kLanes;
            sums[0] += load_partial(x + c, left) * load_partial(y + c, left);
        }
        total += sum(sums[0] + sums[1]);
    }
    return static_cast<float>(total);
}

}  // namespace

float token_dot(const DotRows& rows) {
    return rows.bf16 ? dot<std::uint16_t>(rows) : dot<float>(rows);
}

}  // namespace evenkeel::EVENKEEL_ISA
