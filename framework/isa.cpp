#include "framework/isa.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

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

// Names that say no less than the best (avx512, avx512_bf16) or nothing known are for those who know more
// sets than there are here: flash attention refuses the unknown ones.
Isa limit_of_environment() {
    const char* wanted = std::getenv("EVENKEEL_CPU_ISA");
    for (const Isa isa : {Isa::kBaseline, Isa::kAvx2}) {
        if (wanted != nullptr && std::string_view(wanted) == name_of(isa)) return isa;
    }
    return Isa::kAvx512;
}

Isa highest_allowed = limit_of_environment();

}  // namespace

Isa current_isa() {
    static const Isa detected = detect();
    return std::min(detected, highest_allowed);
}

void limit_isa(Isa highest) { highest_allowed = highest; }

}  // namespace evenkeel
