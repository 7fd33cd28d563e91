// Token sequences in a safetensors file, for models whose vocabulary is not bytes.
#pragma once

#include <cstdint>
#include <string>

#include "framework/tensor.h"

namespace evenkeel {

// The tensor `tokens` [N, T], int32 or int64, as int32 on the CPU. Throws kIo for a file without it, of another type
// or shape, or with an id outside [0, vocab_size), naming where it is.
Tensor read_token_file(const std::string& path, std::int64_t vocab_size);

}  // namespace evenkeel
