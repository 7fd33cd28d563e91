// A directory that appears complete or not at all.
#include "framework/storage/staged_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "framework/error.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;

class StagedDirectoryTest : public ::testing::Test {
  protected:
    std::size_t entries() const {
        return static_cast<std::size_t>(std::distance(fs::directory_iterator(files_.path()), {}));
    }
    void fill(const std::string& directory) const {
        fs::create_directory(directory + "/inner");
        std::ofstream(directory + "/inner/file") << "text";
    }
    testing::TemporaryDirectory files_;
    std::string target_ = files_.file("target");
};

TEST_F(StagedDirectoryTest, HasItsNameOnlyWhenCommitted) {
    StagedDirectory staged(target_);
    fill(staged.path());
    EXPECT_FALSE(fs::exists(target_));
    staged.commit();
    EXPECT_TRUE(fs::exists(target_ + "/inner/file"));
    EXPECT_EQ(entries(), 1u);
}

TEST_F(StagedDirectoryTest, LeavesNothingWhenItIsNotCommitted) {
    { fill(StagedDirectory(target_).path()); }
    EXPECT_EQ(entries(), 0u);
}

TEST_F(StagedDirectoryTest, RemovesWhatKilledProcessesLeftAndNothingElse) {
    const pid_t dead = ::fork();
    if (dead == 0) ::_exit(0);
    ASSERT_EQ(::waitpid(dead, nullptr, 0), dead);
    const std::string left = target_ + ".tmp-" + std::to_string(dead);
    const std::vector<std::string> others = {target_ + ".tmp-" + std::to_string(::getppid()),
                                             target_ + ".tmp-x", target_ + ".tmp-",
                                             files_.file("other.tmp-") + std::to_string(dead)};
    fs::create_directory(left);
    fill(left);
    for (const std::string& other : others) fs::create_directory(other);
    {
        // As one whose process, on another machine, is still at work.
        const int held = ::open(left.c_str(), O_RDONLY | O_DIRECTORY);
        ASSERT_EQ(::flock(held, LOCK_EX), 0);
        StagedDirectory staged(target_);
        EXPECT_TRUE(fs::exists(left + "/inner/file"));
        ::close(held);
    }
    StagedDirectory staged(target_);
    EXPECT_FALSE(fs::exists(left));
    for (const std::string& other : others) EXPECT_TRUE(fs::exists(other)) << other;
}

TEST_F(StagedDirectoryTest, MakesParentsAndTakesATrailingSlash) {
    StagedDirectory staged(files_.file("a/b/c/"));
    fill(staged.path());
    staged.commit();
    EXPECT_TRUE(fs::exists(files_.file("a/b/c/inner/file")));
}

TEST_F(StagedDirectoryTest, RefusesATargetThatIsThere) {
    fs::create_directory(target_);
    EXPECT_THROW(StagedDirectory{target_}, Error);
    fs::remove(target_);
    fs::create_symlink("/nowhere", target_);
    EXPECT_THROW(StagedDirectory{target_}, Error);
    EXPECT_THROW(StagedDirectory{""}, Error);
    EXPECT_THROW(StagedDirectory{files_.path() + "/.."}, Error);
}

TEST_F(StagedDirectoryTest, RefusesATargetThatHasComeToBe) {
    {
        StagedDirectory staged(target_);
        fs::create_directory(target_);
        EXPECT_THROW(staged.commit(), Error);
    }
    EXPECT_EQ(entries(), 1u);
    EXPECT_TRUE(fs::is_empty(target_));
}

TEST_F(StagedDirectoryTest, AKilledProcessLeavesNoTarget) {
    const pid_t child = ::fork();
    if (child == 0) {
        const StagedDirectory staged(target_);
        fill(staged.path());
        ::kill(::getpid(), SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_FALSE(fs::exists(target_));
    // What it left is in no one's way.
    StagedDirectory staged(target_);
    fill(staged.path());
    staged.commit();
    EXPECT_TRUE(fs::exists(target_ + "/inner/file"));
}

}  // namespace
}  // namespace evenkeel
