// What tests of models over several ranks share: layouts of the ranks, whole tensors from parts, a directory.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "model/language_model.h"
#include "tests/support/compare.h"
#include "tests/support/ranks.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel::testing {

struct GridShape {
    std::int64_t tensor, data;
};

// The ways to lay out this world: all tensor parallel, all data parallel, and two by two.
inline std::vector<GridShape> grid_shapes() {
    const std::int64_t size = world().size();
    std::vector<GridShape> shapes = {{size, 1}};
    if (size == 2) shapes.push_back({1, 2});
    if (size == 4) shapes.push_back({2, 2});
    return shapes;
}

inline ProcessGrid make_grid(const GridShape& shape) {
    return ProcessGrid(world(), {.tensor_parallel = shape.tensor, .data_parallel = shape.data});
}

inline std::string name_of(const ProcessGrid& grid) {
    return concat("tensor parallel ", grid.tp_size(), " x data parallel ", grid.dp_size());
}

// The global tensor of which `local` is this rank's part. Collective.
inline Tensor gather(const ProcessGrid& grid, const Parameter& parameter, const Tensor& local) {
    const Tensor global = Tensor::zeros(parameter.global_shape, DType::kFloat32);
    const Sharding& sharding = parameter.sharding;
    if (sharding.is_owner()) {
        const bool whole = sharding.kind == Sharding::Kind::kReplicated;
        (whole ? global : global.slice(sharding.dim, sharding.begin, sharding.end))
            .copy_from(local);
    }
    grid.tensor().all_reduce(global, ReduceOp::kSum);
    return global;
}

// |got - want| / |want|; 0 of two zeros.
inline double distance(const Tensor& got, const Tensor& want) {
    const auto a = to_doubles(got), b = to_doubles(want);
    double difference = 0.0, size = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return difference == 0.0 ? 0.0 : std::sqrt(difference / size);
}

// Whether all ranks of a group hold the same bits.
inline bool agrees(Communicator& group, const Tensor& tensor) {
    const Tensor first = tensor.clone();
    group.broadcast(first, 0);
    return static_cast<bool>(same_bits(tensor, first));
}

inline void expect_equal_replicas(const ProcessGrid& grid,
                                  LanguageModel& model,
                                  const ModelConfig& config) {
    for (const Parameter* parameter : model.parameters()) {
        for (const Tensor& tensor :
             {parameter->value, parameter->master, parameter->exp_avg, parameter->exp_avg_sq}) {
            EXPECT_TRUE(agrees(grid.data(), tensor)) << parameter->name;
            if (parameter->sharding.kind == Sharding::Kind::kReplicated) {
                EXPECT_TRUE(agrees(grid.tensor(), tensor)) << parameter->name;
            } else if (parameter->sharding.kind == Sharding::Kind::kReplicatedInGroup) {
                EXPECT_TRUE(agrees(grid.kv_replicas(config.attention.num_kv_heads), tensor))
                    << parameter->name;
            }
        }
    }
}

// A directory that all ranks see, kept by rank 0.
class SharedDirectory {
  public:
    SharedDirectory() {
        if (world().rank() == 0) mine_ = std::make_unique<TemporaryDirectory>();
        const Tensor letters = Tensor::zeros({256}, DType::kFloat32);
        if (world().rank() == 0) {
            const std::string path = mine_->path();
            for (std::size_t i = 0; i < path.size(); ++i) letters.data<float>()[i] = path[i];
        }
        world().broadcast(letters, 0);
        for (int i = 0; letters.data<float>()[i] != 0.0f; ++i) {
            path_ += static_cast<char>(letters.data<float>()[i]);
        }
    }
    ~SharedDirectory() { world().barrier(); }
    std::string path(const std::string& name = "") const { return path_ + "/" + name; }

  private:
    std::unique_ptr<TemporaryDirectory> mine_;
    std::string path_;
};

}  // namespace evenkeel::testing
