#include "tests/gpu_emulator/replacement.h"

#include <gtest/gtest.h>

namespace gpu_emulator {
namespace {

constexpr const char* kProgram =
    ".entry _Z3oneGLOBAL(\n) { ret; }\n"
    ".visible .entry _Z56_GLOBAL__N__0123abcd_4_x_cu_77three(\n) { ret; }\n";

TEST(ReplacementTest, FitsWhereTheProgramHasAllItsKernels) {
    const std::string one = ".visible .entry _Z3oneGLOBAL(\n) { trap; }\n";
    EXPECT_EQ(fit_replacement(one, kProgram), one);
    EXPECT_EQ(fit_replacement(one + ".entry _Z3two(\n) { ret; }\n", kProgram), "");
    EXPECT_EQ(fit_replacement(".entry _Z3one(\n) { ret; }\n", kProgram), "");
    EXPECT_EQ(fit_replacement("// no kernel\n", kProgram), "");
}

TEST(ReplacementTest, TakesTheProgramsNamesOfAnonymousNamespaces) {
    EXPECT_EQ(fit_replacement(".entry _Z56_GLOBAL__N__ffff0000_4_x_cu_77three(\n)\n"
                              "mov.u64 %rd1, _Z56_GLOBAL__N__ffff0000_4_x_cu_77table;\n",
                              kProgram),
              ".entry _Z56_GLOBAL__N__0123abcd_4_x_cu_77three(\n)\n"
              "mov.u64 %rd1, _Z56_GLOBAL__N__0123abcd_4_x_cu_77table;\n");
}

}  // namespace
}  // namespace gpu_emulator
