// The optimizer on state that is cut over data-parallel ranks, all of them in one process, against the same with all
// state in one place.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "framework/optimizer/adamw.h"
#include "framework/optimizer/gradient_norm.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"
#include "tests/support/parameters.h"

namespace evenkeel {
namespace {

using testing::on_cpu;
using testing::pointers_to;
using testing::same_bits;

constexpr std::int64_t kBucket = 40000;  // elements: the list below fills several

// Matrices longer than a chunk, gains that no part's end falls in and such that one does, joined ones, one that stays
// whole, one that is not trained, an empty one.
std::vector<Parameter> declared() {
    const Sharding all = Sharding::replicated(0, 1);
    const auto add = [&](const char* name, const Shape& shape, DType type) {
        return declare_parameter(name, shape, all, type);
    };
    std::vector<Parameter> list = {add("embedding", {150, 129}, DType::kBFloat16),
                                   add("gain", {37}, DType::kFloat32),
                                   add("wq", {33, 40}, DType::kBFloat16),
                                   add("wk", {3, 40}, DType::kBFloat16),
                                   add("clipped", {9, 40}, DType::kBFloat16),
                                   add("norm", {129}, DType::kFloat32),
                                   add("start", {37}, DType::kFloat32),
                                   add("empty", {0}, DType::kFloat32),
                                   add("output", {300, 129}, DType::kBFloat16),
                                   add("scale", {1}, DType::kFloat32)};
    list[1].weight_decay = list[5].weight_decay = false;
    list[1].first_phase = true;
    list[3].joins_previous = true;
    list[4].whole_state = true;
    list[6].trained = false;
    return list;
}

// The parameters as one of `size` ranks has them.
struct Rank {
    Rank(Device device, int size, int rank, bool cut)
        : parameters(declared()),
          buckets(pointers_to(parameters), device, kBucket, {size, rank, cut}) {
        for (Parameter& p : parameters) init_normal(p, 0.02, 1);
    }
    void set_gradients(std::uint64_t seed) {
        for (Parameter& p : parameters) {
            Parameter source =
                declare_parameter(p.name, p.global_shape, p.sharding, DType::kFloat32);
            const ParameterBuckets memory({&source}, Device::kCpu);
            init_normal(source, 0.1, seed);
            p.grad.copy_from(source.value);
        }
    }

    std::vector<Parameter> parameters;
    ParameterBuckets buckets;
};

std::vector<std::unique_ptr<Rank>> all_ranks(Device device, int size) {
    std::vector<std::unique_ptr<Rank>> ranks;
    for (int rank = 0; rank < size; ++rank) {
        ranks.push_back(std::make_unique<Rank>(device, size, rank, true));
    }
    return ranks;
}

Tensor chunk_sums(const ParameterBuckets& buckets) {
    // What it held is forgotten.
    const Tensor sums =
        Tensor::full({buckets.num_chunks()}, 9.0f, DType::kFloat64).to(buckets.device());
    chunk_sums_of_squares(buckets, sums);
    return on_cpu(sums);
}

std::size_t state_bytes(const ParameterBuckets& buckets) {
    std::size_t bytes = 0;
    for (const ParameterBucket& bucket : buckets.list()) {
        bytes += bucket.exp_avg.bytes() + bucket.exp_avg_sq.bytes();
        if (bucket.master.raw() != bucket.part_value.raw()) bytes += bucket.master.bytes();
    }
    return bytes;
}

class CutStateTest : public ::testing::TestWithParam<Device> {};

TEST_P(CutStateTest, RanksHoldEveryElementOnceAndNoneMore) {
    for (const int size : {2, 3, 5}) {
        const auto ranks = all_ranks(GetParam(), size);
        for (std::size_t i = 0; i < ranks[0]->parameters.size(); ++i) {
            const Parameter& first = ranks[0]->parameters[i];
            SCOPED_TRACE(first.name + concat(", ", size, " ranks"));
            std::int64_t next = 0;
            for (int r = 0; r < size; ++r) {
                const Parameter& p = ranks[r]->parameters[i];
                EXPECT_EQ(p.is_cut(), p.name != "clipped");
                EXPECT_EQ(p.held(), first.held_by(r)) << "every rank knows what the others hold";
                EXPECT_EQ(p.value.shape(), p.local_shape());
                EXPECT_EQ(p.grad.shape(), p.local_shape());
                for (const Tensor& t : {p.master, p.exp_avg, p.exp_avg_sq}) {
                    EXPECT_EQ(t.shape(), p.is_cut() ? Shape{p.held().size()} : p.local_shape());
                }
                if (!p.is_cut()) continue;
                EXPECT_EQ(p.held().begin, next);
                next = p.held().end;
                if (p.dtype != DType::kFloat32 || p.master.numel() == 0) continue;
                EXPECT_EQ(p.master.raw(), p.value.raw() + 4 * p.held().begin)
                    << "an fp32 value's own memory";
            }
            if (first.is_cut()) EXPECT_EQ(next, first.value.numel());
        }
    }
}

TEST_P(CutStateTest, TakesItsShareOfMemory) {
    const Rank whole(GetParam(), 4, 1, false), cut(GetParam(), 4, 1, true);
    const std::size_t stays_whole = 12 * 9 * 40, all = state_bytes(whole.buckets);
    const double want = static_cast<double>(all - stays_whole) / 4 + stays_whole;
    EXPECT_NEAR(static_cast<double>(state_bytes(cut.buckets)), want, 0.01 * want) << "of " << all;
}

TEST_P(CutStateTest, EveryPartHasItsShareOfTheInitialWeights) {
    const Rank whole(GetParam(), 3, 0, false);
    for (const auto& rank : all_ranks(GetParam(), 3)) {
        for (std::size_t i = 0; i < rank->parameters.size(); ++i) {
            const Parameter &got = rank->parameters[i], &want = whole.parameters[i];
            EXPECT_TRUE(same_bits(on_cpu(got.value), on_cpu(want.value))) << got.name;
            const FlatRange held = got.held();
            const Tensor flat = on_cpu(want.master).view({want.master.numel()});
            EXPECT_TRUE(same_bits(on_cpu(got.master).view({held.size()}),
                                  flat.slice(0, held.begin, held.end)))
                << got.name;
        }
    }
}

TEST_P(CutStateTest, SumsOfSquaresHaveTheSameBits) {
    for (const int size : {2, 3, 5}) {
        Rank whole(GetParam(), size, 0, false);
        whole.set_gradients(5);
        const Tensor want = chunk_sums(whole.buckets);
        const Tensor sum = Tensor::zeros(want.shape(), DType::kFloat64);
        for (const auto& rank : all_ranks(GetParam(), size)) {
            rank->set_gradients(5);
            const Tensor one = chunk_sums(rank->buckets);
            ASSERT_EQ(one.numel(), want.numel());
            for (std::int64_t i = 0; i < one.numel(); ++i) {
                sum.data<double>()[i] += one.data<double>()[i];
            }
        }
        EXPECT_TRUE(same_bits(sum, want)) << size << " ranks";
    }
}

TEST_P(CutStateTest, UpdatesHaveTheSameBits) {
    const auto numbers = [](double loss) {
        return testing::step_numbers(loss, 4.0).to(GetParam());  // a norm of 2, clipped to 1
    };
    Rank whole(GetParam(), 3, 0, false);
    const auto ranks = all_ranks(GetParam(), 3);
    const auto step = [&](Rank& rank, int number, double loss, UpdateScope scope) {
        rank.set_gradients(static_cast<std::uint64_t>(number));
        adamw_step(rank.buckets, {}, 0.01, 1.0, numbers(loss), number, scope);
    };
    const auto all_steps = [&](Rank& rank) {
        step(rank, 1, 2.0, UpdateScope::kAll);
        step(rank, 2, NAN, UpdateScope::kAll);  // changes nothing
        step(rank, 3, 2.0, UpdateScope::kFirstPhase);
        step(rank, 4, 2.0, UpdateScope::kAll);
    };
    all_steps(whole);
    for (const auto& rank : ranks) {
        all_steps(*rank);
        for (std::size_t i = 0; i < rank->parameters.size(); ++i) {
            const Parameter &got = rank->parameters[i], &want = whole.parameters[i];
            const FlatRange held = got.held();
            const auto part = [&](const Tensor& t) {
                return on_cpu(t).view({t.numel()}).slice(0, held.begin, held.end);
            };
            const auto flat = [&](const Tensor& t) { return on_cpu(t).view({t.numel()}); };
            EXPECT_TRUE(same_bits(flat(got.master), part(want.master))) << got.name;
            EXPECT_TRUE(same_bits(flat(got.exp_avg), part(want.exp_avg))) << got.name;
            EXPECT_TRUE(same_bits(flat(got.exp_avg_sq), part(want.exp_avg_sq))) << got.name;
            EXPECT_TRUE(same_bits(part(got.value), part(want.value))) << got.name;
        }
    }
}

TEST_P(CutStateTest, OneRankIsNotCut) {
    const Rank alone(GetParam(), 1, 0, true);
    EXPECT_FALSE(alone.buckets.is_cut());
    for (const Parameter& p : alone.parameters) EXPECT_FALSE(p.is_cut()) << p.name;
}

INSTANTIATE_TEST_SUITE_P(,
                         CutStateTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

}  // namespace
}  // namespace evenkeel
