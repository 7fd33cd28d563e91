// Every instruction form that the emulator knows does what the PTX ISA says. On a GPU the same
// cases test the cases: what they say is then what the hardware does.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/gpu_emulator/instructions/cases.h"
#include "tests/gpu_emulator/instructions/forms.h"

namespace instructions {
namespace {

void check(const std::vector<Case>& cases) {
    std::size_t run_cases = 0;
    for (const Case& c : cases) {
        if (!can_run(c)) continue;
        ++run_cases;
        std::string wrong;
        try {
            wrong = difference(c, run(c.snippet, c.in));
        } catch (const std::exception& error) {
            wrong = error.what();
        }
        EXPECT_EQ(wrong, "") << c.form << (c.name.empty() ? "" : ", ") << c.name;
    }
    EXPECT_GT(run_cases, 0U) << "none of these forms is known";
}

TEST(Instructions, IntegerArithmeticFollowsTheManual) { check(integer_cases()); }
TEST(Instructions, BitOperationsFollowTheManual) { check(bit_cases()); }
TEST(Instructions, FloatArithmeticFollowsTheManual) { check(float_cases()); }
TEST(Instructions, HalfPrecisionArithmeticFollowsTheManual) { check(half_cases()); }
TEST(Instructions, ConversionsFollowTheManual) { check(conversion_cases()); }
TEST(Instructions, ComparisonsFollowTheManual) { check(comparison_cases()); }
TEST(Instructions, ControlFlowFollowsTheManual) { check(control_cases()); }
TEST(Instructions, LoadsAndStoresFollowTheManual) { check(memory_cases()); }
TEST(Instructions, AtomicsFollowTheManual) { check(atomic_cases()); }
TEST(Instructions, AsynchronousCopiesFollowTheManual) { check(async_copy_cases()); }
TEST(Instructions, WarpWideOperationsFollowTheManual) { check(warp_cases()); }
TEST(Instructions, MatrixOperationsFollowTheManual) { check(matrix_cases()); }

// Instructions of the harness's own frame count too: nothing comes back if they are wrong.
TEST(Instructions, EveryKnownFormHasACase) {
    std::set<std::string> tested;
    for (const Case& c : all_cases()) {
        tested.insert(c.form);
        const std::vector<std::string> used = opcodes(c.snippet.body);
        EXPECT_TRUE(std::find(used.begin(), used.end(), c.form) != used.end())
            << "the case for " << c.form << " never runs it: " << c.snippet.body;
    }
    for (const std::string& form : known_forms())
        EXPECT_TRUE(tested.count(form))
            << "the emulator knows " << form << ", but no case in cases_*.cpp tests it";
}

// The assembler of a GPU understands them as they stand.
TEST(Instructions, PtxasAcceptsEveryCase) {
    if (access(EVENKEEL_PTXAS, X_OK) != 0) {
        GTEST_SKIP() << EVENKEEL_PTXAS << " is on the machine where this was built";
    }
    const std::vector<Case> cases = all_cases();
    std::vector<const Snippet*> snippets;
    for (const Case& c : cases) snippets.push_back(&c.snippet);
    const std::string path =
        ::testing::TempDir() + "instruction_cases." + std::to_string(getpid()) + ".ptx";
    std::ofstream file(path);
    file << assembly_check(snippets, 90);
    file.close();
    const std::string command =
        std::string(EVENKEEL_PTXAS) + " -O0 -arch=sm_90 -o /dev/null " + path;
    EXPECT_EQ(std::system(command.c_str()), 0) << "in " << path;
    if (!HasFailure()) std::remove(path.c_str());
}

TEST(Instructions, CasesHaveNamesOfTheirOwn) {
    std::set<std::string> names;
    for (const Case& c : all_cases())
        EXPECT_TRUE(names.insert(c.form + ", " + c.name).second)
            << "two cases are called " << c.form << ", " << c.name;
}

// ---- The comparison itself

Case sample() {
    Case c;
    c.form = "add.f32";
    c.snippet.out = {32};
    c.kinds = {Kind::kF32};
    c.in = {{}};
    c.expect = [](const Lanes&) { return Expectation{{{{bits_of(1.0F), 0.25}}}, {}, {}}; };
    return c;
}

TEST(InstructionComparison, ToleratesWhatTheCaseAllowsAndNoMore) {
    const auto got = [](float value) { return Result{{{bits_of(value)}}, {}, {}}; };
    EXPECT_EQ(difference(sample(), got(1.0F)), "");
    EXPECT_EQ(difference(sample(), got(1.25F)), "");
    EXPECT_NE(difference(sample(), got(1.3F)), "");
    EXPECT_NE(difference(sample(), Result{{{0x7FC00000}}, {}, {}}), "");
}

TEST(InstructionComparison, SeesChangedMemory) {
    Case c = sample();
    c.snippet.shared = Bytes(4);
    Result got{{{bits_of(1.0F)}}, Bytes(4), {}};
    EXPECT_EQ(difference(c, got), "");
    got.shared[2] = std::byte{1};
    EXPECT_NE(difference(c, got), "");
}

TEST(InstructionComparison, RoundsLikeIeee754) {
    EXPECT_EQ(bf16_bits(1.00390625), 0x3F80U);  // a tie goes to even
    EXPECT_EQ(bf16_bits(1.01171875), 0x3F82U);  // the other one too
    EXPECT_EQ(bf16_bits(3.4e38), 0x7F80U);      // beyond the largest by half a step
    EXPECT_EQ(bf16_bits(3.4e38, Rounding::kZero), 0x7F7FU);
    EXPECT_EQ(f16_bits(65519.99), 0x7BFFU);
    EXPECT_EQ(f16_bits(65520), 0x7C00U);
    EXPECT_EQ(f16_bits(0x1p-25), 0x0000U);  // a tie with zero
    EXPECT_EQ(f16_bits(0x1.8p-25), 0x0001U);
    EXPECT_EQ(f16_bits(-0x1p-24, Rounding::kUp), 0x8001U);
    EXPECT_EQ(f32_bits(1.0 / 3), bits_of(1.0F / 3));
    for (Word bits = 0; bits < 0x10000; ++bits) {
        if ((bits & 0x7C00) != 0x7C00) {
            EXPECT_EQ(f16_bits(f16_value(bits)), bits);
        }
        if ((bits & 0x7F80) != 0x7F80) {
            EXPECT_EQ(bf16_bits(bf16_value(bits)), bits);
        }
    }
}

}  // namespace
}  // namespace instructions
