// What train does where the emulated GPU's memory is small.
#include <gtest/gtest.h>

#include <cstdlib>

#include "framework/device_memory.h"
#include "launch/commands.h"

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
        EXPECT_NE(got.find("; trainer.micro_batch_size=2 fits"), std::string::npos) << got;
    }
    unsetenv("EVENKEEL_EMULATOR_MEMORY");
}

}  // namespace
}  // namespace evenkeel
