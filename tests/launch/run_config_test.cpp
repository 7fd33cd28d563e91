#include "launch/run_config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "framework/storage/checkpoint.h"
#include "launch/commands.h"
#include "launch/memory_advice.h"
#include "launch/untold.h"
#include "model/usable_memory.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
const std::string kConfigs = std::string(EVENKEEL_SOURCE_DIR) + "/configs";

// The message of the error that validation gives; "" when there is none.
std::string complaint(const RunConfig& config, int ranks) {
    try {
        config.validate(ranks);
        return "";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig) << error.what();
        return error.what();
    }
}

RunConfig valid_config() {
    RunConfig config;
    config.data.path = "text";
    return config;
}

TEST(RunConfigTest, EveryConfigurationInConfigsIsValid) {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(kConfigs)) {
        if (entry.path().extension() != ".json") continue;
        if (entry.path().filename().string().starts_with("scaling_")) continue;  // plans of studies
        SCOPED_TRACE(entry.path());
        const RunConfig config = load_run_config(entry.path().string(), {});
        const auto ranks = config.parallel.tensor_parallel *
                           std::max<std::int64_t>(config.parallel.data_parallel, 1);
        EXPECT_EQ(complaint(config, static_cast<int>(ranks)), "");
        // The first line says what it needs where one machine is not enough.
        const std::string text = read_file(entry.path().string());
        EXPECT_EQ(text.rfind("// ", 0), 0u);
        if (ranks > 2) {
            EXPECT_NE(text.find("Needs " + std::to_string(ranks)), std::string::npos);
        }
        if (config.device == Device::kCuda) {
            EXPECT_NE(text.find("with a GPU of 80 GB"), std::string::npos);
            // The reserve is left for what the plan does not know: contexts, NCCL.
            constexpr std::size_t kGpu = std::size_t{79} << 30;
            const MemoryPlan plan = plan_memory(config, static_cast<int>(ranks));
            EXPECT_LE(plan.total(), usable_memory(kGpu)) << to_text(plan);
        }
        ++count;
    }
    EXPECT_GE(count, 6);
}

TEST(RunConfigTest, QuickstartHasThreeToSixMillionParametersInGroups) {
    const RunConfig config = load_run_config(kConfigs + "/quickstart.json", {});
    EXPECT_GE(parameter_count(config.model), 3'000'000);
    EXPECT_LE(parameter_count(config.model), 6'000'000);
    EXPECT_GT(config.model.attention.num_heads, config.model.attention.num_kv_heads);
    EXPECT_EQ(config.parallel.tensor_parallel, 2);
    EXPECT_EQ(config.model.type, ComputeType::kBf16);
}

TEST(RunConfigTest, TableInConfigsReadmeIsUpToDate) {
    const std::string readme = read_file(kConfigs + "/README.md");
    EXPECT_NE(readme.find(config_table()), std::string::npos)
        << "configs/README.md is out of date; its table must be what this prints:\n"
        << "  evenkeel train --print-config-table";
}

TEST(RunConfigTest, SavedConfigurationReadsBackEqual) {
    RunConfig config = load_run_config(kConfigs + "/quickstart.json", {"trainer.seed=7"});
    RunConfig back;
    parse_config([&](ConfigVisitor& v) { back.visit_fields(v); }, to_json(config), "test");
    EXPECT_EQ(differing_paths([&](ConfigVisitor& v) { config.visit_fields(v); },
                              [&](ConfigVisitor& v) { back.visit_fields(v); }),
              std::vector<std::string>{});
    EXPECT_EQ(back.trainer.seed, 7);
}

TEST(RunConfigTest, NamesOverridesThatALaterMethodTakesBack) {
    const auto undone = [](const std::vector<std::string>& overrides) {
        return undone_by_method(kConfigs + "/tiny.json", overrides);
    };
    const std::string cap = "model.attention.softcap=30", sink = "model.attention.sink=learned";
    EXPECT_EQ(undone({}), "");
    EXPECT_EQ(undone({cap}), "");
    EXPECT_EQ(undone({"trainer.steps=3", cap, "model.method=henry"}), cap);
    EXPECT_EQ(undone({cap, sink, "model.method=layer_norm"}), concat(cap, ", ", sink));
    EXPECT_EQ(undone({"model.method=henry", cap}), "");
    EXPECT_EQ(undone({cap, "model.method=henry", cap}), "");
}

TEST(RunConfigTest, CompactTextShowsEverySettingOnce) {
    RunConfig config = valid_config();
    const std::string text = compact_text(config);
    EXPECT_NE(text.find("model.attention.qk_norm"), std::string::npos) << text;
    EXPECT_NE(text.find(" num_kv_heads=4"), std::string::npos) << text;
    EXPECT_NE(text.find("path=text"), std::string::npos) << text;
}

TEST(RunConfigTest, AcceptsAnyMultipleOfTheTensorParallelSize) {
    RunConfig config = valid_config();
    config.parallel.tensor_parallel = 2;
    config.trainer.batch_size = 64;
    EXPECT_EQ(complaint(config, 2), "");
    EXPECT_EQ(complaint(config, 4), "");
}

TEST(RunConfigTest, RejectsTheWrongNumberOfRanks) {
    RunConfig config = valid_config();
    config.parallel.tensor_parallel = 2;
    EXPECT_NE(complaint(config, 3).find("mpirun -np 2"), std::string::npos);
    config.parallel.data_parallel = 2;
    EXPECT_NE(complaint(config, 2).find("mpirun -np 4"), std::string::npos);
}

TEST(RunConfigTest, RejectsHeadsThatRanksCannotShare) {
    RunConfig config = valid_config();
    config.parallel.tensor_parallel = 3;
    config.model.vocab_size = 258;
    config.model.feed_forward_width = 300;
    EXPECT_NE(complaint(config, 3).find("num_heads"), std::string::npos);
}

TEST(RunConfigTest, RejectsOddHeadWidth) {
    RunConfig config = valid_config();
    config.model.attention.head_dim = 33;
    EXPECT_NE(complaint(config, 1).find("head_dim"), std::string::npos);
}

TEST(RunConfigTest, RejectsSequencesLongerThanTheModels) {
    RunConfig config = valid_config();
    config.trainer.seq_len = config.model.max_seq_len + 1;
    EXPECT_NE(complaint(config, 1).find("trainer.seq_len"), std::string::npos);
}

TEST(RunConfigTest, RejectsWhatTheFirstStepWouldReject) {
    RunConfig config = valid_config();
    config.schedule.peak_lr = -1.0;
    EXPECT_NE(complaint(config, 1).find("schedule.peak_lr"), std::string::npos);
    config = valid_config();
    config.optimizer.beta1 = 1.0;
    EXPECT_NE(complaint(config, 1).find("optimizer.beta1"), std::string::npos);
    config = valid_config();
    config.parallel.timeout_seconds = 0.0;
    EXPECT_NE(complaint(config, 1).find("parallel.timeout_seconds"), std::string::npos);
    config.parallel.timeout_seconds = 1.0;
    config.parallel.zero_stage = 2;
    EXPECT_NE(complaint(config, 1).find("parallel.zero_stage: got 2, want 0 or 1"),
              std::string::npos);
}

TEST(RunConfigTest, RejectsTokensThatSequenceParallelRanksCannotShare) {
    RunConfig config = valid_config();
    config.parallel.tensor_parallel = 2;
    config.parallel.sequence_parallel = true;
    config.trainer.seq_len = 255;
    config.trainer.micro_batch_size = 2;
    EXPECT_EQ(complaint(config, 2), "");
    config.trainer.micro_batch_size = 1;
    EXPECT_NE(complaint(config, 2).find("parallel.sequence_parallel: got trainer.micro_batch_size "
                                        "x trainer.seq_len = 255 tokens, want a multiple of "
                                        "parallel.tensor_parallel (2)"),
              std::string::npos);
    config.parallel.sequence_parallel = false;
    EXPECT_EQ(complaint(config, 2), "");
}

TEST(RunConfigTest, RejectsSizesWhoseProductsOverflow) {
    RunConfig config = valid_config();
    config.parallel.tensor_parallel = 7;
    config.parallel.data_parallel = 7905747460161236407;  // times 7 is 1, modulo 2^64
    EXPECT_NE(complaint(config, 1).find("parallel.data_parallel"), std::string::npos);
    config = valid_config();
    config.trainer.micro_batch_size = std::int64_t{1} << 62;  // times 4 is 0
    EXPECT_NE(complaint(config, 4).find("trainer.micro_batch_size"), std::string::npos);
    config = valid_config();
    config.trainer.batch_size = std::numeric_limits<std::int64_t>::max() - 15;
    EXPECT_NE(complaint(config, 1).find("trainer.batch_size"), std::string::npos);
}

TEST(RunConfigTest, RejectsAttentionThatSeesTheAnswer) {
    RunConfig config = valid_config();
    config.model.attention.causal = false;
    EXPECT_NE(complaint(config, 1).find("model.attention.causal"), std::string::npos);
}

TEST(RunConfigTest, RejectsAMissingTextPath) {
    EXPECT_NE(complaint(RunConfig(), 1).find("data.path"), std::string::npos);
    RunConfig config = valid_config();
    config.model.vocab_size = 64;
    EXPECT_NE(complaint(config, 1).find("data.path: got a text, whose bytes are tokens 0 to 255, "
                                        "for model.vocab_size 64; want a file of the model's "
                                        "tokens"),
              std::string::npos)
        << complaint(config, 1);
    config.data.path = "";
    EXPECT_NE(complaint(config, 1).find("data.path: got \"\", want a file of the model's tokens"),
              std::string::npos)
        << complaint(config, 1);
}

}  // namespace
}  // namespace evenkeel
