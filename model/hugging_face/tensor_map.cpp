#include "model/hugging_face/tensor_map.h"

#include <algorithm>

#include "framework/error.h"

namespace evenkeel::hugging_face {
namespace {

constexpr const char* kOp = "TensorMap";

Shape without_first(const Shape& shape) { return Shape(shape.begin() + 1, shape.end()); }

// Appends, as one with the last piece where it goes on there.
void append(std::vector<TensorMap::Piece>& pieces, const TensorMap::Piece& piece) {
    if (piece.count == 0) return;
    if (!pieces.empty() && pieces.back().theirs == piece.theirs &&
        pieces.back().begin + pieces.back().count == piece.begin) {
        pieces.back().count += piece.count;
    } else {
        pieces.push_back(piece);
    }
}

}  // namespace

std::vector<TensorMap::Piece> TensorMap::pieces_of(std::int64_t begin, std::int64_t count) const {
    std::vector<Piece> found;
    std::int64_t at = 0;
    for (const Piece& piece : pieces) {
        if (at >= begin + count) break;
        const std::int64_t from = std::max(begin, at);
        const std::int64_t to = std::min(begin + count, at + piece.count);
        if (from < to) append(found, {piece.theirs, piece.begin + from - at, to - from});
        at += piece.count;
    }
    return found;
}

TensorMap same(const std::string& ours, const Shape& shape, const std::string& theirs) {
    return reshaped(ours, shape, theirs, shape);
}

TensorMap reshaped(const std::string& ours,
                   const Shape& shape,
                   const std::string& theirs,
                   const Shape& their_shape) {
    EVENKEEL_CHECK(num_elements(shape) == num_elements(their_shape), kOp, ours, ": got ",
                   to_string(shape), " of ", to_string(their_shape), ", want as many elements");
    return {ours, shape, {{theirs, their_shape}}, {{0, 0, num_elements(shape)}}};
}

TensorMap stacked(const std::string& ours,
                  const Shape& shape,
                  const std::vector<std::string>& theirs) {
    EVENKEEL_CHECK(!shape.empty() && shape[0] == static_cast<std::int64_t>(theirs.size()), kOp,
                   ours, ": got ", theirs.size(), " tensors for ", to_string(shape),
                   ", want one for each index of the first dimension");
    TensorMap map{ours, shape, {}, {}};
    const Shape row = without_first(shape);
    for (const std::string& name : theirs) {
        map.pieces.push_back({map.theirs.size(), 0, num_elements(row)});
        map.theirs.push_back({name, row});
    }
    return map;
}

TensorMap repeated(const std::string& ours, const Shape& shape, const std::string& theirs) {
    EVENKEEL_CHECK(!shape.empty(), kOp, ours, ": got a scalar, want a dimension to repeat along");
    const Shape row = without_first(shape);
    TensorMap map{ours, shape, {{theirs, row}}, {}};
    for (std::int64_t i = 0; i < shape[0]; ++i) map.pieces.push_back({0, 0, num_elements(row)});
    return map;
}

TensorMap with_rotary_layout(const TensorMap& map,
                             std::int64_t head_dim,
                             std::int64_t rotary_dim,
                             std::int64_t channel_elements,
                             RopeLayout ours,
                             RopeLayout theirs) {
    if (ours == theirs || rotary_dim == 0) return map;
    const std::int64_t channels = num_elements(map.shape) / channel_elements;
    EVENKEEL_CHECK(
        channels * channel_elements == num_elements(map.shape) && channels % head_dim == 0, kOp,
        map.ours, ": got ", to_string(map.shape), ", want heads of ", head_dim, " channels of ",
        channel_elements);
    const std::int64_t pairs = rotary_dim / 2;
    TensorMap turned{map.ours, map.shape, map.theirs, {}};
    // In one pass over the old pieces for each head, whose channels lie close together.
    for (std::int64_t head = 0; head < channels; head += head_dim) {
        TensorMap part{map.ours, {head_dim, channel_elements}, {}, {}};
        part.pieces = map.pieces_of(head * channel_elements, head_dim * channel_elements);
        for (std::int64_t c = 0; c < head_dim; ++c) {
            std::int64_t from = c;  // where theirs has our channel c
            if (c < rotary_dim && ours == RopeLayout::kHalfSplit) {
                from = 2 * (c % pairs) + c / pairs;
            } else if (c < rotary_dim) {
                from = c / 2 + c % 2 * pairs;
            }
            for (const TensorMap::Piece& piece :
                 part.pieces_of(from * channel_elements, channel_elements)) {
                append(turned.pieces, piece);
            }
        }
    }
    return turned;
}

}  // namespace evenkeel::hugging_face
