// The JSON header of a safetensors file.
#pragma once

#include <string>
#include <vector>

#include "framework/storage/safetensors.h"

namespace evenkeel {

struct SafetensorsHeader {
    std::vector<TensorInfo> tensors;
    SafetensorsMetadata metadata;
};

// Longest header that readers accept.
inline constexpr std::uint64_t kMaxSafetensorsHeader = 100'000'000;

// Checks everything that safetensors.h promises, the cover of `data_bytes` without holes or overlaps
// included; tensors come back in the order of their data. Throws kIo with `path`.
SafetensorsHeader parse_safetensors_header(const std::string& json,
                                           std::uint64_t data_bytes,
                                           const std::string& path);

// Of tensors that follow one another in this order; padded to a multiple of 8 bytes. Throws
// kInvalidArgument for what the parser would refuse.
std::string format_safetensors_header(const std::vector<SafetensorsWriter::Declaration>& tensors,
                                      const SafetensorsMetadata& metadata);

}  // namespace evenkeel
