// The emulator against a GPU's recorded answers (tests/run_gpu.sh records them), and the machinery
// of that.
#include "tests/gpu_emulator/instructions/golden.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/gpu_emulator/instructions/cases.h"
#include "tests/gpu_emulator/instructions/forms.h"

namespace instructions {
namespace {

TEST(InstructionGoldens, TheEmulatorAnswersLikeTheGpu) {
    const std::string path = std::string(EVENKEEL_TEST_GOLDEN) + "/gpu_instructions.txt";
    std::ifstream file(path);
    if (!file)
        GTEST_SKIP() << "no GPU has answered yet: tests/run_gpu.sh records "
                        "tests/golden/gpu_instructions.txt";
    const Golden golden = read_golden(file);
    for (const Case& c : all_cases()) {
        if (!can_run(c)) continue;
        const auto recorded = golden.cases.find(golden_name(c));
        // The GPU that answered may have been too old for it.
        if (recorded == golden.cases.end() && c.snippet.arch > 80) continue;
        if (recorded == golden.cases.end()) {
            ADD_FAILURE() << golden_name(c)
                          << " was not recorded: run tests/run_gpu.sh on a GPU again";
            continue;
        }
        EXPECT_EQ(replay(c, recorded->second, run(c.snippet, c.in)), "")
            << golden_name(c) << ", recorded on " << golden.device;
    }
}

// Some of each kind: exact and approximate numbers, memory, predicates, all lanes of a warp.
std::vector<Case> some_cases() {
    std::vector<Case> some;
    for (const Case& c : all_cases())
        for (const char* form :
             {"add.s32", "add.f32", "ex2.approx.ftz.f32", "setp.lt.f32", "st.shared.v4.u32",
              "shfl.sync.bfly.b32", "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"})
            if (c.form == form && can_run(c)) some.push_back(c);
    return some;
}

Golden recorded(const std::vector<Case>& cases) {
    Golden golden;
    golden.device = "a test";
    for (const Case& c : cases) golden.cases[golden_name(c)] = golden_of(c, run(c.snippet, c.in));
    std::stringstream file;
    write_golden(file, golden);
    return read_golden(file);
}

TEST(InstructionGoldens, WhatIsRecordedReplays) {
    const std::vector<Case> cases = some_cases();
    ASSERT_GE(cases.size(), 7U);
    const Golden golden = recorded(cases);
    EXPECT_EQ(golden.device, "a test");
    for (const Case& c : cases)
        EXPECT_EQ(replay(c, golden.cases.at(golden_name(c)), run(c.snippet, c.in)), "")
            << golden_name(c);
}

TEST(InstructionGoldens, OneOtherBitFails) {
    ASSERT_FALSE(some_cases().empty());
    for (const Case& c : some_cases()) {
        const Result got = run(c.snippet, c.in);
        Result flipped = got;
        if (c.snippet.out.empty())
            flipped.shared[5] ^= std::byte{1};
        else
            flipped.out[3][0] ^= c.snippet.out[0] == 1 ? 1 : Word{1} << 30;
        const GoldenCase other = golden_of(c, flipped);
        EXPECT_EQ(other.out.size() + other.shared.size(), golden_of(c, got).out.size() + 1)
            << golden_name(c);
        EXPECT_NE(replay(c, other, got), "") << golden_name(c);
        EXPECT_EQ(replay(c, other, flipped), "") << golden_name(c);
    }
}

TEST(InstructionGoldens, AChangedCaseAsksForANewRecording) {
    ASSERT_FALSE(some_cases().empty());
    Case c = some_cases().front();
    const Result got = run(c.snippet, c.in);
    const GoldenCase golden = golden_of(c, got);
    c.in[0][0] ^= 1;
    EXPECT_NE(replay(c, golden, got).find("run tests/run_gpu.sh"), std::string::npos);
}

TEST(InstructionGoldens, ACutFileIsRefused) {
    std::istringstream cut("heading\ndevice x\ncase 12 add.s32\n"),
        wrong("heading\ncase 1 a\nout 1\nend 1\n");
    EXPECT_THROW(read_golden(cut), std::runtime_error);
    EXPECT_THROW(read_golden(wrong), std::runtime_error);
}

}  // namespace
}  // namespace instructions
