#include "launch/memory_advice.h"

#include <gtest/gtest.h>

#include <map>

#include "model/usable_memory.h"

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
    ASSERT_LT(total(Recompute::kElementwise), total(Recompute::kAttention));
    EXPECT_EQ(what_fits(config, 1, total(Recompute::kNone) - 1).substr(0, 59),
              "trainer.micro_batch_size=1 model.recompute=elementwise fits");
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
    RunConfig wanted = config;
    wanted.trainer.micro_batch_size = 1;
    wanted.parallel.tensor_parallel = 4;
    wanted.parallel.sequence_parallel = true;
    const std::size_t available = plan_memory(wanted, 4).total();
    ASSERT_LT(available, total_of(config, 1, 4));
    ASSERT_LT(available, total_of(config, 1, 2));
    EXPECT_EQ(
        what_fits(config, 1, available),
        "parallel.tensor_parallel=4 trainer.micro_batch_size=1 parallel.sequence_parallel=true "
        "fits: " +
            bytes_text(available) + " a rank, with 4 ranks in all");
    EXPECT_NE(what_fits(config, 1, 1000).find("make the model smaller"), std::string::npos);
}

// 2 x 2 ranks. What cuts only what there is comes before a smaller micro-batch, and alone where that is enough.
TEST(MemoryAdviceTest, NamesPartsOfStateAndOfTheStreamBeforeASmallerMicroBatch) {
    RunConfig config = large_run();
    config.parallel.tensor_parallel = 2;
    config.trainer.micro_batch_size = 12;
    const auto total = [&](std::int64_t zero_stage, bool sequence_parallel, std::int64_t size) {
        RunConfig changed = config;
        changed.parallel.zero_stage = zero_stage;
        changed.parallel.sequence_parallel = sequence_parallel;
        changed.trainer.micro_batch_size = size;
        return plan_memory(changed, 4).total();
    };
    const auto advice = [&](std::size_t available) {
        const std::string text = what_fits(config, 4, available);
        return text.substr(0, text.find(" fits: "));
    };
    const std::size_t zero = total(1, false, 12), cut = total(0, true, 12),
                      both = total(1, true, 12);
    ASSERT_LT(cut, zero) << "the stream is the larger part";
    EXPECT_EQ(advice(total(0, false, 12) - 1), "parallel.sequence_parallel=true")
        << "saves more, though either is enough";
    EXPECT_EQ(advice(cut), "parallel.sequence_parallel=true");
    EXPECT_EQ(advice(cut - 1), "parallel.zero_stage=1 parallel.sequence_parallel=true");
    EXPECT_EQ(advice(both), "parallel.zero_stage=1 parallel.sequence_parallel=true");
    ASSERT_LT(total(0, false, 6), both);
    EXPECT_EQ(advice(both - 1), "trainer.micro_batch_size=6");
    // Nothing is proposed that is there, or that ranks have no use for.
    config.parallel.zero_stage = 1;
    config.parallel.sequence_parallel = true;
    EXPECT_EQ(advice(both - 1), "trainer.micro_batch_size=6");
    config.parallel.tensor_parallel = 1;
    for (const Saving& saving : savings(config, 1)) {
        EXPECT_EQ(saving.setting.find("parallel."), std::string::npos) << saving.setting;
    }
}

TEST(MemoryAdviceTest, TellsWhatEachSettingSavesByItselfTheLargestFirst) {
    RunConfig config = large_run();
    config.parallel.tensor_parallel = 2;
    config.trainer.micro_batch_size = 12;
    const std::size_t now = plan_memory(config, 4).total();
    const std::vector<Saving> all = savings(config, 4);
    std::map<std::string, std::size_t> by_name;
    for (std::size_t i = 0; i < all.size(); ++i) {
        by_name[all[i].setting] = all[i].bytes;
        if (i > 0) EXPECT_LE(all[i].bytes, all[i - 1].bytes);
    }
    const auto saved = [&](const auto& change) {
        RunConfig changed = config;
        change(changed);
        return now - plan_memory(changed, 4).total();
    };
    const std::map<std::string, std::size_t> want = {
        {"parallel.zero_stage=1", saved([](RunConfig& c) { c.parallel.zero_stage = 1; })},
        {"parallel.sequence_parallel=true",
         saved([](RunConfig& c) { c.parallel.sequence_parallel = true; })},
        {"model.recompute=elementwise",
         saved([](RunConfig& c) { c.model.recompute = Recompute::kElementwise; })},
        {"model.recompute=attention",
         saved([](RunConfig& c) { c.model.recompute = Recompute::kAttention; })},
        {"model.recompute=full", saved([](RunConfig& c) { c.model.recompute = Recompute::kFull; })},
        {"trainer.micro_batch_size=6", saved([](RunConfig& c) { c.trainer.micro_batch_size = 6; })},
    };
    EXPECT_EQ(by_name, want);
    const std::string got = complaint(config, 4, {now - 1, now});
    EXPECT_NE(
        got.find(concat("; each by itself: ", all[0].setting, " saves ", bytes_text(all[0].bytes),
                        ", ", all[1].setting, " ", bytes_text(all[1].bytes))),
        std::string::npos)
        << got;
    // Of two that save, that which is in use keeps none of the others from being named.
    config.model.recompute = Recompute::kAttention;
    by_name.clear();
    for (const Saving& saving : savings(config, 4)) by_name[saving.setting] = saving.bytes;
    EXPECT_GT(by_name["model.recompute=elementwise"], 0u);
    EXPECT_GT(by_name["model.recompute=full"], by_name["model.recompute=elementwise"]);
    EXPECT_EQ(by_name.count("model.recompute=none"), 0u);
    by_name = want;
    // bf16: 14 bytes a parameter of state on each of two data-parallel ranks, 12 with a half of master and moments.
    EXPECT_GT(by_name["parallel.zero_stage=1"], std::size_t{1} << 30);
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

// 6 GiB of a large GPU, an eighth of one of less than 48 GiB, are left to what is not planned.
TEST(MemoryAdviceTest, WarnsOfAPlanThatLeavesAGpuNoReserve) {
    constexpr std::size_t kGib = std::size_t{1} << 30;
    EXPECT_EQ(usable_memory(80 * kGib), 74 * kGib);
    EXPECT_EQ(usable_memory(48 * kGib), 42 * kGib);
    EXPECT_EQ(usable_memory(24 * kGib), 21 * kGib);
    const RunConfig config = large_run();
    const std::size_t need = total_of(config, 24, 1);
    ASSERT_GT(need, 48 * kGib) << "the reserve is 6 GiB";
    const auto said = [&](std::size_t total) {
        ::testing::internal::CaptureStderr();
        EXPECT_EQ(complaint(config, 1, {total, total}), "");
        return ::testing::internal::GetCapturedStderr();
    };
    EXPECT_EQ(said(need + 6 * kGib), "");
    const std::string got = said(need + 6 * kGib - 1);
    EXPECT_NE(got.find(concat("training takes ", bytes_text(need), " a rank, more than the ")),
              std::string::npos)
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
