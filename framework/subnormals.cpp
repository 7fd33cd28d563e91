#include "framework/subnormals.h"

#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace evenkeel {

void flush_subnormals() {
#if defined(__x86_64__)
    constexpr unsigned kFlushToZero = 1u << 15, kDenormalsAreZero = 1u << 6;  // of MXCSR
    _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
#elif defined(__aarch64__)
    constexpr std::uint64_t kFlushToZero = std::uint64_t{1} << 24;  // of FPCR; operands too
    std::uint64_t control = 0;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    asm volatile("msr fpcr, %0" : : "r"(control | kFlushToZero));
#endif
}

}  // namespace evenkeel
