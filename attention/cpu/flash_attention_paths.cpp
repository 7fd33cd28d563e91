// Chooses the instruction set for flash attention when the program runs.
#include <cstdlib>
#include <string>

#include "attention/cpu/flash_attention.h"
#include "framework/error.h"

namespace evenkeel {

namespace baseline {
extern const FlashKernels kFlashKernels;
}
#if defined(__x86_64__)
namespace avx2 {
extern const FlashKernels kFlashKernels;
}
namespace avx512_fma {
extern const FlashKernels kFlashKernels;
}
namespace avx512_bf16 {
extern const FlashKernels kFlashKernels;
}
#endif

namespace {

constexpr const char* kOp = "flash_attention";

FlashPath best_path() {
#if defined(__x86_64__)
    // Intel's processors issue products of bf16 pairs at half the rate of fp32 or less, so that
    // converting to fp32 while packing is as fast or faster, and more accurate. AMD's (Zen 4, 5) don't.
    const bool dot_is_fast = !__builtin_cpu_is("intel");
    if (dot_is_fast && flash_path_available(FlashPath::kAvx512Bf16Dot)) {
        return FlashPath::kAvx512Bf16Dot;
    }
    if (flash_path_available(FlashPath::kAvx512)) return FlashPath::kAvx512;
    if (flash_path_available(FlashPath::kAvx2)) return FlashPath::kAvx2;
#endif
    return FlashPath::kBaseline;
}

void check_available(FlashPath path) {
    EVENKEEL_CHECK_CODE(flash_path_available(path), ErrorCode::kConfig, kOp,
                        "EVENKEEL_CPU_ISA: got ", name_of(path),
                        ", want an instruction set that this processor has");
}

FlashPath initial_path() {
    const char* wanted = std::getenv("EVENKEEL_CPU_ISA");
    if (!wanted || !*wanted) return best_path();
    for (FlashPath path : kAllFlashPaths) {
        if (std::string(wanted) != name_of(path)) continue;
        check_available(path);
        return path;
    }
    throw_error(ErrorCode::kConfig, kOp,
                concat("EVENKEEL_CPU_ISA: got ", wanted,
                       ", want one of baseline, avx2, avx512, avx512_bf16"));
}

FlashPath& current_path() {
    static FlashPath path = initial_path();
    return path;
}

}  // namespace

const char* name_of(FlashPath path) {
    switch (path) {
        case FlashPath::kBaseline:
            return "baseline";
        case FlashPath::kAvx2:
            return "avx2";
        case FlashPath::kAvx512:
            return "avx512";
        case FlashPath::kAvx512Bf16Dot:
            return "avx512_bf16";
    }
    return "?";
}

bool flash_path_available(FlashPath path) {
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    switch (path) {
        case FlashPath::kBaseline:
            return true;
        case FlashPath::kAvx2:
            return avx2;
        case FlashPath::kAvx512:
            return avx512;
        case FlashPath::kAvx512Bf16Dot:
            return avx512 && __builtin_cpu_supports("avx512bf16");
    }
    return false;
#else
    return path == FlashPath::kBaseline;
#endif
}

FlashPath flash_path() { return current_path(); }

void set_flash_path(FlashPath path) {
    check_available(path);
    current_path() = path;
}

const FlashKernels& flash_kernels([[maybe_unused]] bool bf16) {
#if defined(__x86_64__)
    switch (flash_path()) {
        case FlashPath::kBaseline:
            break;
        case FlashPath::kAvx2:
            return avx2::kFlashKernels;
        case FlashPath::kAvx512:
            return avx512_fma::kFlashKernels;
        case FlashPath::kAvx512Bf16Dot:
            return bf16 ? avx512_bf16::kFlashKernels : avx512_fma::kFlashKernels;
    }
#endif
    return baseline::kFlashKernels;
}

}  // namespace evenkeel
