// What a pass over a few sequences reads.
#pragma once

#include <cstdint>
#include <vector>

#include "framework/tensor.h"

namespace evenkeel {

// B sequences of T tokens, which may be documents packed one behind the other.
struct Batch {
    static constexpr std::int32_t kNoTarget = -1;

    Tensor tokens;  // [B, T] int32
    Tensor
        targets;  // [B, T] int32: the token that follows each, kNoTarget where none is to be predicted
    // Where documents begin among the B T tokens in memory order, and last B T: every row begins one. No token
    // attends to another document's, positions restart at each, and no document's last token has a target.
    // Empty: every row is one document.
    std::vector<std::int32_t> cu_seqlens;

    // How many of the tokens have a target.
    std::int64_t num_targets() const;
};

}  // namespace evenkeel
