#include "framework/training/stop_request.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace evenkeel {
namespace {

int seen_before = 0;
void note(int signal) { seen_before = signal; }

TEST(StopRequestTest, NotesASignalAndKeepsTheProgramAlive) {
    for (const int signal : {SIGUSR1, SIGTERM, SIGHUP, SIGINT}) {
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

TEST(StopRequestTest, AHangupThatIsIgnoredStaysSo) {
    const auto before = std::signal(SIGHUP, SIG_IGN);
    {
        StopSignals signals;
        raise(SIGHUP);
        EXPECT_FALSE(signals.request().asks_for_checkpoint());
        signals.end_at_once(7, "");
        raise(SIGHUP);
    }
    EXPECT_EQ(std::signal(SIGHUP, before), SIG_IGN);
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

// The exit status of a child that does this, 128 and the signal's number where one killed it; what it wrote to standard
// error goes to `said`.
template <typename F>
int status_of_child(F&& f, std::string* said = nullptr) {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        ::dup2(ends[1], STDERR_FILENO);
        f();
        _exit(0);
    }
    ::close(ends[1]);
    char text[256];
    const ssize_t count = ::read(ends[0], text, sizeof text);
    if (said != nullptr) said->assign(text, count > 0 ? static_cast<std::size_t>(count) : 0);
    ::close(ends[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(StopRequestTest, EndsAtOnceWhenNobodyAsksAnyMore) {
    std::signal(SIGINT, SIG_DFL);
    for (const int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2}) {
        const int want = signal == SIGINT ? 128 + SIGINT : signal == SIGUSR2 ? 0 : 4;
        std::string said;
        EXPECT_EQ(status_of_child(
                      [&] {
                          StopSignals signals;
                          signals.end_at_once(4, "the last words\n");
                          raise(signal);
                      },
                      &said),
                  want)
            << signal;
        EXPECT_EQ(said, want == 4 ? "the last words\n" : "") << signal;
        // One that came after the last question.
        EXPECT_EQ(status_of_child([&] {
                      StopSignals signals;
                      static_cast<void>(signals.request());
                      raise(signal);
                      signals.end_at_once(4, "");
                  }),
                  want)
            << signal;
        // One that has been told is somebody's affair.
        EXPECT_EQ(status_of_child([&] {
                      StopSignals signals;
                      raise(signal);
                      static_cast<void>(signals.request());
                      signals.end_at_once(4, "");
                  }),
                  0)
            << signal;
    }
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
