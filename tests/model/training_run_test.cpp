// The training loop with a real model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "framework/data/byte_dataset.h"
#include "tests/support/compare.h"
#include "tests/support/run_files.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

using testing::SoloGrid;

class TrainingRunTest : public ::testing::Test {
  protected:
    TrainingRunTest() {
        testing::write_text(files_.file("text"), 30000);
        model_ = testing::tiny_model();
        model_.vocab_size = 256;
        model_.init_std = model_.embedding_init_std = 0.05;
        trainer_.steps = 20;
        trainer_.batch_size = 8;
        trainer_.micro_batch_size = 4;
        trainer_.seq_len = 32;
        trainer_.eval_sequences = 8;
        schedule_.warmup_steps = 4;
        schedule_.peak_lr = 5e-3;
    }

    TrainResult run(const std::string& name) {
        const SoloGrid solo;
        const ByteDataset data({files_.file("text"), 0.1}, trainer_.seq_len);
        LanguageModel model(solo.grid, model_, static_cast<std::uint64_t>(trainer_.seed));
        trainer_.run_dir = files_.file(name);
        return train(model, data, trainer_, schedule_, {}, "{}\n");
    }

    testing::TemporaryDirectory files_;
    ModelConfig model_;
    TrainerConfig trainer_;
    ScheduleConfig schedule_;
};

// EVENKEEL_WRITE_GOLDEN=1 writes the file anew.
TEST_F(TrainingRunTest, FollowsTheGoldenLossCurve) {
    const std::string path = std::string(EVENKEEL_GOLDEN_DIR) + "/tiny_loss.txt";
    const std::vector<double> losses = run("golden").losses;
    if (std::getenv("EVENKEEL_WRITE_GOLDEN") != nullptr) {
        std::ofstream file(path);
        file.precision(8);
        for (double loss : losses) file << loss << "\n";
    }
    std::ifstream file(path);
    ASSERT_TRUE(file) << path;
    std::vector<double> want;
    for (double loss = 0.0; file >> loss;) want.push_back(loss);
    ASSERT_EQ(want.size(), losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i) {
        EXPECT_NEAR(losses[i], want[i], 1e-3 * want[i]) << "step " << i + 1;
    }
    EXPECT_LT(losses.back(), 0.7 * losses.front());
}

TEST_F(TrainingRunTest, ResumesBitForBit) {
    for (ComputeType type : {ComputeType::kFp32, ComputeType::kBf16}) {
        model_.type = type;
        const std::string name = type == ComputeType::kFp32 ? "fp32" : "bf16";
        const TrainResult want = run(name);
        trainer_.stop_at_step = 10;
        run(name + "_halves");
        trainer_.stop_at_step = 0;
        trainer_.resume = true;
        const TrainResult got = run(name + "_halves");
        trainer_.resume = false;
        EXPECT_EQ(got.steps, 10);
        EXPECT_TRUE(testing::same_files(got.checkpoint, want.checkpoint)) << name;
        EXPECT_EQ(got.validation_loss, want.validation_loss) << name;
    }
}

TEST_F(TrainingRunTest, TwoRunsAreBitIdentical) {
    model_.type = ComputeType::kBf16;
    const TrainResult first = run("first"), second = run("second");
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_TRUE(testing::same_files(second.checkpoint, first.checkpoint));
}

TEST_F(TrainingRunTest, RecordsHeadMetrics) {
    run("run");
    const auto records = read_metrics(files_.file("run") + "/metrics.jsonl");
    ASSERT_EQ(records.size(), 20u);
    for (const MetricRecord& record : records) {
        for (const char* name : {"max_logit", "entropy", "q_gain_rms", "logit_bound"}) {
            const auto table = std::find_if(record.tables.begin(), record.tables.end(),
                                            [&](const auto& t) { return t.name == name; });
            ASSERT_NE(table, record.tables.end()) << name;
            EXPECT_EQ(table->rows, 2) << name;
            EXPECT_EQ(table->columns, 4) << name;
        }
    }
}

TEST_F(TrainingRunTest, RefusesToResumeAnotherModel) {
    trainer_.steps = 2;
    run("run");
    trainer_.resume = true;
    model_.attention.qk_norm.gain = QkNormConfig::Gain::kSharedChannel;
    try {
        run("run");
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        EXPECT_NE(std::string(error.what()).find("attention.qk_norm.gain"), std::string::npos)
            << error.what();
    }
}

TEST_F(TrainingRunTest, NamesTheLayerOfANonFiniteStep) {
    schedule_.peak_lr = 1e30;  // the first update throws the weights out of range
    schedule_.warmup_steps = 0;
    try {
        run("run");
        FAIL() << "no error";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kNonFinite);
        EXPECT_NE(std::string(error.what()).find("layers.0."), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace evenkeel
