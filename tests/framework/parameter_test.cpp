#include "framework/parameter.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/parameters.h"

namespace evenkeel {
namespace {

using testing::make_parameter;
using testing::same_bits;
using testing::to_doubles;

TEST(ShardingTest, ReplicatedHasOneOwner) {
    for (int rank = 0; rank < 4; ++rank) {
        const Sharding sharding = Sharding::replicated(rank, 4);
        EXPECT_EQ(sharding.replicas, 4);
        EXPECT_EQ(sharding.is_owner(), rank == 0);
    }
}

TEST(ShardingTest, EvenPiecesCoverTheDimension) {
    std::int64_t covered = 0;
    for (int rank = 0; rank < 4; ++rank) {
        const Sharding sharding = Sharding::sharded(1, 24, 3, rank, 4);
        EXPECT_EQ(sharding.kind, Sharding::Kind::kSharded);
        EXPECT_EQ(sharding.dim, 1);
        EXPECT_EQ(sharding.begin, covered);
        EXPECT_TRUE(sharding.is_owner());
        covered = sharding.end;
    }
    EXPECT_EQ(covered, 24);
    EXPECT_THROW(Sharding::sharded(0, 24, 4, 0, 4), Error);
    EXPECT_THROW(Sharding::sharded(0, 25, 1, 0, 4), Error);
}

TEST(ShardingTest, UnevenPiecesCoverTheDimensionAndDifferByOne) {
    EXPECT_EQ(piece_range(257, 4, 0).size(), 65);
    EXPECT_EQ(piece_range(257, 4, 1).begin, 65);
    EXPECT_EQ(piece_range(257, 4, 3).size(), 64);
    for (std::int64_t extent : {0, 1, 3, 24, 250, 257}) {
        for (int size : {1, 2, 3, 4, 7}) {
            std::int64_t end = 0;
            for (int rank = 0; rank < size; ++rank) {
                const Sharding sharding = Sharding::sharded_unevenly(0, extent, rank, size);
                EXPECT_EQ(sharding.kind, Sharding::Kind::kSharded);
                EXPECT_EQ(sharding.begin, end) << extent << " over " << size << ", " << rank;
                end = sharding.end;
                const std::int64_t count = sharding.end - sharding.begin, least = extent / size;
                EXPECT_TRUE(count == least || count == least + 1) << count;
                EXPECT_LE(count, piece_range(extent, size, 0).size());
                EXPECT_TRUE(sharding.is_owner());
            }
            EXPECT_EQ(end, extent);
        }
    }
}

TEST(ShardingTest, HeadsAreCutWholeOrReplicated) {
    const Sharding cut = Sharding::sharded_by_head(0, 8, 16, 1, 4);
    EXPECT_EQ(cut.kind, Sharding::Kind::kSharded);
    EXPECT_EQ(cut.begin, 32);
    EXPECT_EQ(cut.end, 64);
    // 2 heads on 8 ranks: ranks 0 to 3 hold head 0, ranks 4 to 7 head 1.
    for (int rank = 0; rank < 8; ++rank) {
        const Sharding sharding = Sharding::sharded_by_head(0, 2, 16, rank, 8);
        EXPECT_EQ(sharding.kind, Sharding::Kind::kReplicatedInGroup);
        EXPECT_EQ(sharding.replicas, 4);
        EXPECT_EQ(sharding.replica_index, rank % 4);
        EXPECT_EQ(sharding.begin, rank < 4 ? 0 : 16);
        EXPECT_EQ(sharding.end, rank < 4 ? 16 : 32);
        EXPECT_EQ(sharding.is_owner(), rank == 0 || rank == 4);
    }
    EXPECT_THROW(Sharding::sharded_by_head(0, 6, 16, 0, 4), Error);
    EXPECT_THROW(Sharding::sharded_by_head(0, 3, 16, 0, 8), Error);
    EXPECT_THROW(Sharding::sharded_by_head(0, 0, 16, 0, 8), Error);
}

TEST(ParameterTest, Fp32ValuesAreTheirOwnMaster) {
    const Parameter p = make_parameter("w", {3, 4}, Sharding::replicated(0, 1), DType::kFloat32);
    EXPECT_EQ(p.value.raw(), p.master.raw());
    init_constant(p, 2.0f);
    EXPECT_EQ(p.value.data<float>()[11], 2.0f);
    EXPECT_EQ(to_doubles(p.exp_avg), std::vector<double>(12, 0.0));
    EXPECT_EQ(to_doubles(p.grad), std::vector<double>(12, 0.0));
}

TEST(ParameterTest, Bf16ValuesAreRoundedMasters) {
    const Parameter p = make_parameter("w", {3, 4}, Sharding::replicated(0, 1), DType::kBFloat16);
    EXPECT_NE(p.value.raw(), p.master.raw());
    EXPECT_EQ(p.grad.dtype(), DType::kFloat32);
    init_normal(p, 1.0, 3);
    EXPECT_TRUE(same_bits(p.value, p.master.to(DType::kBFloat16)));
}

TEST(ParameterTest, InitialWeightsDoNotDependOnTheSharding) {
    const Parameter whole =
        make_parameter("w", {8, 6}, Sharding::replicated(0, 1), DType::kFloat32);
    init_normal(whole, 0.5, 3);
    for (int dim : {0, 1}) {
        for (int rank = 0; rank < 2; ++rank) {
            const Sharding sharding = Sharding::sharded(dim, whole.global_shape[dim], 1, rank, 2);
            const Parameter part = make_parameter("w", {8, 6}, sharding, DType::kFloat32);
            init_normal(part, 0.5, 3);
            EXPECT_EQ(part.local_shape()[dim], whole.global_shape[dim] / 2);
            EXPECT_TRUE(same_bits(part.master,
                                  whole.master.slice(dim, sharding.begin, sharding.end).clone()));
        }
    }
    const Parameter other =
        make_parameter("v", {8, 6}, Sharding::replicated(0, 1), DType::kFloat32);
    init_normal(other, 0.5, 3);
    EXPECT_FALSE(same_bits(other.master, whole.master)) << "the name is part of the key";
}

TEST(ParameterTest, RejectsAShapeWithoutDimensions) {
    EXPECT_THROW(declare_parameter("scale", {}, Sharding::replicated(0, 1), DType::kFloat32),
                 Error);
}

}  // namespace
}  // namespace evenkeel
