#include "framework/parameter_buckets.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/parameters.h"

namespace evenkeel {
namespace {

using testing::on_cpu;
using testing::pointers_to;
using testing::to_doubles;

class ParameterBucketsTest : public ::testing::TestWithParam<Device> {
  protected:
    Device device() const { return GetParam(); }
};

Parameter matrix(const std::string& name, std::int64_t rows, bool joins = false) {
    Parameter parameter =
        declare_parameter(name, {rows, 4}, Sharding::replicated(0, 1), DType::kBFloat16);
    parameter.joins_previous = joins;
    return parameter;
}

TEST_P(ParameterBucketsTest, GivesZerosInTheDeclaredShapes) {
    Parameter gain =
        declare_parameter("gain", {6, 4}, Sharding::sharded(0, 6, 1, 1, 3), DType::kFloat32);
    Parameter weight = matrix("w", 3);
    const ParameterBuckets buckets({&gain, &weight}, device());
    EXPECT_EQ(buckets.device(), device());
    EXPECT_EQ(gain.value.shape(), (Shape{2, 4})) << "this rank's part";
    EXPECT_EQ(gain.value.raw(), gain.master.raw()) << "an fp32 value is its own master";
    EXPECT_EQ(weight.value.dtype(), DType::kBFloat16);
    for (const Parameter* p : {&gain, &weight}) {
        for (const Tensor& t : {p->value, p->master, p->grad, p->exp_avg, p->exp_avg_sq}) {
            EXPECT_EQ(t.device(), device());
            EXPECT_TRUE(t.is_contiguous());
            for (const double value : to_doubles(on_cpu(t))) EXPECT_EQ(value, 0.0);
        }
    }
}

TEST_P(ParameterBucketsTest, NeighboursLieBehindOneAnotherUpToTheLimit) {
    std::vector<Parameter> list = {matrix("a", 2), matrix("b", 3), matrix("c", 5), matrix("d", 90)};
    const ParameterBuckets buckets(pointers_to(list), device(), 24);  // elements
    ASSERT_EQ(buckets.list().size(), 3u);
    EXPECT_EQ(buckets.list()[0].parameters, (std::vector<Parameter*>{&list[0], &list[1]}));
    EXPECT_EQ(buckets.list()[1].parameters, (std::vector<Parameter*>{&list[2]}));
    EXPECT_EQ(buckets.list()[2].parameters, (std::vector<Parameter*>{&list[3]}))
        << "larger than a bucket";
    EXPECT_EQ(list[1].grad.raw(), list[0].grad.raw() + list[0].grad.bytes());
    list[0].grad.fill(1.0f);
    list[1].grad.fill(2.0f);
    const auto flat = to_doubles(on_cpu(buckets.list()[0].grad));
    EXPECT_EQ(flat.size(), 20u);
    EXPECT_EQ(flat[7], 1.0);
    EXPECT_EQ(flat[8], 2.0);
    buckets.zero_gradients();
    EXPECT_EQ(to_doubles(on_cpu(list[1].grad)), std::vector<double>(12, 0.0));
}

TEST_P(ParameterBucketsTest, JoinedParametersAreOneMatrix) {
    std::vector<Parameter> list = {matrix("a", 3), matrix("q", 4), matrix("k", 1, true),
                                   matrix("v", 1, true)};
    list[2].gradient_sum = GradientSum::kReplicaGroup;
    const ParameterBuckets buckets(pointers_to(list), device(), 16);
    ASSERT_EQ(buckets.list().size(), 2u) << "q, k and v stay together, whatever their sums";
    const Tensor qkv = Tensor::joined(Tensor::joined(list[1].value, list[2].value), list[3].value);
    EXPECT_EQ(qkv.shape(), (Shape{6, 4}));
    list[3].value.fill(3.0f);
    EXPECT_EQ(to_doubles(on_cpu(qkv)).back(), 3.0);
    EXPECT_EQ(to_doubles(on_cpu(qkv))[19], 0.0);
    EXPECT_THROW(Tensor::joined(list[1].value, list[3].value), Error) << "k lies between";
    EXPECT_THROW(Tensor::joined(list[0].value, list[1].value), Error) << "another bucket";
}

TEST_P(ParameterBucketsTest, ParametersOfAnySizeAreAlignedAndSkipTheGaps) {
    const auto whole = Sharding::replicated(0, 1);
    std::vector<Parameter> list = {declare_parameter("a", {71}, whole, DType::kFloat32),
                                   declare_parameter("b", {3}, whole, DType::kFloat32),
                                   declare_parameter("c", {64}, whole, DType::kFloat32),
                                   matrix("d", 1),
                                   matrix("e", 2),
                                   matrix("f", 1, true)};
    const ParameterBuckets buckets(pointers_to(list), device());
    ASSERT_EQ(buckets.list().size(), 2u);
    EXPECT_EQ(buckets.list()[0].begins, (std::vector<std::int64_t>{0, 72, 80}));
    EXPECT_EQ(buckets.list()[1].begins, (std::vector<std::int64_t>{0, 8, 16}));
    for (const Parameter& p : list) {
        for (const Tensor& t : {p.value, p.master, p.grad, p.exp_avg, p.exp_avg_sq}) {
            EXPECT_EQ(reinterpret_cast<std::uintptr_t>(t.raw()) % 16, 0u) << p.name;
            t.fill(1.0f);
        }
    }
    for (const ParameterBucket& bucket : buckets.list()) {
        double elements = 0.0, sum = 0.0;
        for (const Parameter* p : bucket.parameters)
            elements += static_cast<double>(p->grad.numel());
        for (const double value : to_doubles(on_cpu(bucket.grad))) sum += value;
        EXPECT_EQ(sum, elements) << "gaps hold zeros";
        std::size_t parameter = 0;
        for (const ParameterChunk& chunk : bucket.chunks) {
            EXPECT_EQ(chunk.begin, bucket.begins[parameter]);
            EXPECT_EQ(chunk.count, bucket.parameters[parameter++]->grad.numel());
        }
    }
}

TEST_P(ParameterBucketsTest, KindsOfSumsAndTypesHaveBucketsOfTheirOwn) {
    const auto whole = Sharding::replicated(0, 2);
    std::vector<Parameter> list = {declare_parameter("norm", {8}, whole, DType::kFloat32),
                                   matrix("w", 2),
                                   declare_parameter("gain", {8}, whole, DType::kFloat32),
                                   declare_parameter("norm2", {8}, whole, DType::kFloat32)};
    list[2].gradient_sum = GradientSum::kTensorParallel;
    const ParameterBuckets buckets(pointers_to(list), device());
    ASSERT_EQ(buckets.list().size(), 3u);
    EXPECT_EQ(buckets.list()[0].parameters, (std::vector<Parameter*>{&list[0], &list[3]}));
}

TEST_P(ParameterBucketsTest, ChunksCoverEachParameterAlone) {
    Parameter large = declare_parameter("a", {2 * ParameterChunk::kMost + 5},
                                        Sharding::replicated(1, 2), DType::kFloat32);
    Parameter small =
        declare_parameter("b", {7}, Sharding::sharded(0, 14, 1, 0, 2), DType::kFloat32);
    small.global_shape = {14};
    small.weight_decay = false;
    const ParameterBuckets buckets({&large, &small}, device());
    const ParameterBucket& bucket = buckets.list()[0];
    ASSERT_EQ(bucket.chunks.size(), 4u);
    std::int64_t at = 0;
    for (const ParameterChunk& chunk : bucket.chunks) {
        if (&chunk == &bucket.chunks.back()) at = bucket.begins[1];
        EXPECT_EQ(chunk.begin, at);
        at += chunk.count;
    }
    EXPECT_EQ(at, bucket.grad.numel());
    EXPECT_EQ(bucket.chunks[2].count, 5);
    EXPECT_TRUE(bucket.chunks[0].decays());
    EXPECT_FALSE(bucket.chunks[0].owned()) << "rank 0 owns a replicated parameter";
    EXPECT_FALSE(bucket.chunks[3].decays());
    EXPECT_TRUE(bucket.chunks[3].owned());
    if (device() == Device::kCpu) return;
    const Tensor table = on_cpu(bucket.device_chunks);
    EXPECT_EQ(std::memcmp(table.raw(), bucket.chunks.data(), table.bytes()), 0);
}

INSTANTIATE_TEST_SUITE_P(,
                         ParameterBucketsTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

}  // namespace
}  // namespace evenkeel
