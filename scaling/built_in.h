// Files that are part of the program (CMakeLists.txt makes the arrays).
#pragma once

#include <cstddef>
#include <span>

namespace evenkeel::scaling {

struct BuiltInFile {
    const char* name;  // without directory and ending
    const char* text;
    std::size_t size;
};

extern const std::span<const BuiltInFile> kBuiltInHardware;  // configs/hardware/*.json
extern const BuiltInFile kPublishedResults;                  // scaling/published_results.json

}  // namespace evenkeel::scaling
