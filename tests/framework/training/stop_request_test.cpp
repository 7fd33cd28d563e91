#include "framework/training/stop_request.h"

#include <gtest/gtest.h>

namespace evenkeel {
namespace {

int seen_before = 0;
void note(int signal) { seen_before = signal; }

TEST(StopRequestTest, NotesASignalAndKeepsTheProgramAlive) {
    for (const int signal : {SIGUSR1, SIGTERM, SIGINT}) {
        const StopSignals signals;
        EXPECT_FALSE(signals.request().asks_for_checkpoint());
        ASSERT_EQ(raise(signal), 0);
        for (int i = 0; i < 2; ++i) {
            EXPECT_TRUE(signals.request().asks_to_end());
            EXPECT_TRUE(signals.request().asks_for_checkpoint());
            EXPECT_EQ(signals.request().signal, signal);
        }
    }
}

TEST(StopRequestTest, TellsOfACheckpointOnce) {
    const StopSignals signals;
    raise(SIGUSR2);
    const StopRequest request = signals.request();
    EXPECT_TRUE(request.asks_for_checkpoint());
    EXPECT_FALSE(request.asks_to_end());
    EXPECT_STREQ(request.name(), "SIGUSR2");
    EXPECT_FALSE(signals.request().asks_for_checkpoint());
}

TEST(StopRequestTest, RestoresWhatTheSignalsDidBefore) {
    const auto before = std::signal(SIGUSR1, note);
    {
        const StopSignals signals;
        raise(SIGUSR1);
        EXPECT_EQ(seen_before, 0);
    }
    raise(SIGUSR1);
    EXPECT_EQ(seen_before, SIGUSR1);
    std::signal(SIGUSR1, before);
}

TEST(StopRequestTest, ForgetsWhatAnEarlierRunWasAskedFor) {
    {
        const StopSignals signals;
        raise(SIGUSR1);
    }
    EXPECT_FALSE(StopSignals().request().asks_for_checkpoint());
}

TEST(StopRequestTest, TheLargestNumberOverRanksAsksForTheMost) {
    const StopRequest none{}, checkpoint{SIGUSR2}, end{SIGUSR1}, terminate{SIGTERM};
    EXPECT_LT(none.number(), checkpoint.number());
    EXPECT_LT(checkpoint.number(), end.number());
    for (const StopRequest& request : {none, checkpoint, end, terminate}) {
        EXPECT_EQ(StopRequest::from(request.number()).signal, request.signal);
    }
}

TEST(StopRequestDeathTest, ASecondInterruptEndsAtOnce) {
    EXPECT_EXIT(
        {
            const StopSignals signals;
            raise(SIGINT);
            raise(SIGINT);
        },
        ::testing::ExitedWithCode(128 + SIGINT), "");
}

}  // namespace
}  // namespace evenkeel
