#include "framework/storage/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "framework/error.h"
#include "framework/storage/file.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/unprivileged.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryDirectory;

class CheckpointTest : public ::testing::Test {
  protected:
    std::string store_path() const { return directory_.file("run/checkpoints"); }
    CheckpointStore store(std::int64_t keep = 0) const {
        return CheckpointStore(store_path(), keep);
    }
    static void put(const std::string& directory, const std::string& text) {
        std::ofstream(directory + "/model") << text;
    }
    void save(const CheckpointStore& to, std::int64_t step) const {
        put(to.begin(step), "step " + std::to_string(step));
        to.commit(step);
    }
    // Without a manifest; the newest.
    void save_as_earlier_version(std::int64_t step) const {
        const std::string path = store().path(step);
        fs::create_directories(path);
        const std::string header = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})";
        for (const char* name : {"model", "optimizer"}) {
            std::ofstream out(path + "/" + name + ".safetensors", std::ios::binary);
            out << static_cast<char>(header.size()) << std::string(7, '\0') << header << "data";
        }
        std::ofstream(path + "/trainer.json") << "{\"step\": " << step << "}";
        fs::remove(store_path() + "/latest");
    }
    std::vector<std::string> entries() const {
        std::vector<std::string> names;
        for (const auto& entry : fs::directory_iterator(store_path())) {
            names.push_back(entry.path().filename().string());
        }
        std::sort(names.begin(), names.end());
        std::erase(names, "latest");
        return names;
    }
    TemporaryDirectory directory_;
};

std::string message_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::kIo) << e.what();
        return e.what();
    }
    return "no error";
}

#define EXPECT_FAULT(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(CheckpointTest, AStoreThatDoesNotExistIsEmpty) {
    EXPECT_TRUE(store().steps().empty());
    EXPECT_EQ(store().latest(), "");
    EXPECT_FALSE(fs::exists(store_path()));
}

TEST_F(CheckpointTest, OnlyACommitMakesACheckpoint) {
    const CheckpointStore checkpoints = store();
    const std::string unfinished = checkpoints.begin(20);
    put(unfinished, "x");
    EXPECT_TRUE(checkpoints.steps().empty());
    EXPECT_EQ(checkpoints.latest(), "");
    const std::string path = checkpoints.commit(20);
    EXPECT_EQ(path, store_path() + "/step_00000020");
    EXPECT_EQ(path, checkpoints.path(20));
    EXPECT_EQ(read_file(path + "/model"), "x");
    EXPECT_EQ(checkpoints.steps(), std::vector<std::int64_t>{20});
    EXPECT_EQ(checkpoints.latest(), path);
    EXPECT_FALSE(fs::exists(unfinished));
}

TEST_F(CheckpointTest, StepsAreInNumericOrder) {
    const CheckpointStore checkpoints = store();
    for (std::int64_t step : {30, 4, 123456789, 100}) save(checkpoints, step);
    EXPECT_EQ(checkpoints.steps(), (std::vector<std::int64_t>{4, 30, 100, 123456789}));
    EXPECT_EQ(checkpoints.latest(), store_path() + "/step_00000100") << "the last one committed";
    fs::remove(store_path() + "/latest");
    EXPECT_EQ(checkpoints.latest(), store_path() + "/step_123456789");
}

TEST_F(CheckpointTest, RemovesWhatInterruptedSavesLeft) {
    const CheckpointStore checkpoints = store();
    save(checkpoints, 10);
    put(checkpoints.begin(20), "half");
    const std::string again = checkpoints.begin(30);
    EXPECT_TRUE(fs::is_empty(again));
    EXPECT_EQ(entries(), (std::vector<std::string>{"step_00000010", "step_00000030.tmp"}));
    put(again, "half");
    EXPECT_TRUE(fs::is_empty(checkpoints.begin(30))) << "a second attempt starts afresh";
}

TEST_F(CheckpointTest, LeavesOtherEntriesAlone) {
    const CheckpointStore checkpoints = store(1);
    const std::vector<std::string> others = {"best",           "notes.tmp",     "step_",
                                             "step_0000001x",  "step_12",       "step_-0000001",
                                             "step_000000012", "xstep_00000001"};
    for (const std::string& name : others) fs::create_directories(store_path() + "/" + name);
    std::ofstream(store_path() + "/step_00000099") << "a file";
    save(checkpoints, 1);
    save(checkpoints, 2);
    EXPECT_EQ(checkpoints.steps(), std::vector<std::int64_t>{2});
    for (const std::string& name : others) EXPECT_TRUE(fs::exists(store_path() + "/" + name));
    EXPECT_TRUE(fs::exists(store_path() + "/step_00000099"));
}

TEST_F(CheckpointTest, KeepsTheNewest) {
    const CheckpointStore checkpoints = store(2);
    for (std::int64_t step = 1; step <= 5; ++step) {
        save(checkpoints, step * 10);
        EXPECT_EQ(checkpoints.steps().size(), static_cast<std::size_t>(std::min<long>(step, 2)));
        EXPECT_EQ(checkpoints.steps().back(), step * 10);
    }
    EXPECT_EQ(entries(), (std::vector<std::string>{"step_00000040", "step_00000050"}));
}

TEST_F(CheckpointTest, KeepZeroKeepsAll) {
    const CheckpointStore checkpoints = store(0);
    for (std::int64_t step = 1; step <= 5; ++step) save(checkpoints, step);
    EXPECT_EQ(checkpoints.steps().size(), 5u);
    EXPECT_THROW(CheckpointStore("x", -1), Error);
}

TEST_F(CheckpointTest, NeverRemovesTheOneJustWritten) {
    save(store(), 100);
    save(store(), 200);
    save(store(1), 50);  // a run that went back
    EXPECT_EQ(store().steps(), (std::vector<std::int64_t>{50, 200}));
}

TEST_F(CheckpointTest, ReplacesAnEarlierCheckpointOfTheSameStep) {
    const CheckpointStore checkpoints = store(2);
    save(checkpoints, 10);
    put(checkpoints.begin(10), "again");
    EXPECT_EQ(read_file(checkpoints.path(10) + "/model"), "step 10") << "until the commit";
    checkpoints.commit(10);
    EXPECT_EQ(read_file(checkpoints.path(10) + "/model"), "again");
    EXPECT_EQ(entries(), std::vector<std::string>{"step_00000010"});
}

TEST_F(CheckpointTest, FailuresNameThePath) {
    std::ofstream(directory_.file("file")) << "x";
    const CheckpointStore in_a_file(directory_.file("file/checkpoints"), 0);
    EXPECT_FAULT(message_of([&] { in_a_file.begin(1); }), directory_.file("file/checkpoints"));
    const CheckpointStore is_a_file(directory_.file("file"), 0);
    EXPECT_FAULT(message_of([&] { is_a_file.steps(); }), directory_.file("file") + ": cannot list");
    EXPECT_THROW(store().begin(-1), Error);
}

TEST_F(CheckpointTest, CommitWithoutBeginFailsAndLeavesTheRest) {
    const CheckpointStore checkpoints = store(1);
    save(checkpoints, 1);
    EXPECT_FAULT(message_of([&] { checkpoints.commit(2); }), "step_00000002.tmp");
    EXPECT_EQ(checkpoints.steps(), std::vector<std::int64_t>{1});
}

TEST_F(CheckpointTest, ADirectoryThatMayNotBeWrittenIsAnIoError) {
    const testing::Unprivileged unprivileged(directory_.path());
    if (!unprivileged.holds()) GTEST_SKIP() << "cannot drop root's rights";
    save(store(), 1);
    fs::permissions(store_path(), fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_FAULT(message_of([&] { store().begin(2); }), "step_00000002.tmp: cannot create: Perm");
    EXPECT_FAULT(message_of([&] { write_file_atomically(store_path() + "/x", ""); }),
                 "x.tmp: cannot create: Permission denied");
    EXPECT_EQ(read_file(store().latest() + "/model"), "step 1");
    fs::permissions(store_path(), fs::perms::owner_all);
}

TEST_F(CheckpointTest, LatestIsTheOneLastCommitted) {
    save(store(), 100);
    save(store(), 200);
    save(store(), 50);  // a run that went back
    EXPECT_EQ(read_file(store_path() + "/latest").substr(0, 14), "step_00000050 ");
    EXPECT_EQ(store().newest_first(), (std::vector<std::int64_t>{50, 200, 100}));
    EXPECT_EQ(read_manifest(store().path(50))->after, "step_00000200");
}

TEST_F(CheckpointTest, AJobThatEndsBeforeLatestIsWrittenLosesNothing) {
    save(store(), 100);
    save(store(), 300);
    save(store(), 200);  // a run that went back
    const std::string before = read_file(store_path() + "/latest");
    save(store(), 250);
    write_file_atomically(store_path() + "/latest", before);
    EXPECT_EQ(store().newest_first(), (std::vector<std::int64_t>{250, 200, 300, 100}));
}

TEST_F(CheckpointTest, ALatestThatIsNoGoodIsGoneBy) {
    save(store(), 10);
    save(store(), 20);
    const std::string good = read_file(store_path() + "/latest");
    for (std::size_t i = 0; i < good.size(); ++i) {
        for (int bit = 0; bit < 8; ++bit) {
            std::string bad = good;
            bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
            std::ofstream(store_path() + "/latest", std::ios::binary) << bad;
            EXPECT_EQ(store().newest_first(), (std::vector<std::int64_t>{20, 10}))
                << "byte " << i << ", bit " << bit;
        }
    }
    fs::remove(store_path() + "/latest");
    EXPECT_EQ(store().newest_first(), (std::vector<std::int64_t>{20, 10}));
    fs::create_directory(store_path() + "/latest");
    EXPECT_EQ(store().newest_first(), (std::vector<std::int64_t>{20, 10}));
    EXPECT_FAULT(message_of([&] { save(store(), 30); }), "latest: got a directory, want the file");
}

TEST_F(CheckpointTest, TheNewestThatIsAsItWasWrittenIsChosen) {
    EXPECT_EQ(newest_verified(store(), {}, true), "");
    for (std::int64_t step : {10, 20, 30}) save(store(), step);
    EXPECT_EQ(newest_verified(store(), {}, true), store().path(30));
    put(store().path(30), "step 31");
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(newest_verified(store(), {}, false), store().path(20));
    EXPECT_FAULT(::testing::internal::GetCapturedStderr(), "step_00000030: model: got hash ");
    EXPECT_EQ(entries().size(), 3u);
    EXPECT_EQ(newest_verified(store(), {}, true), store().path(20));
    EXPECT_EQ(entries(), (std::vector<std::string>{"step_00000010", "step_00000020",
                                                   "step_00000030.damaged"}));
    put(store().path(20), "step 21");
    put(store().path(10), "step 11");
    EXPECT_FAULT(message_of([&] { newest_verified(store(), {}, false); }),
                 "none of its 2 checkpoints is as it was written");
    EXPECT_FAULT(message_of([&] { newest_checkpoint(store().path(20)); }),
                 "step_00000020: is not as it was written");
    EXPECT_FAULT(message_of([&] { newest_checkpoint(directory_.file("run")); }), "none of its 2");
}

TEST_F(CheckpointTest, NoneIsSetAsideWhereNoneIsGood) {
    for (std::int64_t step : {10, 20}) {
        save(store(), step);
        put(store().path(step), "other");
    }
    for (int start = 0; start < 2; ++start) {
        EXPECT_FAULT(message_of([&] { newest_verified(store(), {}, true); }),
                     "none of its 2 checkpoints is as it was written, the warnings say what is "
                     "wrong: put a sound copy in place, or take another directory for the run "
                     "(trainer.run_dir), or, if the change is yours, evenkeel inspect CHECKPOINT "
                     "--accept");
        EXPECT_EQ(entries(), (std::vector<std::string>{"step_00000010", "step_00000020"}));
    }
    store().set_aside(10);
    store().set_aside(20);
    EXPECT_FAULT(message_of([&] { newest_verified(store(), {}, true); }),
                 "holds no checkpoint but such as were set aside (the last: "
                 "step_00000020.damaged); a run does not begin anew by itself");
    EXPECT_FAULT(message_of([&] { newest_checkpoint(directory_.file("run")); }), "set aside");
}

TEST_F(CheckpointTest, TheNewestOfAtMostSoManySteps) {
    for (std::int64_t step : {10, 30, 20}) save(store(), step);
    EXPECT_EQ(newest_verified(store(), {}, false), store().path(20)) << "the last one committed";
    EXPECT_EQ(newest_verified(store(), {}, false, 100), store().path(30));
    EXPECT_EQ(newest_verified(store(), {}, false, 29), store().path(20));
    put(store().path(20), "other");
    EXPECT_EQ(newest_verified(store(), {}, false, 29), store().path(10));
}

TEST_F(CheckpointTest, WhatCannotBeReadIsNotTakenForDamaged) {
    const testing::Unprivileged unprivileged(directory_.path());
    if (!unprivileged.holds()) GTEST_SKIP() << "cannot drop root's rights";
    save(store(), 10);
    save(store(), 20);
    const std::string newest = store().path(20);
    for (const std::string& path : {newest, newest + "/model", newest + "/manifest.json"}) {
        fs::permissions(path, fs::perms::none);
        const std::string message = message_of([&] { newest_verified(store(), {}, true); });
        EXPECT_FAULT(message, newest + ": could not be read");
        EXPECT_FAULT(message, path);
        EXPECT_FAULT(message, "Permission denied");
        fs::permissions(path, fs::perms::owner_all);
        EXPECT_EQ(entries(), (std::vector<std::string>{"step_00000010", "step_00000020"}));
    }
    EXPECT_EQ(newest_verified(store(), {}, true), newest);
}

TEST_F(CheckpointTest, TheManifestsStepIsThatOfTheName) {
    for (std::int64_t step : {10, 20, 30}) save(store(), step);
    fs::rename(store().path(10), store_path() + "/x");
    fs::rename(store().path(30), store().path(10));
    fs::rename(store_path() + "/x", store().path(30));
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(newest_verified(store(), {}, false), store().path(20));
    EXPECT_FAULT(::testing::internal::GetCapturedStderr(),
                 "step_00000030: manifest.json: is that of step 10");
    fs::copy(store().path(20), store().path(99), fs::copy_options::recursive);
    EXPECT_EQ(newest_verified(store(), {}, false, 99), store().path(20));
    EXPECT_EQ(find_faults(store().path(99) + "/", Check::kSizes).faults.size(), 1u);
    fs::rename(store().path(99), directory_.file("best"));  // no name of a step
    EXPECT_TRUE(find_faults(directory_.file("best"), Check::kContents).faults.empty());
}

TEST_F(CheckpointTest, FilesOfOtherProgramsAreNoDamage) {
    save(store(), 10);
    std::ofstream(store().path(10) + "/.DS_Store") << "x";
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(newest_verified(store(), {}, true), store().path(10));
    EXPECT_FAULT(::testing::internal::GetCapturedStderr(), ".DS_Store is not in its manifest.json");
    std::ofstream(store().path(10) + "/more.safetensors") << "x";
    EXPECT_FAULT(message_of([&] { newest_verified(store(), {}, true); }), "none of its 1");
}

TEST_F(CheckpointTest, APipeIsNotWaitedFor) {
    save(store(), 10);
    save(store(), 20);
    fs::remove(store_path() + "/latest");
    ASSERT_EQ(::mkfifo((store_path() + "/latest").c_str(), 0600), 0);
    fs::remove(store().path(20) + "/manifest.json");
    ASSERT_EQ(::mkfifo((store().path(20) + "/manifest.json").c_str(), 0600), 0);
    EXPECT_EQ(newest_verified(store(), {}, true), store().path(10));
}

TEST_F(CheckpointTest, ARankThatHasHashedItsPartAsksTheOthersAgainAndAgain) {
    save(store(), 10);
    // The other rank works on while this one has been done three times; then it finds a fault.
    int asked = 0;
    const CheckpointReaders readers = {0, 2, [&](double mine) {
                                           // Which checkpoint, five times whether all are done, whether all are sound.
                                           ++asked;
                                           if (asked == 2 || asked == 7) return std::max(mine, 1.0);
                                           return asked < 6 && asked > 2 ? 1.0 : mine;
                                       }};
    EXPECT_FAULT(message_of([&] { newest_verified(store(), readers, false); }),
                 "none of its 1 checkpoints is as it was written");
    EXPECT_EQ(asked, 8);
}

TEST_F(CheckpointTest, ADamagedOneIsSetAsideUnderANameOfItsOwn) {
    for (int i = 0; i < 2; ++i) {
        save(store(), 10);
        store().set_aside(10);
    }
    EXPECT_EQ(entries(),
              (std::vector<std::string>{"step_00000010.damaged", "step_00000010.damaged-2"}));
    EXPECT_TRUE(store().steps().empty());
}

TEST_F(CheckpointTest, DamagedOnesDoNotPushOutTheLastSoundOne) {
    save(store(2), 10);
    save(store(2), 20);
    save(store(2), 30);
    fs::remove(store().path(30) + "/model");
    save(store(2), 40);
    EXPECT_EQ(store().steps(), (std::vector<std::int64_t>{20, 30, 40}));
    save(store(1), 50);
    EXPECT_EQ(store().steps(), (std::vector<std::int64_t>{30, 50}));
}

TEST_F(CheckpointTest, OldCheckpointsWithoutManifestAreTakenAsTheyAre) {
    save_as_earlier_version(10);
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(newest_verified(store(), {}, true), store().path(10));
    EXPECT_FAULT(::testing::internal::GetCapturedStderr(), "has no manifest.json");
    save(store(1), 20);
    EXPECT_EQ(store().steps(), std::vector<std::int64_t>{20});
}

TEST_F(CheckpointTest, WhatIsNeitherOfAnEarlierVersionNorVerifiedIsDamaged) {
    save(store(), 5);
    const std::string path = store().path(10);
    const std::pair<std::function<void()>, const char*> ways[] = {
        {[&] { fs::remove(path + "/trainer.json"); }, "trainer.json: is missing, as is manifest"},
        {[&] { std::ofstream(path + "/trainer.json") << "{\"step\": 1"; },
         "trainer.json: is damaged"},
        {[&] { std::ofstream(path + "/trainer.json") << "{\"step\": 11}"; },
         "trainer.json: is that of step 11"},
        {[&] { fs::remove(path + "/optimizer.safetensors"); }, "optimizer.safetensors: is missing"},
        {[&] {
             fs::remove(path + "/model.safetensors");
             fs::remove(path + "/optimizer.safetensors");
         },
         "holds no file of tensors"},
        {[&] { fs::resize_file(path + "/model.safetensors", 20); }, "model.safetensors: "},
        {[&] {
             fs::remove_all(path);
             fs::create_directory(path);
         },
         "trainer.json: is missing"}};
    for (const auto& [spoil, words] : ways) {
        SCOPED_TRACE(words);
        fs::remove_all(path);
        save_as_earlier_version(10);
        EXPECT_EQ(newest_verified(store(), {}, false), path);
        spoil();
        ::testing::internal::CaptureStderr();
        EXPECT_EQ(newest_verified(store(), {}, false), store().path(5));
        EXPECT_FAULT(::testing::internal::GetCapturedStderr(), words);
        // Nor does it push out a sound one.
        save(store(2), 20);
        EXPECT_EQ(store().steps(), (std::vector<std::int64_t>{5, 10, 20}));
        fs::remove_all(store().path(20));
    }
}

TEST_F(CheckpointTest, WriteFileAtomicallyReplacesAndLeavesNothingElse) {
    const std::string path = directory_.file("state.json");
    write_file_atomically(path, "one");
    write_file_atomically(path, "two");
    EXPECT_EQ(read_file(path), "two");
    EXPECT_FALSE(fs::exists(path + ".tmp"));
    const std::string target = directory_.file("directory");
    fs::create_directories(target + "/full");
    EXPECT_FAULT(message_of([&] { write_file_atomically(target, "x"); }),
                 target + ": got a directory, a device or a pipe, want a file");
    EXPECT_FALSE(fs::exists(target + ".tmp"));
    const std::string pipe = directory_.file("pipe");  // as /dev/stdout may be one
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_FAULT(message_of([&] { write_file_atomically(pipe, "x"); }), "want a file");
    EXPECT_TRUE(fs::is_fifo(pipe));
    EXPECT_FAULT(message_of([&] { write_file_atomically("/nonexistent/x", ""); }),
                 "/nonexistent/x.tmp: cannot create: No such file or directory");
}

TEST_F(CheckpointTest, ReadFileReadsWholeFilesAndNamesFaults) {
    const std::string path = directory_.file("large");
    std::string text(3'000'001, 'x');
    text[2'000'000] = '\0';
    write_file_atomically(path, text);
    EXPECT_EQ(read_file(path), text);
    EXPECT_FAULT(message_of([] { read_file("/nonexistent"); }),
                 "/nonexistent: cannot open: No such file or directory");
    EXPECT_FAULT(message_of([&] { read_file(directory_.path()); }), "Is a directory");
}

TEST_F(CheckpointTest, AFullDiskSaysSo) {
    if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "needs /dev/full";
    const std::string message = message_of([] { File::create("/dev/full").write("x", 1); });
    EXPECT_FAULT(message, "/dev/full: cannot write: No space left on device");
}

}  // namespace
}  // namespace evenkeel
