// Element-wise reduction of several ranks' blocks, and how work is cut. Internal.
#pragma once

#include <cstdint>

#include "framework/dtype.h"
#include "parallel/communicator.h"

namespace evenkeel {

// out[i] = sources[0][i] (+ or max) sources[1][i] .. sources[n-1][i], in that order; floats in fp32 with
// one rounding (results below the least normal number may become 0), fp64 in fp64. A mean (fp32, fp64) is
// the sum times 1/num_sources. out may be one of the sources.
void reduce_blocks(DType dtype,
                   ReduceOp op,
                   const std::byte* const* sources,
                   int num_sources,
                   std::byte* out,
                   std::int64_t count);
void reduce_doubles(
    ReduceOp op, const double* const* sources, int num_sources, double* out, std::int64_t count);

struct Range {
    std::int64_t begin, end;
    std::int64_t size() const { return end - begin; }
};

// Piece `index` of `count` elements cut into `pieces`: whole cache lines each, the last ones shorter or
// empty.
inline Range piece_of(std::int64_t count, int pieces, int index) {
    constexpr std::int64_t kLine = 32;  // elements: 64 bytes of bf16
    const std::int64_t lines = (count + kLine - 1) / kLine;
    const auto cut = [&](std::int64_t i) {
        const std::int64_t at = (lines / pieces * i + lines % pieces * i / pieces) * kLine;
        return at < count ? at : count;
    };
    return {cut(index), cut(index + 1)};
}

// Calls f(offset, length) for successive runs of at most `limit` bytes; one empty run when there are
// none, so that an empty message is still a message.
template <typename F>
void for_each_message(std::int64_t bytes, std::int64_t limit, F&& f) {
    std::int64_t offset = 0;
    do {
        const std::int64_t length = bytes - offset < limit ? bytes - offset : limit;
        f(offset, length);
        offset += length;
    } while (offset < bytes);
}

}  // namespace evenkeel
