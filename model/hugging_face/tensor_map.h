// Of which tensors of another library one of this project's parameters is made.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/rope.h"
#include "framework/shape.h"

namespace evenkeel::hugging_face {

struct TensorMap {
    struct Theirs {
        std::string name;
        Shape shape;
    };
    // `count` elements of theirs[theirs] from element `begin` on, in row-major order.
    struct Piece {
        std::size_t theirs = 0;
        std::int64_t begin = 0;
        std::int64_t count = 0;
    };
    std::string ours;
    Shape shape;  // of ours, global
    std::vector<Theirs> theirs;
    // Put one after the other they are ours, in row-major order. An element of theirs may be in several: writing
    // theirs, all must then be equal.
    std::vector<Piece> pieces;

    // The pieces of elements [begin, begin + count) of ours.
    std::vector<Piece> pieces_of(std::int64_t begin, std::int64_t count) const;
};

// The same shape and elements.
TensorMap same(const std::string& ours, const Shape& shape, const std::string& theirs);
// The same elements in another shape of as many.
TensorMap reshaped(const std::string& ours,
                   const Shape& shape,
                   const std::string& theirs,
                   const Shape& their_shape);
// ours[i] is the whole of theirs[i]; shape[0] names.
TensorMap stacked(const std::string& ours,
                  const Shape& shape,
                  const std::vector<std::string>& theirs);
// ours[i] is the whole of theirs for every i. Going back, ours[0], if all are equal; refused otherwise.
TensorMap repeated(const std::string& ours, const Shape& shape, const std::string& theirs);
// `map`, but theirs has its heads' channels in the order of another RoPE layout than ours. A channel is
// `channel_elements` elements: the columns of a weight [H D, C], 1 in biases and gains. Only the first rotary_dim of
// head_dim channels move.
TensorMap with_rotary_layout(const TensorMap& map,
                             std::int64_t head_dim,
                             std::int64_t rotary_dim,
                             std::int64_t channel_elements,
                             RopeLayout ours,
                             RopeLayout theirs);

}  // namespace evenkeel::hugging_face
