// Every method, and what other families of models have, over several ranks against the same on one.
#include <gtest/gtest.h>

#include "model/method.h"
#include "tests/support/sharded_models.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::gather;
using testing::make_grid;
using testing::SoloGrid;
using testing::train_steps;
using testing::TrainingCurve;

struct Variant {
    std::string name;
    ModelConfig config;
};
void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.name; }

// Two KV heads, so that four tensor-parallel ranks replicate them; limits low enough to matter.
std::vector<Variant> variants() {
    ModelConfig start = testing::tiny_model();
    start.attention.num_heads = 8;
    start.attention.num_kv_heads = 2;
    std::vector<Variant> all;
    for (const Method* method : methods()) {
        ModelConfig config = start;
        config.method = method->name;
        apply_method(method->name, config);
        if (config.attention.softcap > 0.0) config.attention.softcap = 2.0;
        if (config.attention.qk_clip_threshold > 0.0) config.attention.qk_clip_threshold = 2.0;
        all.push_back({method->name, config});
    }
    for (const testing::FamilyTraits& family : testing::kFamilyTraits) {
        ModelConfig config = start;
        family.apply(config);
        all.push_back({family.name, config});
    }
    ModelConfig clipped = start;
    clipped.qk_norm_layers = "1";
    clipped.attention.qk_clip_threshold = 2.0;
    clipped.init_std = 0.1;
    all.push_back({"ClippedWeightsAndGains", clipped});
    return all;
}

// Gains that are not all one. nGPT keeps its own: stored in units of 1 / sqrt(C), numbers near 1 would saturate
// the softmax.
void vary_gains(LanguageModel& model) {
    if (model.config().architecture != Architecture::kNgpt) testing::randomize_gains(model);
}

class DistributedMethods : public ::testing::TestWithParam<Variant> {};
INSTANTIATE_TEST_SUITE_P(,
                         DistributedMethods,
                         ::testing::ValuesIn(variants()),
                         [](const auto& info) { return info.param.name; });

TEST_P(DistributedMethods, TrainAsOnOneRank) {
    constexpr int kSteps = 6;
    const ModelConfig config = GetParam().config;
    const SoloGrid solo;
    LanguageModel one(solo.grid, config, 1);
    vary_gains(one);
    const TrainingCurve want = train_steps(one, 0, kSteps);
    EXPECT_LT(want.losses.back(), want.losses.front());
    for (const auto& shape : testing::grid_shapes()) {
        const ProcessGrid grid = make_grid(shape);
        SCOPED_TRACE(testing::name_of(grid));
        LanguageModel many(grid, config, 1);
        vary_gains(many);
        const TrainingCurve got = train_steps(many, 0, kSteps);
        for (int step = 0; step < kSteps; ++step) {
            EXPECT_NEAR(got.losses[step], want.losses[step], 1e-5 * want.losses[step]) << step;
            EXPECT_NEAR(got.norms[step], want.norms[step], 1e-4 * want.norms[step]) << step;
        }
        for (std::size_t i = 0; i < many.parameters().size(); ++i) {
            const Parameter& parameter = *many.parameters()[i];
            EXPECT_LT(testing::distance(gather(grid, parameter, parameter.master),
                                        one.parameters()[i]->master),
                      2e-4)
                << parameter.name;
        }
        testing::expect_equal_replicas(grid, many, config);
    }
}

TEST_P(DistributedMethods, FollowFp32InBf16AndKeepReplicasEqual) {
    ModelConfig config = GetParam().config;
    const SoloGrid solo;
    LanguageModel exact(solo.grid, config, 1);
    config.type = ComputeType::kBf16;
    LanguageModel rounded(solo.grid, config, 1);
    const TrainingCurve want = train_steps(exact, 0, 3), on_one = train_steps(rounded, 0, 3);
    for (const auto& shape : testing::grid_shapes()) {
        const ProcessGrid grid = make_grid(shape);
        SCOPED_TRACE(testing::name_of(grid));
        LanguageModel many(grid, config, 1);
        testing::expect_follows(train_steps(many, 0, 3), want, on_one);
        testing::expect_equal_replicas(grid, many, config);
    }
}

TEST_P(DistributedMethods, DecodeAsOnOneRank) {
    const ModelConfig config = GetParam().config;
    const SoloGrid solo;
    const ProcessGrid grid = make_grid(testing::grid_shapes().front());
    LanguageModel one(solo.grid, config, 1), many(grid, config, 1);
    const auto of_one = one.start_decoding(2, 12), of_many = many.start_decoding(2, 12);
    const Tensor tokens = testing::random_batch(2, 12, config.vocab_size, 5).tokens;
    const Tensor whole = one.local_logits(tokens);  // [B, T, V]
    for (std::int64_t begin = 0, end = 7; begin < 12; begin = end, ++end) {
        const Tensor next = tokens.slice(1, begin, end).contiguous();
        const Tensor want = one.decode(*of_one, next);
        EXPECT_TRUE(testing::near(many.decode(*of_many, next), want, 1e-4, 1e-4)) << end;
        const Tensor forward = whole.slice(1, end - 1, end).contiguous().view(want.shape());
        EXPECT_TRUE(testing::near(want, forward, 1e-4, 1e-4)) << end;
    }
}

TEST_P(DistributedMethods, LoadCheckpointsOfAnotherGrid) {
    const ModelConfig config = GetParam().config;
    const testing::SharedDirectory files;
    const ProcessGrid grid = make_grid(testing::grid_shapes().back());
    LanguageModel saved(grid, config, 1);
    train_steps(saved, 0, 2);
    saved.save_state(files.path());
    saved.barrier();
    const SoloGrid solo;
    LanguageModel one(solo.grid, config, 2);
    one.load_state(files.path());
    const ProcessGrid other_grid = make_grid(testing::grid_shapes().front());
    LanguageModel other(other_grid, config, 3);
    other.load_state(files.path());
    for (std::size_t i = 0; i < saved.parameters().size(); ++i) {
        const Parameter &a = *saved.parameters()[i], &b = *one.parameters()[i],
                        &c = *other.parameters()[i];
        for (Tensor Parameter::*part :
             {&Parameter::master, &Parameter::exp_avg, &Parameter::exp_avg_sq}) {
            const Tensor want = gather(grid, a, a.*part);
            EXPECT_TRUE(testing::same_bits(b.*part, want)) << a.name;
            EXPECT_TRUE(testing::same_bits(gather(other_grid, c, c.*part), want)) << a.name;
        }
    }
    // And go on alike.
    const TrainingCurve want = train_steps(one, 2, 1), got = train_steps(other, 2, 1);
    EXPECT_NEAR(got.losses[0], want.losses[0], 1e-5 * want.losses[0]);
}

}  // namespace
}  // namespace evenkeel
