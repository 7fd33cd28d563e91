// A norm that comes in and gains that are held over several ranks, against the same on one.
#include <gtest/gtest.h>

#include "tests/support/sharded_models.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::gather;
using testing::make_grid;
using testing::SoloGrid;
using testing::train_steps;

// Two KV heads, so that four tensor-parallel ranks replicate them; limits low enough to matter.
ModelConfig held_model() {
    ModelConfig config = testing::tiny_model();
    config.attention.num_heads = 8;
    config.attention.num_kv_heads = 2;
    config.attention.qk_norm.anneal_steps = 4;
    config.attention.qk_norm.gain_bound = 6.0;
    config.attention.qk_norm.gain_pull = 0.1;
    return config;
}

TEST(DistributedRetrofitRules, TrainAsOnOneRankAndKeepReplicasEqual) {
    const ModelConfig config = held_model();
    const SoloGrid solo;
    LanguageModel one(solo.grid, config, 1);
    testing::randomize_gains(one);
    const auto want = train_steps(one, 0, 6);
    for (const auto& shape : testing::grid_shapes()) {
        const ProcessGrid grid = make_grid(shape);
        SCOPED_TRACE(testing::name_of(grid));
        LanguageModel many(grid, config, 1);
        testing::randomize_gains(many);
        const auto got = train_steps(many, 0, 6);
        for (int step = 0; step < 6; ++step) {
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

TEST(DistributedRetrofitRules, LoadCheckpointsOfAnotherGrid) {
    const ModelConfig config = held_model();
    const testing::SharedDirectory files;
    const ProcessGrid grid = make_grid(testing::grid_shapes().front());
    LanguageModel saved(grid, config, 1);
    train_steps(saved, 0, 2);
    saved.save_state(files.path());
    saved.barrier();
    const SoloGrid solo;
    LanguageModel one(solo.grid, config, 2);
    one.load_state(files.path());
    EXPECT_EQ(one.scalar_metrics().front().second, 0.5);
    for (std::size_t i = 0; i < saved.parameters().size(); ++i) {
        const Parameter& a = *saved.parameters()[i];
        EXPECT_TRUE(testing::same_bits(one.parameters()[i]->master, gather(grid, a, a.master)))
            << a.name;
    }
    const auto want = train_steps(one, 2, 1), got = train_steps(saved, 2, 1);
    EXPECT_NEAR(got.losses[0], want.losses[0], 1e-5 * want.losses[0]);
}

}  // namespace
}  // namespace evenkeel
