// How long the threads of the program spin, as the OpenMP library itself says when it starts. Where that is not GCC's, nothing
// is asked of it.
#include <gtest/gtest.h>

#include "tests/launch/command_line.h"

namespace evenkeel {
namespace {

using testing::count_of;
using testing::Outcome;
using testing::run_command;

Outcome settings_of(const std::string& environment, const std::string& loader = "") {
    const Outcome outcome =
        run_command("unset GOMP_SPINCOUNT OMP_WAIT_POLICY; OMP_DISPLAY_ENV=verbose " + environment +
                    " " + loader + " " EVENKEEL_PROGRAM " --version");
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return outcome;
}

int starts(const Outcome& outcome) { return count_of("GOMP_SPINCOUNT =", outcome.output); }
int starts_with(const std::string& count, const Outcome& outcome) {
    const std::string wanted = "GOMP_SPINCOUNT = " + std::string(1, 39) + count;
    return count_of(wanted + std::string(1, 39), outcome.output);
}

TEST(ThreadWaitsTest, AreShortAfterOneNewStart) {
    const Outcome outcome = settings_of("OMP_NUM_THREADS=2");
    if (starts(outcome) == 0) GTEST_SKIP() << "another OpenMP library than GCC's";
    EXPECT_EQ(starts(outcome), 2) << outcome.output;
    EXPECT_EQ(starts_with("1000", outcome), 1) << outcome.output;
}

TEST(ThreadWaitsTest, AreAsTheUserSays) {
    const Outcome count = settings_of("OMP_NUM_THREADS=2 GOMP_SPINCOUNT=77");
    if (starts(count) == 0) GTEST_SKIP() << "another OpenMP library than GCC's";
    EXPECT_EQ(starts(count), 1) << count.output;
    EXPECT_EQ(starts_with("77", count), 1) << count.output;
    for (const char* policy : {"active", "passive"}) {
        const Outcome outcome =
            settings_of(std::string("OMP_NUM_THREADS=2 OMP_WAIT_POLICY=") + policy);
        EXPECT_EQ(starts(outcome), 1) << outcome.output;
        EXPECT_EQ(starts_with("1000", outcome), 0) << outcome.output;
    }
}

TEST(ThreadWaitsTest, AreLeftAloneWithOneThread) {
    const Outcome outcome = settings_of("OMP_NUM_THREADS=1");
    EXPECT_LE(starts(outcome), 1) << outcome.output;
}

// Then the executable is the loader, which knows nothing of the program's arguments.
TEST(ThreadWaitsTest, AreLeftAloneWhereTheLoaderWasStarted) {
    const std::string loader = "/lib64/ld-linux-x86-64.so.2";
    if (run_command("test -e " + loader).status != 0) GTEST_SKIP() << "no " << loader;
    const Outcome outcome = settings_of("OMP_NUM_THREADS=2", loader);
    EXPECT_LE(starts(outcome), 1) << outcome.output;
}

// So that no environment makes it start again and again.
TEST(ThreadWaitsTest, AMarkFromElsewhereStartsNothing) {
    const Outcome outcome = settings_of("OMP_NUM_THREADS=2 EVENKEEL_SHORT_WAITS=1");
    EXPECT_LE(starts(outcome), 1) << outcome.output;
}

}  // namespace
}  // namespace evenkeel
