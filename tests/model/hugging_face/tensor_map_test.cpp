// Which elements of other libraries' tensors make a parameter.
#include "model/hugging_face/tensor_map.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "framework/error.h"

namespace evenkeel::hugging_face {
namespace {

// The flat indices of theirs, each plus 1000 times its tensor's number, in the order of ours.
std::vector<std::int64_t> indices(const std::vector<TensorMap::Piece>& pieces) {
    std::vector<std::int64_t> found;
    for (const TensorMap::Piece& piece : pieces) {
        for (std::int64_t i = 0; i < piece.count; ++i) {
            found.push_back(static_cast<std::int64_t>(piece.theirs) * 1000 + piece.begin + i);
        }
    }
    return found;
}

using Indices = std::vector<std::int64_t>;

TEST(TensorMap, StackedTakesOneTensorForEachIndexOfTheFirstDimension) {
    const TensorMap map = stacked("gain", {3, 2}, {"a", "b", "c"});
    ASSERT_EQ(map.theirs.size(), 3u);
    EXPECT_EQ(map.theirs[2].shape, (Shape{2}));
    EXPECT_EQ(indices(map.pieces), (Indices{0, 1, 1000, 1001, 2000, 2001}));
    EXPECT_EQ(indices(map.pieces_of(1, 4)), (Indices{1, 1000, 1001, 2000}));
    EXPECT_THROW(stacked("gain", {2, 2}, {"a"}), Error);
}

TEST(TensorMap, RepeatedTakesTheSameElementsForEachIndex) {
    const TensorMap map = repeated("gain", {3, 2}, "a");
    EXPECT_EQ(map.theirs[0].shape, (Shape{2}));
    EXPECT_EQ(indices(map.pieces), (Indices{0, 1, 0, 1, 0, 1}));
    EXPECT_EQ(indices(map.pieces_of(3, 2)), (Indices{1, 0}));
}

TEST(TensorMap, ReshapedWantsAsManyElements) {
    const TensorMap map = reshaped("gain", {3, 2}, "a", {6});
    EXPECT_EQ(map.pieces.size(), 1u);
    EXPECT_EQ(indices(map.pieces_of(2, 3)), (Indices{2, 3, 4}));
    EXPECT_THROW(reshaped("gain", {3, 2}, "a", {5}), Error);
}

// Two heads of 6 channels of which 4 turn. Interleaved pairs are (0, 1) and (2, 3); half-split ones (0, 2) and
// (1, 3): ours 0, 1 are the firsts of the pairs, 2, 3 the seconds.
TEST(TensorMap, RotaryLayoutsDifferInTheOrderOfTheTurningChannels) {
    const TensorMap gain = with_rotary_layout(same("gain", {2, 6}, "a"), 6, 4, 1,
                                              RopeLayout::kHalfSplit, RopeLayout::kInterleaved);
    EXPECT_EQ(indices(gain.pieces), (Indices{0, 2, 1, 3, 4, 5, 6, 8, 7, 9, 10, 11}));
    const TensorMap weight = with_rotary_layout(same("w", {6, 2}, "a"), 6, 4, 2,
                                                RopeLayout::kHalfSplit, RopeLayout::kInterleaved);
    EXPECT_EQ(indices(weight.pieces), (Indices{0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11}));
}

TEST(TensorMap, RotaryLayoutThereAndBackIsTheSame) {
    const TensorMap map = stacked("gain", {3, 16}, {"a", "b", "c"});
    const TensorMap there =
        with_rotary_layout(map, 16, 12, 1, RopeLayout::kHalfSplit, RopeLayout::kInterleaved);
    EXPECT_NE(indices(there.pieces), indices(map.pieces));
    const TensorMap back =
        with_rotary_layout(there, 16, 12, 1, RopeLayout::kInterleaved, RopeLayout::kHalfSplit);
    EXPECT_EQ(indices(back.pieces), indices(map.pieces));
    EXPECT_EQ(back.pieces.size(), map.pieces.size());
}

}  // namespace
}  // namespace evenkeel::hugging_face
