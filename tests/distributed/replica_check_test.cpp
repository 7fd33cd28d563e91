// Copies that several ranks hold: equal after training, and one flipped bit of one of them is named.
#include "parallel/replica_check.h"

#include <gtest/gtest.h>

#include "tests/support/devices.h"
#include "tests/support/sharded_models.h"
#include "tests/support/training.h"

namespace evenkeel {
namespace {

using testing::GridShape;
using testing::world;

// One KV head on two ranks where there are four.
ModelConfig model_of(const ProcessGrid& grid) {
    ModelConfig config =
        grid.device() == Device::kCpu ? testing::tiny_model() : testing::small_gpu_model();
    if (grid.device() == Device::kCpu) config.type = ComputeType::kBf16;  // masters of their own
    return config;
}

class ReplicaCheckTest : public ::testing::TestWithParam<Device> {
  protected:
    ProcessGrid grid(const GridShape& shape) const {
        ParallelConfig config;
        config.tensor_parallel = shape.tensor;
        config.data_parallel = shape.data;
        config.communication = Communication::kStaged;
        return ProcessGrid(world(), config, GetParam());
    }
};
INSTANTIATE_TEST_SUITE_P(,
                         ReplicaCheckTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

void flip(const Tensor& tensor) {
    const Tensor host = tensor.to(Device::kCpu).clone();
    const std::size_t last = host.bytes() - size_of(host.dtype());
    host.raw()[last] ^= std::byte{1};  // the lowest bit of the last element's lowest byte
    tensor.copy_from(host);
}

Parameter& find(LanguageModel& model, Sharding::Kind kind) {
    for (Parameter* parameter : model.parameters()) {
        if (parameter->sharding.kind == kind && parameter->trained) return *parameter;
    }
    throw Error(ErrorCode::kInternal, "the model has no such parameter");
}

// Flips a bit of one tensor on one rank, expects it to be named on all, and takes it back.
void expect_named(LanguageModel& model,
                  const Parameter& parameter,
                  const Tensor& tensor,
                  const std::string& want) {
    const bool bad = world().rank() == world().size() - 1;
    if (bad) flip(tensor);
    const std::string found = model.replica_drift();
    EXPECT_EQ(found.rfind(parameter.name + ": " + want, 0), 0u)
        << "got \"" << found << "\", want " << parameter.name << ": " << want;
    EXPECT_NE(found.find(std::to_string(world().size() - 1)), std::string::npos) << found;
    if (bad) flip(tensor);
    EXPECT_EQ(model.replica_drift(), "");
}

TEST_P(ReplicaCheckTest, CopiesAreEqualAfterTrainingAndAFlippedBitOfAnyIsNamed) {
    for (const GridShape& shape : testing::grid_shapes()) {
        const ProcessGrid ranks = grid(shape);
        LanguageModel model(ranks, model_of(ranks), 1);
        if (GetParam() == Device::kCpu) testing::train_steps(model, 0, 2);
        EXPECT_EQ(model.replica_drift(), "") << testing::name_of(ranks);
        if (ranks.tp_size() > 1) {
            Parameter& whole = find(model, Sharding::Kind::kReplicated);
            const std::string between = " between tensor-parallel ranks: ";
            expect_named(model, whole, whole.value, "value differs" + between);
            if (GetParam() == Device::kCuda) continue;
            expect_named(model, whole, whole.exp_avg, "first moments differ" + between);
            expect_named(model, whole, whole.exp_avg_sq, "second moments differ" + between);
        }
        if (ranks.tp_size() > model.config().attention.num_kv_heads) {
            Parameter& head = find(model, Sharding::Kind::kReplicatedInGroup);
            expect_named(model, head, head.value, "value differs between the ranks of a KV head: ");
        }
        if (ranks.dp_size() > 1) {
            Parameter& part = find(model, ranks.tp_size() > 1 ? Sharding::Kind::kSharded
                                                              : Sharding::Kind::kReplicated);
            const std::string between = " between data-parallel ranks: ";
            expect_named(model, part, part.value, "value differs" + between);
            expect_named(model, part, part.exp_avg, "first moments differ" + between);
        }
    }
}

TEST_P(ReplicaCheckTest, MasterWeightsAreComparedWhereTheyAreNotTheValues) {
    const ProcessGrid ranks = grid({1, world().size()});
    LanguageModel model(ranks, model_of(ranks), 1);
    for (Parameter* parameter : model.parameters()) {
        if (parameter->master.raw() == parameter->value.raw()) continue;
        expect_named(model, *parameter, parameter->master,
                     "master weights differ between data-parallel ranks: ");
        return;
    }
    FAIL() << "no parameter has master weights of its own";
}

// The parts of one rank's copy, which lie on its data-parallel ranks, against those of another's.
TEST_P(ReplicaCheckTest, StateThatDataParallelRanksCutIsComparedOverTensorParallelOnes) {
    if (world().size() < 4) GTEST_SKIP() << "wants two ranks along either axis";
    if (GetParam() == Device::kCuda) GTEST_SKIP() << "the same arithmetic as on the CPU";
    ParallelConfig config;
    config.tensor_parallel = 2;
    config.zero_stage = 1;
    const ProcessGrid ranks(world(), config, GetParam());
    LanguageModel model(ranks, model_of(ranks), 1);
    testing::train_steps(model, 0, 2);
    EXPECT_EQ(model.replica_drift(), "");
    const Parameter& whole = find(model, Sharding::Kind::kReplicated);
    ASSERT_TRUE(whole.is_cut());
    // On the rank of the last column that has elements of it.
    const bool bad =
        ranks.tp_rank() == 1 && whole.held().size() > 0 && whole.held().end == whole.value.numel();
    if (bad) flip(whole.exp_avg);
    const std::string found = model.replica_drift();
    EXPECT_EQ(found.rfind(whole.name + ": first moments differ between tensor-parallel ranks: ", 0),
              0u)
        << found;
}

TEST_P(ReplicaCheckTest, TheFewAreNamedBeforeTheMany) {
    if (world().size() < 3) GTEST_SKIP() << "two ranks are no majority";
    const ProcessGrid ranks = grid({1, world().size()});
    LanguageModel model(ranks, model_of(ranks), 1);
    const Parameter& first = *model.parameters().front();
    if (world().rank() == 2) flip(first.value);
    EXPECT_EQ(
        model.replica_drift(),
        first.name + ": value differs between data-parallel ranks: rank 2 against ranks 0, 1, 3");
}

}  // namespace
}  // namespace evenkeel
