#include "framework/training/trainer.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "tests/framework/training/trainer_runs.h"

namespace evenkeel {
namespace {

using testing::BigramTable;
using testing::TrainerTest;

TEST_F(TrainerTest, LowersTheLoss) {
    BigramTable model;
    const TrainResult result = run(model, "run");
    ASSERT_EQ(result.losses.size(), 20u);
    EXPECT_NEAR(result.losses.front(), std::log(256.0), 0.05);
    EXPECT_LT(result.losses.back(), 0.7 * result.losses.front());
    EXPECT_LT(result.validation_loss, 0.7 * result.losses.front());
    EXPECT_EQ(result.skipped, 0);
    EXPECT_EQ(result.checkpoint, files_.file("run") + "/checkpoints/step_00000020");
}

TEST_F(TrainerTest, NamesTheNumbersOfABatchSizeThatDoesNotDivide) {
    BigramTable model(0, 3);
    const Error error = failure(model, "run");
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_STREQ(error.what(),
                 "[TrainerConfig] trainer.batch_size: got 8, want a multiple of 24 "
                 "(trainer.micro_batch_size 8 x 3 data-parallel ranks)");
    BigramTable of_two(0, 2);
    EXPECT_STREQ(failure(of_two, "run").what(),
                 "[TrainerConfig] trainer.batch_size: got 8, want a multiple of 16 "
                 "(trainer.micro_batch_size 8 x 2 data-parallel ranks), or "
                 "trainer.micro_batch_size=4");
}

TEST_F(TrainerTest, AccumulatesMicroBatchesToTheSameGradient) {
    BigramTable whole, parts;
    const TrainResult want = run(whole, "whole");
    config_.micro_batch_size = 2;
    const TrainResult got = run(parts, "parts");
    EXPECT_EQ(parts.seen.size(), 4 * whole.seen.size());
    for (std::size_t i = 0; i < want.losses.size(); ++i) {
        EXPECT_NEAR(got.losses[i], want.losses[i], 1e-5 * want.losses[i]) << "step " << i;
    }
    EXPECT_TRUE(testing::near(parts.table().value, whole.table().value, 1e-4, 1e-4));
}

TEST_F(TrainerTest, GivesDataParallelRanksTheirPartOfTheGlobalBatch) {
    config_.steps = 3;
    BigramTable one;
    run(one, "one");
    config_.micro_batch_size = 2;
    for (int rank = 0; rank < 2; ++rank) {
        BigramTable part(rank, 2);
        run(part, concat("part", rank));
        ASSERT_EQ(part.seen.size(), 6u);
        for (int i = 0; i < 6; ++i) {
            const std::int64_t begin = rank * 4 + i % 2 * 2;
            EXPECT_TRUE(
                testing::same_bits(part.seen[i], one.seen[i / 2].slice(0, begin, begin + 2)))
                << "rank " << rank << ", micro-batch " << i;
        }
    }
}

TEST_F(TrainerTest, WritesTheSameCheckpointTwice) {
    BigramTable a, b;
    const TrainResult first = run(a, "a"), second = run(b, "b");
    EXPECT_EQ(first.losses, second.losses);
    EXPECT_TRUE(testing::same_files(second.checkpoint, first.checkpoint));
}

TEST_F(TrainerTest, ResumesBitForBit) {
    BigramTable straight, first_half, second_half;
    config_.checkpoint_interval = 4;
    const TrainResult want = run(straight, "straight");
    config_.stop_at_step = 10;
    run(first_half, "halves");
    config_.stop_at_step = 0;
    config_.resume = true;
    const TrainResult got = run(second_half, "halves");
    EXPECT_EQ(got.steps, 10);
    EXPECT_TRUE(std::equal(got.losses.begin(), got.losses.end(), want.losses.begin() + 10));
    EXPECT_TRUE(testing::same_files(got.checkpoint, want.checkpoint));
    const auto records = read_metrics(files_.file("halves") + "/metrics.jsonl");
    ASSERT_EQ(records.size(), 20u);
    for (std::size_t i = 0; i < 20; ++i) {
        EXPECT_EQ(records[i].step, static_cast<std::int64_t>(i + 1));
        EXPECT_EQ(records[i].scalars[0].second, want.losses[i]) << "step " << i + 1;
    }
}

TEST_F(TrainerTest, ResumesFromNothingAsANewRun) {
    BigramTable model;
    config_.resume = true;
    EXPECT_EQ(run(model, "run").steps, 20);
    EXPECT_EQ(run(model, "run").steps, 0);  // already at the end
}

TEST_F(TrainerTest, RefusesARunDirectoryWithCheckpoints) {
    BigramTable model;
    run(model, "run");
    const Error error = failure(model, "run");
    EXPECT_EQ(error.code(), ErrorCode::kConfig);
    EXPECT_NE(std::string(error.what()).find("trainer.resume"), std::string::npos) << error.what();
}

TEST_F(TrainerTest, RefusesToResumeAnotherRun) {
    BigramTable model;
    run(model, "run");
    config_.resume = true;
    const auto expect = [&](BigramTable& other, const std::string& words) {
        const Error error = failure(other, "run");
        EXPECT_EQ(error.code(), ErrorCode::kConfig);
        EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    };
    BigramTable smaller;
    smaller.size = 128;
    expect(smaller, "another model: size: got 256, want 128");
    config_.seed = 2;
    expect(model, "trainer.seed: got 2, want 1");
    config_.seed = 1;
    config_.seq_len = 8;
    expect(model, "trainer.seq_len: got 8, want 16");
    config_.seq_len = 16;
    const auto sizes = [&] {
        return std::pair{std::filesystem::file_size(files_.file("text")), data().train_tokens()};
    };
    const auto before = sizes();
    testing::write_text(files_.file("text"), 20000, 2);
    expect(model, "was trained on other data: text.");
    expect(model, "text.hash: got ");
    testing::write_text(files_.file("text"), 24000);
    const auto now = sizes();
    expect(model, concat("text.bytes: got ", now.first, ", want ", before.first));
    expect(model, concat("bytes to train on: got ", now.second, ", want ", before.second));
    const std::string said = failure(model, "run").what();
    for (const char* key : {"data.path", "data.validation_path", "data.validation_fraction",
                            "data.weights", "data.packing", "data.end_of_document"}) {
        EXPECT_NE(said.find(key), std::string::npos) << said;
    }
    // A checkpoint of before says only that it was another one.
    const std::string file = files_.file("run") + "/checkpoints/step_00000020/trainer.json";
    auto state = nlohmann::ordered_json::parse(read_file(file));
    ASSERT_EQ(state.erase("data"), 1u);
    state.erase("checkpoint_format");  // of before there were manifests
    std::ofstream(file) << state.dump(2) << "\n";
    std::filesystem::remove(files_.file("run") + "/checkpoints/step_00000020/manifest.json");
    expect(model, "other data: got fingerprint ");
}

TEST_F(TrainerTest, RefusesARunStateWithImpossibleCounts) {
    BigramTable model;
    const std::string checkpoint = run(model, "run").checkpoint;
    const std::string file = checkpoint + "/trainer.json";
    const std::string good = read_file(file);
    config_.resume = true;
    for (const char* wrong : {"\"step\": -20", "\"step\": 9223372036854775807"}) {
        std::string text = good;
        const std::string step = "\"step\": 20";
        text.replace(text.find(step), step.size(), wrong);
        write_file_atomically(file, text);
        write_manifest(checkpoint, {});
        const Error error = failure(model, "run");
        EXPECT_EQ(error.code(), ErrorCode::kIo);
        EXPECT_NE(std::string(error.what()).find(files_.file("run")), std::string::npos)
            << error.what();
    }
}

TEST_F(TrainerTest, SaysWhyItCannotMakeTheRunDirectory) {
    BigramTable model;
    config_.resume = true;
    const std::string name = "text/run";  // below a file
    EXPECT_NE(std::string(failure(model, name).what()).find("Not a directory"), std::string::npos);
    const Error error = failure(model, "/../../../../../../../../proc/no/run");
    EXPECT_EQ(error.code(), ErrorCode::kIo);
    EXPECT_NE(std::string(error.what()).find("trainer.run_dir"), std::string::npos) << error.what();
}

TEST_F(TrainerTest, SkipsStepsWithNonFiniteGradients) {
    BigramTable model;
    config_.steps = 3;
    config_.non_finite = TrainerConfig::NonFinite::kSkip;
    Tensor before, after;
    model.spoil = [&](int call) {
        (call == 2 ? before : after) = model.table().value.clone();
        return call == 2;
    };
    const TrainResult result = run(model, "run");
    EXPECT_EQ(result.skipped, 1);
    EXPECT_EQ(model.located, 1);
    EXPECT_TRUE(testing::same_bits(after, before)) << "the skipped step changed the weights";
    EXPECT_FALSE(testing::same_bits(model.seen[2], model.seen[1])) << "the sampler did not move on";
    const auto records = read_metrics(files_.file("run") + "/metrics.jsonl");
    ASSERT_EQ(records.size(), 3u);
    EXPECT_EQ(records[1].scalars.back(), std::make_pair(std::string("skipped"), 1.0));
    EXPECT_TRUE(std::isnan(records[1].scalars[2].second)) << records[1].scalars[2].first;
}

TEST_F(TrainerTest, EndsBeforeTheUpdateOnANonFiniteGradient) {
    BigramTable model;
    config_.checkpoint_interval = 2;
    Tensor before;
    model.spoil = [&](int call) {
        before = model.table().value.clone();
        return call == 6;
    };
    const Error error = failure(model, "run");
    EXPECT_EQ(error.code(), ErrorCode::kNonFinite);
    EXPECT_EQ(error.exit_status(), 1);
    EXPECT_NE(std::string(error.what()).find("step 6"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("table (gradient)"), std::string::npos)
        << error.what();
    EXPECT_TRUE(testing::same_bits(model.table().value, before));
    EXPECT_EQ(CheckpointStore(files_.file("run") + "/checkpoints", 0).steps(),
              (std::vector<std::int64_t>{2, 4}));
}

TEST_F(TrainerTest, ClipsToTheGlobalNorm) {
    config_.steps = 1;
    BigramTable free, clipped;
    config_.clip_norm = 0.0;
    run(free, "free");
    const double norm = free.gradient_norm();
    config_.clip_norm = norm / 4.0;
    run(clipped, "clipped");
    // The first moment after one step is (1 - beta1) times what the optimizer was given.
    std::vector<double> want = testing::to_doubles(free.table().exp_avg);
    for (double& value : want) value /= 4.0;
    EXPECT_TRUE(testing::near(clipped.table().exp_avg, want, 1e-5, 1e-12));
}

TEST_F(TrainerTest, EvaluatesOnSequencesSpreadEvenly) {
    BigramTable model;
    const ByteDataset text = data();
    const std::int64_t total = text.validation_sequences();
    ASSERT_GT(total, 12);
    evaluate(model, text, 5, 2);
    ASSERT_EQ(model.evaluated.size(), 3u);  // 2 + 2 + 1
    for (std::int64_t i = 0; i < 5; ++i) {
        const Tensor want = text.validation_batch({i * total / 5}).tokens;
        EXPECT_TRUE(testing::same_bits(model.evaluated[i / 2].slice(0, i % 2, i % 2 + 1), want));
    }
}

TEST_F(TrainerTest, EvaluatesTheSameAtAnyMicroBatchAndDataParallelSize) {
    BigramTable model;
    const ByteDataset text = data();
    const double want = evaluate(model, text, 7, 7);
    EXPECT_NEAR(evaluate(model, text, 7, 3), want, 1e-12);
    // The toy hears of no other rank: it takes the mean over its own sequences, 3 and 4 of them.
    double sum = 0.0;
    for (int rank = 0; rank < 2; ++rank) {
        BigramTable part(rank, 2);
        sum += evaluate(part, text, 7, 2) * (3.0 + rank) / 7.0;
    }
    EXPECT_NEAR(sum, want, 1e-12);
}

TEST_F(TrainerTest, RecordsEveryNumberOfARun) {
    BigramTable model;
    config_.steps = 6;
    config_.log_interval = 2;
    config_.eval_interval = 3;
    const TrainResult result = run(model, "run");
    EXPECT_EQ(read_file(files_.file("run") + "/config.json"), "{}\n");
    const auto records = read_metrics(files_.file("run") + "/metrics.jsonl");
    std::vector<std::int64_t> steps;
    for (const auto& record : records) steps.push_back(record.step);
    EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 3, 4, 6}));
    std::vector<std::string> names;
    for (const auto& scalar : records.back().scalars) names.push_back(scalar.first);
    EXPECT_EQ(names, (std::vector<std::string>{
                         "loss", "lr", "grad_norm", "tokens_per_second", "tflops_per_rank",
                         "validation_loss", "max_logit_max", "entropy_mean", "grad_norm_deviations",
                         "grad_norm_deviations_lasting", "loss_spike_score",
                         "grad_norm_spike_score", "skipped"}));
    // On its one rank the model takes 256 operations a token.
    EXPECT_DOUBLE_EQ(records.back().scalars[4].second, 256e-12 * records.back().scalars[3].second);
    EXPECT_EQ(records.back().scalars[5].second, result.validation_loss);
    EXPECT_EQ(records.back().scalars[6].second, 2.5);  // the largest head
    EXPECT_EQ(records.back().scalars[7].second, 1.0);  // the mean head
    ASSERT_EQ(records.back().tables.size(), 2u);
    EXPECT_EQ(records.back().tables[0].values, (std::vector<float>{1.5f, 2.5f}));
}

TEST_F(TrainerTest, AsksForHeadTablesInTheirOwnInterval) {
    BigramTable model;
    config_.steps = 7;
    config_.log_interval = 2;
    config_.telemetry_interval = 3;
    run(model, "run");
    std::string story;
    for (const auto& record : read_metrics(files_.file("run") + "/metrics.jsonl")) {
        story += concat(record.step, record.tables.empty() ? " " : "t ");
    }
    EXPECT_EQ(story, "2 3t 4 6t 7t ");
    EXPECT_EQ(model.tables_asked, 3);
}

TEST_F(TrainerTest, CountsAsExposedOnlyWhatAStepWaited) {
    BigramTable model;
    model.wait_of_pass = 0.25;
    config_.steps = 3;
    config_.micro_batch_size = 4;
    config_.eval_interval = 1;
    run(model, "run");
    const auto records = read_metrics(files_.file("run") + "/metrics.jsonl");
    ASSERT_EQ(records.size(), 3u);
    for (const auto& record : records) {
        double rate = 0.0, exposed = 0.0;
        for (const auto& [name, value] : record.scalars) {
            if (name == "tokens_per_second") rate = value;
            if (name == "exposed_communication") exposed = value;
        }
        const double seconds = static_cast<double>(config_.batch_size * config_.seq_len) / rate;
        EXPECT_NEAR(exposed * seconds, 2 * model.wait_of_pass, 1e-6) << "step " << record.step;
    }
}

TEST_F(TrainerTest, LeavesFilesToTheMainRank) {
    BigramTable model(0, 1, false);
    config_.steps = 2;
    run(model, "run");
    EXPECT_FALSE(std::filesystem::exists(files_.file("run") + "/metrics.jsonl"));
    EXPECT_FALSE(std::filesystem::exists(files_.file("run") + "/config.json"));
}

}  // namespace
}  // namespace evenkeel
