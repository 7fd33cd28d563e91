#include "framework/isa.h"

#include <algorithm>

namespace evenkeel {
namespace {

Isa detect() {
#if defined(__x86_64__)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::kBaseline;
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512bf16");
    return avx512 ? Isa::kAvx512 : Isa::kAvx2;
#else
    return Isa::kBaseline;
#endif
}

Isa highest_allowed = Isa::kAvx512;

}  // namespace

Isa current_isa() {
    static const Isa detected = detect();
    return std::min(detected, highest_allowed);
}

void limit_isa(Isa highest) { highest_allowed = highest; }

}  // namespace evenkeel
