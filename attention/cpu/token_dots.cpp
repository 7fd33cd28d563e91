// Bytes moved: x and y once.
#include "attention/cpu/token_dots.h"

#include "attention/cpu/token_dots_rows.h"

namespace evenkeel::cpu {

void token_dots(const Tensor& x, const Tensor& y, const Tensor& out) {
    const std::int64_t T = x.size(1), tokens = x.size(0) * T;
    const auto bytes = static_cast<std::int64_t>(size_of(x.dtype()));
    const auto row = [&](const Tensor& rows, std::int64_t token) {
        return rows.raw() + (token / T * rows.stride(0) + token % T * rows.stride(1)) * bytes;
    };
    const auto dot = EVENKEEL_FOR_CURRENT_ISA(token_dot);
    float* to = out.data<float>();
    // Below this many elements starting threads costs more than it saves.
    constexpr std::int64_t kParallelElements = 1 << 14;
#pragma omp parallel for schedule(static) if (x.numel() >= kParallelElements)
    for (std::int64_t token = 0; token < tokens; ++token) {
        to[token] = dot({x.dtype() == DType::kBFloat16, x.size(2), x.size(3), row(x, token),
                         row(y, token), x.stride(2), y.stride(2)});
    }
}

}  // namespace evenkeel::cpu
