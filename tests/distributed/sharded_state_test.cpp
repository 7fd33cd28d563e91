// Checkpoints written at one tensor-parallel size and read at another, bit for bit, replicated KV heads
// included. The sizes are groups of the first 1, 2, 4, 8 ranks of the run.
#include "parallel/sharded_state.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "tests/support/compare.h"
#include "tests/support/parameters.h"
#include "tests/support/ranks.h"

namespace evenkeel {
namespace {

using testing::same_bits;
using testing::world;

// Parameters of every kind of sharding, over a tensor-parallel group. The bf16 values are rounded from
// masters that bf16 can't hold.
struct Model {
    Model(int rank, int size, DType type) {
        ParameterList list;
        const auto add = [&](const char* name, const Shape& shape, const Sharding& sharding) {
            parameters.push_back(testing::make_parameter(name, shape, sharding, type));
        };
        add("layers.0.q.weight", {32, 24}, Sharding::sharded_by_head(0, 8, 4, rank, size));
        add("layers.0.k.weight", {8, 24}, Sharding::sharded_by_head(0, 2, 4, rank, size));
        add("layers.0.o.weight", {24, 32}, Sharding::sharded(1, 32, 4, rank, size));
        add("layers.0.q_gain", {8, 4}, Sharding::sharded_by_head(0, 8, 1, rank, size));
        add("layers.0.k_gain", {2, 4}, Sharding::sharded_by_head(0, 2, 1, rank, size));
        add("layers.0.k_columns", {5, 8}, Sharding::sharded_by_head(1, 2, 4, rank, size));
        add("norm.weight", {24}, Sharding::replicated(rank, size));
        add("scale", {1}, Sharding::replicated(rank, size));
        // What the ranks do not divide, and fewer rows than ranks.
        add("output", {19, 6}, Sharding::sharded_unevenly(0, 19, rank, size));
        add("scarce", {3, 6}, Sharding::sharded_unevenly(0, 3, rank, size));
    }
    ParameterList list() {
        ParameterList pointers;
        for (Parameter& p : parameters) pointers.push_back(&p);
        return pointers;
    }
    static void make_positive(const Tensor& x) {
        for (std::int64_t i = 0; i < x.numel(); ++i) {
            x.data<float>()[i] = std::abs(x.data<float>()[i]);
        }
    }
    // Different numbers in every tensor and every element, the same at every size.
    void fill() {
        for (Parameter& p : parameters) {
            for (Tensor Parameter::*member : {&Parameter::exp_avg, &Parameter::exp_avg_sq}) {
                init_normal(p, 1.0, member == &Parameter::exp_avg ? 2 : 3);
                if (member == &Parameter::exp_avg_sq) make_positive(p.master);
                (p.*member).copy_from(p.master);
            }
            init_normal(p, 1.0, 1);
        }
    }
    std::vector<Parameter> parameters;
};

class ShardedStateTest : public ::testing::TestWithParam<DType> {
  protected:
    void SetUp() override {
        const auto process = static_cast<int>(
            world().all_reduce_scalar(world().rank() == 0 ? getpid() : 0, ReduceOp::kMax));
        directory_ =
            (std::filesystem::temp_directory_path() / concat("evenkeel_sharded_state_", process))
                .string();
        if (world().rank() == 0) std::filesystem::create_directory(directory_);
        world().barrier();
    }
    void TearDown() override {
        world().barrier();
        if (world().rank() == 0) std::filesystem::remove_all(directory_);
    }
    // Removes what another size has written.
    void clear() const {
        if (world().rank() > 0) return;
        for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
            std::filesystem::remove(entry.path());
        }
    }
    // Runs f(grid, model) on a tensor-parallel group of the first `size` ranks.
    template <typename F>
    void on_first_ranks(int size, F&& f) {
        const auto group = world().split(world().rank() < size ? 0 : 1);
        if (world().rank() < size) {
            ParallelConfig config;
            config.tensor_parallel = size;
            const ProcessGrid grid(*group, config);
            Model model(grid.tp_rank(), size, GetParam());
            f(grid, model);
        }
        world().barrier();
    }
    std::vector<int> sizes() const {
        std::vector<int> all;
        for (int size = 1; size <= world().size(); size *= 2) all.push_back(size);
        return all;
    }
    std::string load_error(const ProcessGrid& grid,
                           const ParameterList& list,
                           bool with_optimizer = true) {
        try {
            load_parameters(grid, list, directory_, with_optimizer);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kIo);
            return error.what();
        }
        return "";
    }
    std::string directory_;
};

TEST_P(ShardedStateTest, AnySizeReadsWhatAnySizeWrote) {
    for (int from : sizes()) {
        on_first_ranks(from, [&](const ProcessGrid& grid, Model& model) {
            model.fill();
            clear();
            grid.world().barrier();
            save_parameters(grid, model.list(), directory_, {{"step", "20"}});
        });
        for (int to : sizes()) {
            on_first_ranks(to, [&](const ProcessGrid& grid, Model& model) {
                load_parameters(grid, model.list(), directory_, true);
                Model want(grid.tp_rank(), to, GetParam());
                want.fill();
                for (std::size_t i = 0; i < want.parameters.size(); ++i) {
                    const Parameter& g = model.parameters[i];
                    const Parameter& w = want.parameters[i];
                    const std::string what = concat(w.name, " from ", from, " to ", to, " ranks");
                    EXPECT_TRUE(same_bits(g.master, w.master)) << what;
                    EXPECT_TRUE(same_bits(g.value, w.value)) << what;
                    EXPECT_TRUE(same_bits(g.exp_avg, w.exp_avg)) << what;
                    EXPECT_TRUE(same_bits(g.exp_avg_sq, w.exp_avg_sq)) << what;
                }
            });
        }
    }
}

TEST_P(ShardedStateTest, ANewRunTakesTheMomentsThatThereAre) {
    const auto is_new = [](const Parameter& p) {
        return p.name.find("_gain") != std::string::npos;
    };
    for (int from : sizes()) {
        on_first_ranks(from, [&](const ProcessGrid& grid, Model& model) {
            model.fill();
            for (Parameter& p : model.parameters) p.trained = !is_new(p);
            clear();
            grid.world().barrier();
            save_parameters(grid, model.list(), directory_, {});
        });
        on_first_ranks(sizes().back(), [&](const ProcessGrid& grid, Model& model) {
            for (Parameter& p : model.parameters) p.exp_avg.fill(5.0f);
            EXPECT_TRUE(load_moments(model.list(), directory_));
            Model want(grid.tp_rank(), grid.tp_size(), GetParam());
            want.fill();
            for (std::size_t i = 0; i < want.parameters.size(); ++i) {
                const Parameter &g = model.parameters[i], &w = want.parameters[i];
                const Tensor zeros = Tensor::zeros(w.local_shape(), DType::kFloat32);
                EXPECT_TRUE(same_bits(g.exp_avg, is_new(w) ? zeros : w.exp_avg)) << w.name;
                EXPECT_TRUE(same_bits(g.exp_avg_sq, is_new(w) ? zeros : w.exp_avg_sq)) << w.name;
            }
        });
    }
}

TEST_P(ShardedStateTest, ANewRunGoesWithoutMomentsButNotWithHalfOfThem) {
    const std::string file = directory_ + "/optimizer.safetensors";
    on_first_ranks(1, [&](const ProcessGrid&, Model& model) {
        Parameter& scale = model.parameters.back();
        scale.exp_avg.fill(5.0f);
        EXPECT_FALSE(load_moments(model.list(), directory_));
        EXPECT_EQ(testing::to_doubles(scale.exp_avg)[0], 0.0);
        const auto error_of = [&](const char* name) {
            write_safetensors(file, {{name, scale.exp_avg}});
            try {
                load_moments(model.list(), directory_);
            } catch (const Error& error) {
                return std::string(error.what());
            }
            return std::string();
        };
        EXPECT_NE(error_of("scale.exp_avg").find("lack \"scale.exp_avg_sq\""), std::string::npos);
        EXPECT_NE(error_of("other.exp_avg").find("no \"other.exp_avg\""), std::string::npos);
        std::filesystem::remove(file);
    });
}

TEST_P(ShardedStateTest, EachRankWritesItsOwnAndOneRankWritesOrdinaryFiles) {
    for (int size : sizes()) {
        on_first_ranks(size, [&](const ProcessGrid& grid, Model& model) {
            model.fill();
            clear();
            grid.world().barrier();
            save_parameters(grid, model.list(), directory_, {{"step", "20"}});
            std::int64_t elements = 0;
            for (int rank = 0; rank < size; ++rank) {
                const SafetensorsReader file(directory_ + "/" + shard_name("model", rank, size));
                EXPECT_EQ(file.metadata().at("step"), "20");
                EXPECT_EQ(file.metadata().contains("pieces"), size > 1) << "rank " << rank;
                for (const TensorInfo& info : file.tensors()) elements += num_elements(info.shape);
            }
            std::int64_t want = 0;
            for (const Parameter& p : model.parameters) want += num_elements(p.global_shape);
            EXPECT_EQ(elements, want) << "each element once, " << size << " ranks";
            grid.world().barrier();
        });
    }
}

TEST_P(ShardedStateTest, OneDataParallelReplicaWritesAndAllRead) {
    if (world().size() < 4) GTEST_SKIP() << "needs two replicas of two ranks";
    ParallelConfig config;
    config.tensor_parallel = world().size() / 2;
    const ProcessGrid grid(world(), config);
    Model model(grid.tp_rank(), grid.tp_size(), GetParam());
    model.fill();
    if (grid.dp_rank() == 1) {
        for (const Parameter& p : model.parameters) p.master.fill(77.0f);
    }
    save_parameters(grid, model.list(), directory_, {});
    load_parameters(grid, model.list(), directory_, true);
    Model want(grid.tp_rank(), grid.tp_size(), GetParam());
    want.fill();
    for (std::size_t i = 0; i < want.parameters.size(); ++i) {
        EXPECT_TRUE(same_bits(model.parameters[i].master, want.parameters[i].master))
            << want.parameters[i].name;
    }
}

TEST_P(ShardedStateTest, OptionalParametersMayBeMissingAmongWeightsButNotOnResuming) {
    const int size = world().size();
    on_first_ranks(size, [&](const ProcessGrid& grid, Model& model) {
        model.fill();
        clear();
        grid.world().barrier();
        save_parameters(grid, model.list(), directory_, {});
        Model other(grid.tp_rank(), size, GetParam());
        Parameter& extra = other.parameters[6];
        extra.name = "extra";
        extra.optional = true;
        extra.master.fill(3.0f);
        // Without the parameter that was renamed, the weights are still another model's.
        EXPECT_NE(load_error(grid, other.list(), false).find("the model has no \"norm.weight\""),
                  std::string::npos);
        ParameterList list = model.list();
        list.push_back(&extra);
        EXPECT_NE(load_error(grid, list, true).find("they lack \"extra\""), std::string::npos);
        model.parameters[0].master.fill(5.0f);
        load_parameters(list, *open_state(directory_, "model"));
        EXPECT_EQ(extra.master.data<float>()[0], 3.0f);
        Model want(grid.tp_rank(), size, GetParam());
        want.fill();
        EXPECT_TRUE(same_bits(model.parameters[0].master, want.parameters[0].master));
    });
}

TEST_P(ShardedStateTest, NamesWhatDoesNotFitAndChangesNothing) {
    const int size = world().size();
    on_first_ranks(size, [&](const ProcessGrid& grid, Model& model) {
        model.fill();
        clear();
        grid.world().barrier();
        save_parameters(grid, model.list(), directory_, {});

        Model other(grid.tp_rank(), size, GetParam());
        other.parameters[6].name = "final_norm.weight";
        const std::string renamed = load_error(grid, other.list());
        EXPECT_NE(renamed.find("they lack \"final_norm.weight\""), std::string::npos) << renamed;
        EXPECT_NE(renamed.find("the model has no \"norm.weight\""), std::string::npos) << renamed;
        EXPECT_NE(renamed.find("/model"), std::string::npos) << renamed;

        Model wider(grid.tp_rank(), size, GetParam());
        wider.parameters[6] = testing::make_parameter(
            "norm.weight", {25}, Sharding::replicated(grid.tp_rank(), size), GetParam());
        const std::string shape = load_error(grid, wider.list());
        EXPECT_NE(shape.find("tensor \"norm.weight\": got shape [24], want [25]"),
                  std::string::npos)
            << shape;
        for (const Parameter& p : wider.parameters) {
            EXPECT_TRUE(same_bits(p.master, Tensor::zeros(p.master.shape(), DType::kFloat32)))
                << p.name;
        }

        grid.world().barrier();
        if (grid.world().rank() == 0) {
            std::filesystem::remove(directory_ + "/" + shard_name("optimizer", 0, size));
        }
        grid.world().barrier();
        Model weights_only(grid.tp_rank(), size, GetParam());
        const std::string missing = load_error(grid, weights_only.list());
        EXPECT_NE(missing.find("/optimizer"), std::string::npos) << missing;
        EXPECT_EQ(load_error(grid, weights_only.list(), false), "");
        EXPECT_TRUE(same_bits(weights_only.parameters[0].value, model.parameters[0].value));
    });
}

INSTANTIATE_TEST_SUITE_P(Types,
                         ShardedStateTest,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& test) { return std::string(name_of(test.param)); });

}  // namespace
}  // namespace evenkeel
