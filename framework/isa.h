// Which instruction set the hand-shaped inner loops run on. A source that evenkeel_isa_sources() (CMake)
// compiles once per set defines the same functions in one namespace for each; callers choose at run
// time, so one binary runs on any processor of the architecture.
#pragma once

namespace evenkeel {

enum class Isa { kBaseline, kAvx2, kAvx512 };
inline constexpr Isa kAllIsas[] = {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512};

constexpr const char* name_of(Isa isa) {
    return isa == Isa::kBaseline ? "baseline" : isa == Isa::kAvx2 ? "avx2" : "avx512";
}

// The best set that this processor has, or the limit if that is lower. The environment variable
// EVENKEEL_CPU_ISA sets a limit at the start (baseline, avx2), to compare or to find a fault.
Isa current_isa();
// For tests and comparisons; not while operations run.
void limit_isa(Isa highest);

}  // namespace evenkeel

// EVENKEEL_DECLARE_FOR_ISAS(void f(int);) declares f in the namespace of every set;
// EVENKEEL_FOR_CURRENT_ISA(f) is the address of the one to call.
#if defined(__x86_64__)
#define EVENKEEL_DECLARE_FOR_ISAS(...) \
    namespace baseline {               \
    __VA_ARGS__                        \
    }                                  \
    namespace avx2 {                   \
    __VA_ARGS__                        \
    }                                  \
    namespace avx512 {                 \
    __VA_ARGS__                        \
    }
#define EVENKEEL_FOR_CURRENT_ISA(function)                                    \
    (::evenkeel::current_isa() == ::evenkeel::Isa::kAvx512 ? avx512::function \
     : ::evenkeel::current_isa() == ::evenkeel::Isa::kAvx2 ? avx2::function   \
                                                           : baseline::function)
#else
#define EVENKEEL_DECLARE_FOR_ISAS(...) \
    namespace baseline {               \
    __VA_ARGS__                        \
    }
#define EVENKEEL_FOR_CURRENT_ISA(function) (baseline::function)
#endif
