// What training says when the emulated GPU's memory runs out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <set>

#include "framework/device_memory.h"
#include "framework/memory_scope.h"
#include "tests/support/measured_peak.h"

namespace evenkeel {
namespace {

// Backward makes its blocks again, and takes more than the loss before it.
ModelConfig model_without_room() {
    ModelConfig config = testing::planned_gpu_model(Activation::kSwiGlu);
    config.recompute = Recompute::kFull;
    return config;
}

// What a step says on a GPU with this much free memory; "" if it has room.
std::string complaint(const ProcessGrid& grid, std::size_t bytes) {
    const DeviceMemory memory = memory_of(Device::kCuda);
    const std::size_t limit = memory.total - memory.free + bytes;
    setenv("EVENKEEL_EMULATOR_MEMORY", std::to_string(limit).c_str(), 1);
    std::string text;
    try {
        const StepShape shape{.device = Device::kCuda, .micro_batch_size = 2, .seq_len = 64};
        testing::measured_peak(grid, model_without_room(), shape);
    } catch (const OutOfMemory& error) {
        text = error.what();
    }
    unsetenv("EVENKEEL_EMULATOR_MEMORY");
    return text;
}

TEST(TrainingWithoutMemory, NamesTheTensorThatHasNoRoom) {
    const auto world = make_single_communicator();
    const ProcessGrid grid(*world, {}, Device::kCuda);
    // What is set up once does not count.
    ASSERT_EQ(complaint(grid, std::size_t{1} << 30), "");
    Buffer::release_unused(Device::kCuda);
    const StepShape shape{.device = Device::kCuda, .micro_batch_size = 2, .seq_len = 64};
    const std::size_t peak = plan_memory(model_without_room(), shape).peak();
    std::set<std::string> places;
    for (std::size_t part = 1; part < 20; ++part) {
        const std::string text = complaint(grid, peak * part / 20);
        Buffer::release_unused(Device::kCuda);
        const std::size_t begin = text.find(" bytes for "), end = text.find(" beside the ");
        ASSERT_NE(begin, std::string::npos) << part << " twentieths: " << text;
        places.insert(text.substr(begin + 11, end - begin - 11));
    }
    // It is backward that lacks room just below the peak.
    for (std::size_t part = 90; part < 100; ++part) {
        const std::string text = complaint(grid, peak * part / 100);
        Buffer::release_unused(Device::kCuda);
        const std::size_t begin = text.find(" bytes for "), end = text.find(" beside the ");
        if (begin == std::string::npos) continue;  // the plan is a little too large
        places.insert(text.substr(begin + 11, end - begin - 11));
    }
    const auto has = [&](const std::string& word) {
        return std::any_of(places.begin(), places.end(), [&](const std::string& place) {
            return place.find(word) != std::string::npos;
        });
    };
    std::string all;
    for (const std::string& place : places) all += place + "\n";
    EXPECT_TRUE(has("embedding and what follows it (weights, gradients, moments)")) << all;
    EXPECT_TRUE(has(" (forward)")) << all;
    EXPECT_TRUE(has(" (backward)")) << all;
    EXPECT_EQ(complaint(grid, 2 * peak), "");
}

}  // namespace
}  // namespace evenkeel
