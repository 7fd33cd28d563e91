#include "framework/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "framework/storage/checkpoint.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel {
namespace {

// What goes to standard error meanwhile. The descriptor takes its place, so that what is behind it decides
// whether it is a terminal.
class Redirect {
  public:
    explicit Redirect(int descriptor) : saved_(::dup(STDERR_FILENO)) {
        ::dup2(descriptor, STDERR_FILENO);
    }
    ~Redirect() {
        ::dup2(saved_, STDERR_FILENO);
        ::close(saved_);
    }

  private:
    int saved_;
};

std::string to_file(const std::function<void()>& action) {
    const testing::TemporaryDirectory directory;
    const std::string path = directory.file("log");
    const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT, 0600);
    {
        const Redirect redirect(descriptor);
        action();
    }
    ::close(descriptor);
    return read_file(path);
}

std::string to_terminal(const std::function<void()>& action) {
    const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || ::grantpt(terminal) != 0 || ::unlockpt(terminal) != 0) return "";
    const int other_side = ::open(::ptsname(terminal), O_RDWR | O_NOCTTY);
    {
        const Redirect redirect(other_side);
        action();
    }
    // The system passes the text on in pieces of its own; the mark says that all have come.
    constexpr char kMark = '\x01';
    std::string text;
    bool open = ::write(other_side, &kMark, 1) == 1;
    while (open && (text.empty() || text.back() != kMark)) {
        char piece[4096];
        const ssize_t count = ::read(terminal, piece, sizeof(piece));
        open = count > 0;
        if (open) text.append(piece, static_cast<std::size_t>(count));
    }
    if (open) text.pop_back();
    ::close(other_side);
    ::close(terminal);
    return text;
}

class LogTest : public ::testing::Test {
  protected:
    LogTest() {
        ::unsetenv("OMPI_COMM_WORLD_RANK");
        ::setenv("TERM", "xterm", 1);
    }
    ~LogTest() override { set_log_rank(0, 1); }
};

TEST_F(LogTest, AloneThereAreNoRanks) {
    EXPECT_EQ(to_file([] {
                  log_info("info");
                  log_warning("careful");
                  log_error("broken");
              }),
              "info\nwarning: careful\nerror: broken\n");
}

TEST_F(LogTest, RankZeroAloneInforms) {
    const auto all = [] {
        log_info("info");
        log_progress("step 1", true);
        log_warning("careful");
        log_error("broken");
    };
    set_log_rank(0, 2);
    EXPECT_EQ(to_file(all), "info\nstep 1\nrank 0: warning: careful\nrank 0: error: broken\n");
    set_log_rank(1, 2);
    EXPECT_EQ(to_file(all), "rank 1: warning: careful\nrank 1: error: broken\n");
}

TEST_F(LogTest, ProgressIsPlainLinesInAFile) {
    EXPECT_EQ(to_file([] {
                  log_progress("step 1", false);
                  log_info("note");
                  log_progress("step 2", true);
              }),
              "step 1\nnote\nstep 2\n");
}

TEST_F(LogTest, ProgressRewritesItselfOnATerminal) {
    const std::string got = to_terminal([] {
        EXPECT_TRUE(log_to_terminal());
        log_progress("step 1", false);
        log_progress("step 2", false);
        log_info("note");
        log_progress("step 3", true);
        log_info("end");
    });
    if (got.empty()) GTEST_SKIP() << "no pseudo-terminals here";
    EXPECT_EQ(got, "\r\x1b[Kstep 1\r\x1b[Kstep 2\r\x1b[Knote\r\n\r\x1b[Kstep 3\r\nend\r\n");
}

TEST_F(LogTest, ADumbTerminalGetsPlainLines) {
    ::setenv("TERM", "dumb", 1);
    const std::string got = to_terminal([] {
        EXPECT_FALSE(log_to_terminal());
        log_progress("step 1", false);
        log_progress("step 2", true);
    });
    if (got.empty()) GTEST_SKIP() << "no pseudo-terminals here";
    EXPECT_EQ(got, "step 1\r\nstep 2\r\n");
}

}  // namespace
}  // namespace evenkeel
