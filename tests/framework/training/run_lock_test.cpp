#include "framework/training/run_lock.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "framework/error.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel {
namespace {

std::string refusal(const std::string& directory) {
    try {
        const RunLock lock(directory);
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        return error.what();
    }
    return "";
}

TEST(RunLockTest, ASecondRunIsRefusedAndToldOfTheFirst) {
    const testing::TemporaryDirectory files;
    {
        const RunLock lock(files.path());
        const std::string text = refusal(files.path());
        EXPECT_NE(text.find("trainer.run_dir: got " + files.path()), std::string::npos) << text;
        EXPECT_NE(text.find(concat("process ", ::getpid(), " on ")), std::string::npos) << text;
    }
    EXPECT_EQ(refusal(files.path()), "") << "the first one has ended";
}

TEST(RunLockTest, AKilledRunLeavesNoLock) {
    const testing::TemporaryDirectory files;
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
        const RunLock lock(files.path());
        const char byte = 1;
        if (::write(ready[1], &byte, 1) == 1) ::pause();
        ::_exit(1);
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    EXPECT_NE(refusal(files.path()).find(concat("process ", child, " on ")), std::string::npos);
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    EXPECT_EQ(refusal(files.path()), "");
    ::close(ready[0]);
    ::close(ready[1]);
}

TEST(RunLockTest, DirectoriesDoNotShareALock) {
    const testing::TemporaryDirectory one, other;
    const RunLock lock(one.path());
    EXPECT_EQ(refusal(other.path()), "");
}

TEST(RunLockTest, ADirectoryThatIsNotThereIsAnError) {
    const testing::TemporaryDirectory files;
    EXPECT_THROW(RunLock(files.path() + "/none"), Error);
}

}  // namespace
}  // namespace evenkeel
