// A product that the system has no memory for.
#include <gtest/gtest.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <iostream>

#include "framework/gemm.h"
#include "framework/memory_scope.h"

namespace evenkeel {
namespace {

[[noreturn]] void multiply_without_room() {
    omp_set_num_threads(1);
    const Tensor x = Tensor::zeros({96, 80}, DType::kFloat32);
    const Tensor y = Tensor::zeros({96, 96}, DType::kFloat32);
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t limit = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (4 << 20);
    const rlimit room = {limit, limit};
    setrlimit(RLIMIT_AS, &room);
    try {
        const MemoryScope scope("layers.3.wo");
        gemm(x, x, y, {.transpose_b = true});
    } catch (const OutOfMemory& error) {
        std::cerr << error.what() << std::endl;
        _exit(0);
    }
    _exit(1);
}

// oneDNN itself would crash.
TEST(GemmMemoryDeathTest, WhereOneDnnLacksMemoryAnErrorSaysSo) {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(multiply_without_room(), ::testing::ExitedWithCode(0),
                "\\[gemm\\] out of memory: .* of layers.3.wo");
}

}  // namespace
}  // namespace evenkeel
