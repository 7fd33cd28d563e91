#include "parallel/gpu_assignment.h"

#include <gtest/gtest.h>

#include "parallel/nccl_communicator.h"

namespace evenkeel {
namespace {

// Four ranks on two machines of two GPUs each.
class GpuAssignmentTest : public ::testing::Test {
  protected:
    GpuAssignmentTest() {
        for (int r = 0; r < 4; ++r) {
            RankOnGpu rank;
            rank.host = r < 2 ? "north" : "south";
            rank.uuid = concat("00", r);
            rank.name = "NVIDIA H100";
            rank.gpus_seen = 2;
            rank.ranks_on_node = 2;
            rank.nccl_version = 22809;
            ranks_.push_back(rank);
        }
    }
    std::string problem(Communication communication = Communication::kNccl) const {
        return find_problem(ranks_, communication).text;
    }
    std::vector<RankOnGpu> ranks_;
};

TEST_F(GpuAssignmentTest, MixedTypesOfGpusAreRefusedWithBothNames) {
    ranks_[2].name = "NVIDIA A100";
    for (Communication communication : {Communication::kNccl, Communication::kStaged}) {
        EXPECT_EQ(
            problem(communication),
            "GPUs of different types: NVIDIA H100 for rank 0 on north, NVIDIA A100 for rank 2 "
            "on south: the slower ones would hold up all others");
        EXPECT_EQ(find_problem(ranks_, communication).code, ErrorCode::kCuda);
    }
}

TEST_F(GpuAssignmentTest, ARankWithoutAGpuIsNamed) {
    ranks_[3].problem = "no usable GPU: the NVIDIA driver finds no GPU";
    EXPECT_EQ(problem(Communication::kStaged),
              "rank 3 on south: no usable GPU: the NVIDIA driver finds no GPU");
}

TEST_F(GpuAssignmentTest, StagedRanksMayShareAGpuWithoutNccl) {
    for (RankOnGpu& rank : ranks_) {
        rank.uuid = "00";
        rank.gpus_seen = 1;
        rank.nccl_version = 0;
    }
    EXPECT_EQ(problem(Communication::kStaged), "");
    EXPECT_NE(problem(), "");
}

TEST_F(GpuAssignmentTest, OneRankNeedsNoNccl) {
    ranks_.resize(1);
    ranks_[0].nccl_version = 0;
    EXPECT_EQ(problem(), "");
}

TEST_F(GpuAssignmentTest, WithNcclEveryRankNeedsAGpuOfItsOwn) {
    if (nccl_version() == 0) {
        EXPECT_NE(problem().find("this build has no NCCL"), std::string::npos) << problem();
        return;
    }
    EXPECT_EQ(problem(), "");
    // A launcher that shows each task one GPU: not the same one.
    for (RankOnGpu& rank : ranks_) rank.gpus_seen = 1;
    EXPECT_EQ(problem(), "");
    ranks_[3].uuid = ranks_[2].uuid;
    EXPECT_EQ(problem(),
              "ranks 2 and 3 on south see the same GPU only, NVIDIA H100 002: NCCL needs one GPU "
              "for each rank; parallel.communication=staged lets ranks share one");
    ranks_[3].host = "north";  // the same number elsewhere is another GPU
    EXPECT_EQ(problem(), "");
    for (RankOnGpu& rank : ranks_) rank.gpus_seen = 2;
    ranks_[1].uuid = ranks_[0].uuid;
    ranks_[1].ranks_on_node = 3;
    EXPECT_EQ(problem(),
              "3 ranks on north, which has only 2 GPUs: NCCL needs one GPU for each rank; "
              "parallel.communication=staged lets ranks share one");
}

TEST_F(GpuAssignmentTest, VersionsOfNcclMustBeNewEnoughAndTheSame) {
    if (nccl_version() == 0) GTEST_SKIP() << "this build has no NCCL";
    ranks_[1].nccl_version = 22703;
    EXPECT_EQ(problem(),
              "different versions of NCCL: 2.28.9 for rank 0 on north, 2.27.3 for rank 1 on north");
    ranks_[1].nccl_version = 2708;
    EXPECT_EQ(problem(),
              "rank 1 on north: NCCL is too old: got 2.7.8, want 2.14 or later; "
              "parallel.communication=staged does without NCCL");
    EXPECT_EQ(find_problem(ranks_, Communication::kNccl).code, ErrorCode::kNccl);
}

}  // namespace
}  // namespace evenkeel
