#include "launch/memory_advice.h"

#include <gtest/gtest.h>

namespace evenkeel {
namespace {

// 1.3 billion parameters at 2048 positions.
RunConfig large_run() {
    RunConfig config;
    config.device = Device::kCuda;
    config.data.path = "text";
    config.model.num_layers = 24;
    config.model.width = 2048;
    config.model.feed_forward_width = 5632;
    config.model.max_seq_len = 2048;
    config.model.attention.num_heads = 16;
    config.model.attention.num_kv_heads = 8;
    config.model.attention.head_dim = 128;
    config.trainer.batch_size = 24;
    config.trainer.micro_batch_size = 24;
    config.trainer.seq_len = 2048;
    return config;
}

std::size_t total_of(RunConfig config, std::int64_t micro_batch, std::int64_t tensor_parallel) {
    config.trainer.micro_batch_size = micro_batch;
    config.parallel.tensor_parallel = tensor_parallel;
    return plan_memory(config, static_cast<int>(tensor_parallel)).total();
}

std::string complaint(const RunConfig& config, int ranks, const DeviceMemory& memory) {
    try {
        check_memory(config, ranks, memory);
        return "";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        return error.what();
    }
}

TEST(MemoryAdviceTest, NamesTheLargestMicroBatchThatFits) {
    const RunConfig config = large_run();
    // Divisors of 24: 8 fits exactly, 12 does not.
    const std::size_t available = total_of(config, 8, 1);
    EXPECT_EQ(what_fits(config, 1, available),
              "trainer.micro_batch_size=8 fits: " + bytes_text(available) + " a rank");
    EXPECT_EQ(what_fits(config, 1, available - 1).substr(0, 26), "trainer.micro_batch_size=6");
}

TEST(MemoryAdviceTest, NamesWhatBackwardMayMakeAgainWhereNoMicroBatchFits) {
    RunConfig config = large_run();
    const auto total = [&](Recompute recompute) {
        RunConfig changed = config;
        changed.model.recompute = recompute;
        return total_of(changed, 1, 1);
    };
    ASSERT_LT(total(Recompute::kFull), total(Recompute::kAttention));
    ASSERT_LT(total(Recompute::kAttention), total(Recompute::kNone));
    EXPECT_EQ(what_fits(config, 1, total(Recompute::kNone) - 1).substr(0, 57),
              "trainer.micro_batch_size=1 model.recompute=attention fits");
    EXPECT_EQ(what_fits(config, 1, total(Recompute::kFull)),
              "trainer.micro_batch_size=1 model.recompute=full fits: " +
                  bytes_text(total(Recompute::kFull)) + " a rank");
    // What is asked for already is not taken back.
    config.model.recompute = Recompute::kFull;
    EXPECT_EQ(what_fits(config, 1, total(Recompute::kFull)).substr(0, 32),
              "trainer.micro_batch_size=1 fits:");
}

TEST(MemoryAdviceTest, NamesTensorParallelRanksWhereNoMicroBatchFits) {
    const RunConfig config = large_run();
    const std::size_t available = total_of(config, 1, 4);
    ASSERT_LT(available, total_of(config, 1, 2));
    EXPECT_EQ(what_fits(config, 1, available),
              "parallel.tensor_parallel=4 trainer.micro_batch_size=1 fits: " +
                  bytes_text(available) + " a rank, with 4 ranks in all");
    EXPECT_NE(what_fits(config, 1, 1000).find("make the model smaller"), std::string::npos);
}

TEST(MemoryAdviceTest, RefusesARunThatAGpuCannotHold) {
    const RunConfig config = large_run();
    const std::size_t need = total_of(config, 24, 1);
    EXPECT_EQ(complaint(config, 1, {need, need}), "");
    EXPECT_EQ(complaint(config, 1, {}), "") << "nothing is known";
    const std::string got = complaint(config, 1, {need - 1, std::size_t{1} << 60});
    EXPECT_EQ(got.rfind("[train] memory: training takes " + bytes_text(need) + " a rank", 0), 0u)
        << got;
    EXPECT_NE(got.find("trainer.micro_batch_size=12 fits"), std::string::npos) << got;
}

TEST(MemoryAdviceTest, WarnsOfWhatIsFreeOnTheCpuAndRefusesWhatNeverFits) {
    RunConfig config = large_run();
    config.device = Device::kCpu;
    const std::size_t need = plan_memory(config, 1).total();
    EXPECT_EQ(complaint(config, 1, {need / 2, need}), "");
    const std::string got = complaint(config, 1, {need / 2, need - 1});
    EXPECT_NE(got.find("its share of this machine has"), std::string::npos) << got;
}

}  // namespace
}  // namespace evenkeel
