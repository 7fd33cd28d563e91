#include "model/telemetry/finite_probe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

using testing::find;
using testing::random_batch;
using testing::SoloGrid;
using testing::tiny_model;

class LocateNonFiniteTest : public ::testing::Test {
  protected:
    std::string place() { return model_.locate_non_finite({random_batch(2, 8, 32, 1)}); }
    float* weights(const std::string& name) { return find(model_, name).value.data<float>(); }

    SoloGrid solo_;
    LanguageModel model_{solo_.grid, tiny_model(), 1};
};

class AllFiniteTest : public ::testing::TestWithParam<Device> {};
INSTANTIATE_TEST_SUITE_P(,
                         AllFiniteTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

TEST_P(AllFiniteTest, TellsFiniteFromNot) {
    for (DType type : {DType::kFloat32, DType::kBFloat16}) {
        for (float bad : {NAN, INFINITY, -INFINITY}) {
            const Tensor tensor = testing::on(GetParam(), Tensor::full({3, 5}, 3e38f, type));
            EXPECT_TRUE(all_finite(tensor));
            tensor.slice(0, 2, 3).slice(1, 4, 5).fill(bad);
            EXPECT_FALSE(all_finite(tensor));
            EXPECT_TRUE(all_finite(tensor.slice(1, 0, 4)));
            EXPECT_TRUE(all_finite(tensor.slice(0, 0, 0)));
        }
    }
}

// Whole and partial chunks, also where none begins at a multiple of 16 bytes.
TEST_P(AllFiniteTest, FindsABadElementAnywhere) {
    for (DType type : {DType::kFloat32, DType::kBFloat16}) {
        const Tensor whole = testing::on(GetParam(), Tensor::full({39}, 1.0f, type));
        for (std::int64_t begin : {0, 1}) {
            const Tensor tensor = whole.slice(0, begin, 38);
            EXPECT_TRUE(all_finite(tensor)) << begin;
            for (std::int64_t at : {0, 1, 7, 8, 30, 36}) {
                const Tensor element = tensor.slice(0, at, at + 1);
                element.fill(-INFINITY);
                EXPECT_FALSE(all_finite(tensor)) << begin << ", " << at;
                element.fill(1.0f);
            }
        }
        whole.slice(0, 38, 39).fill(NAN);
        EXPECT_TRUE(all_finite(whole.slice(0, 0, 38))) << "what follows does not belong to it";
    }
}

TEST(FiniteProbeTest, NamesTheFirst) {
    const SoloGrid solo;
    FiniteProbe probe;
    EXPECT_EQ(probe.first(solo.grid), "");
    probe.check("a", Tensor::zeros({2}, DType::kFloat32));
    EXPECT_EQ(probe.first(solo.grid), "");
    probe.check("b", Tensor::full({2}, NAN, DType::kFloat32));
    probe.check("c", Tensor::full({2}, NAN, DType::kFloat32));
    EXPECT_EQ(probe.first(solo.grid), "b");
}

TEST_F(LocateNonFiniteTest, FindsNothingInASoundModel) { EXPECT_EQ(place(), ""); }

TEST_F(LocateNonFiniteTest, NamesTheWeight) {
    weights("layers.1.attention.wk")[7] = NAN;
    EXPECT_EQ(place(), "layers.1.attention.wk (weight)");
    weights("layers.0.feed_forward.w_down")[0] = INFINITY;
    EXPECT_EQ(place(), "layers.0.feed_forward.w_down (weight)");
}

TEST_F(LocateNonFiniteTest, NamesTheProductThatOverflows) {
    Parameter& up = find(model_, "layers.1.feed_forward.w_up");
    up.value.fill(3e38f);
    EXPECT_EQ(place(), "layers.1.feed_forward.inner (forward)");
}

TEST_F(LocateNonFiniteTest, NamesTheProjectionThatOverflows) {
    find(model_, "layers.0.attention.wv").value.fill(3e38f);
    EXPECT_EQ(place(), "layers.0.attention.qkv (forward)");
}

TEST_F(LocateNonFiniteTest, NamesTheGradientThatOverflows) {
    // A small residual stream and a large final gain make the gradient that enters the block large; the
    // huge hidden layer meets it only in the gradient of w_down, which is zero and hides it from the
    // forward pass.
    init_normal(find(model_, "embedding"), 1e-3, 1);
    for (const char* layer : {"layers.0.", "layers.1."}) {
        find(model_, layer + std::string("attention.wo")).value.zero();
        find(model_, layer + std::string("feed_forward.w_down")).value.zero();
    }
    find(model_, "layers.1.feed_forward.w_gate").value.fill(1e18f);
    find(model_, "layers.1.feed_forward.w_up").value.fill(1e18f);
    find(model_, "final_norm").value.fill(1000.0f);
    EXPECT_EQ(place(), "layers.1.feed_forward.w_down (gradient)");
}

TEST_F(LocateNonFiniteTest, LooksThroughAllMicroBatchesAndLeavesGradientsZero) {
    // Only token 31 has a first channel, and only that channel meets the huge weights.
    // The zero output projection keeps them out of the backward pass.
    find(model_, "layers.0.attention.wo").value.zero();
    float* embedding = weights("embedding");
    float* wv = weights("layers.0.attention.wv");
    for (int token = 0; token < 32; ++token) embedding[token * 32] = token == 31 ? 1.0f : 0.0f;
    for (int row = 0; row < 64; ++row) wv[row * 32] = 3e38f;
    Batch without = random_batch(1, 8, 31, 1), with = random_batch(1, 8, 31, 2);
    with.tokens.data<std::int32_t>()[3] = 31;
    EXPECT_EQ(model_.locate_non_finite({without}), "");
    EXPECT_EQ(model_.locate_non_finite({without, with}), "layers.0.attention.qkv (forward)");
    for (const Parameter* parameter : model_.parameters()) {
        for (double g : testing::to_doubles(parameter->grad)) ASSERT_EQ(g, 0.0) << parameter->name;
    }
}

TEST_F(LocateNonFiniteTest, FallsBackOnTheSummedGradient) {
    find(model_, "layers.1.attention.wv").grad.data<float>()[3] = INFINITY;
    EXPECT_EQ(place(), "layers.1.attention.wv (gradient, not seen when run again)");
}

}  // namespace
}  // namespace evenkeel
