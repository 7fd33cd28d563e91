// Everything of an AdamW step that is the same for all elements, worked out in double and rounded once.
// Plain data, for kernels too. Internal.
#pragma once

#include <cstdint>

namespace evenkeel {

struct AdamWScalars {
    float beta1, one_minus_beta1;
    float beta2, one_minus_beta2;
    float step_size;   // lr / (1 - beta1^step)
    float root_scale;  // 1 / sqrt(1 - beta2^step)
    float epsilon;
    float decay;           // lr * weight_decay
    std::uint32_t wanted;  // ParameterChunk::Flags: chunks that lack one of them are left alone
};

}  // namespace evenkeel
