// What train says of the memory of the emulated GPU.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "framework/device_memory.h"
#include "launch/commands.h"
#include "launch/memory_advice.h"
#include "model/usable_memory.h"
#include "tests/support/run_files.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel {
namespace {

TEST(TrainOnASmallGpu, IsRefusedBeforeAnythingIsAllocated) {
    const DeviceMemory before = memory_of(Device::kCuda);
    const std::size_t limit = before.total - before.free + (std::size_t{128} << 20);
    setenv("EVENKEEL_EMULATOR_MEMORY", std::to_string(limit).c_str(), 1);
    EXPECT_EQ(memory_of(Device::kCuda).total, limit);
    const auto world = make_single_communicator();
    TrainCommand command{std::string(EVENKEEL_SOURCE_DIR) + "/configs/quickstart.json",
                         {"device=cuda", "model.attention.head_dim=64", "trainer.batch_size=64",
                          "trainer.micro_batch_size=64", "parallel.tensor_parallel=1"}};
    try {
        run_train(command, *world);
        ADD_FAILURE() << "no error";
    } catch (const Error& error) {
        const std::string got = error.what();
        EXPECT_EQ(error.code(), ErrorCode::kConfig) << got;
        EXPECT_EQ(got.rfind("[train] memory: training takes ", 0), 0u) << got;
        EXPECT_NE(got.find("its GPU has 128 MiB free of "), std::string::npos) << got;
        EXPECT_NE(got.find("; trainer.micro_batch_size=1 fits"), std::string::npos) << got;
    }
    unsetenv("EVENKEEL_EMULATOR_MEMORY");
}

// Graphs keep what their passes make; evaluation, and the search for a value that is not finite, make it again.
TEST(TrainOnAFullGpu, RecordsNoGraphsThatLeaveNoRoom) {
    const testing::TemporaryDirectory files;
    testing::write_text(files.file("text"), 5000);
    const auto world = make_single_communicator();
    TrainCommand command{
        std::string(EVENKEEL_SOURCE_DIR) + "/configs/tiny.json",
        {"device=cuda", "data.path=" + files.file("text"), "model.type=bf16", "model.num_layers=1",
         "model.width=64", "model.attention.num_heads=1", "model.attention.num_kv_heads=1",
         "model.attention.head_dim=64", "trainer.batch_size=2", "trainer.micro_batch_size=1",
         "trainer.seq_len=64", "trainer.eval_sequences=1", "trainer.steps=6",
         "trainer.stop_at_step=5", "schedule.warmup_steps=1"}};
    const RunConfig config = load_run_config(command.config, command.overrides);
    const MemoryPlan plan = plan_memory(config, 1);
    ASSERT_EQ(total_with_graphs(config, 1), plan.total() + 2 * plan.passes());
    for (const bool room : {false, true}) {
        std::vector<std::string>& overrides = command.overrides;
        overrides.push_back(concat("trainer.run_dir=", files.file(room ? "large" : "small")));
        Buffer::release_unused(Device::kCuda);
        const DeviceMemory before = memory_of(Device::kCuda);
        // The smallest GPU that has room for both: what is held already, and the reserve.
        const std::size_t taken = total_with_graphs(config, 1);
        std::size_t limit = before.total - before.free + taken;
        while (usable_memory(limit) < taken) ++limit;
        setenv("EVENKEEL_EMULATOR_MEMORY", std::to_string(room ? limit : limit - 1).c_str(), 1);
        ::testing::internal::CaptureStderr();
        EXPECT_NO_THROW(run_train(command, *world));
        const std::string got = ::testing::internal::GetCapturedStderr();
        unsetenv("EVENKEEL_EMULATOR_MEMORY");
        EXPECT_EQ(got.find("graphs  none: with them training would take ") == std::string::npos,
                  room)
            << got;
    }
}

TEST(TrainOnAGpu, TellsWhatTheFirstStepTook) {
    const testing::TemporaryDirectory files;
    testing::write_text(files.file("text"), 5000);
    const auto world = make_single_communicator();
    const TrainCommand command{
        std::string(EVENKEEL_SOURCE_DIR) + "/configs/tiny.json",
        {"device=cuda", "data.path=" + files.file("text"), "trainer.run_dir=" + files.file("run"),
         "model.type=bf16", "model.num_layers=2", "model.width=64", "model.feed_forward_width=96",
         "model.attention.num_heads=2", "model.attention.num_kv_heads=1",
         "model.attention.head_dim=64", "trainer.batch_size=2", "trainer.micro_batch_size=1",
         "trainer.seq_len=64", "trainer.eval_sequences=1", "trainer.steps=2",
         "trainer.stop_at_step=1", "schedule.warmup_steps=1"}};
    ::testing::internal::CaptureStderr();
    EXPECT_NO_THROW(run_train(command, *world));
    const std::string got = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(got.find("memory  planned for each rank"), std::string::npos) << got;
    EXPECT_NE(got.find(" a rank at the peak of the first step, "), std::string::npos) << got;
    EXPECT_EQ(got.find(" apart"), std::string::npos) << got;
}

}  // namespace
}  // namespace evenkeel
