#include "tests/gpu_emulator/module.h"

namespace gpu_emulator {
namespace {

struct Place {
    std::string text;
    bool in_toolkit = false;
};

Place place_of(const Module& module, const SourceLine& source) {
    if (source.file < 0 || source.file >= static_cast<int>(module.files.size())) {
        return {"unknown source line", false};
    }
    const std::string& path = module.files[static_cast<std::size_t>(source.file)];
    const std::string name = path.substr(path.find_last_of('/') + 1);
    // nvcc names its own headers relative to the folder that it lies in.
    return {name + ":" + std::to_string(source.line), path.find("/bin/../") != std::string::npos};
}

}  // namespace

std::string describe(const Module& module, const SourceLine& place) {
    std::string all;
    std::string innermost;
    SourceLine at = place;
    while (true) {
        const Place next = place_of(module, at);
        if (innermost.empty()) innermost = next.text;
        if (!next.in_toolkit) all += (all.empty() ? "" : ", inlined at ") + next.text;
        if (at.inlined_at < 0) break;
        at = module.call_sites[static_cast<std::size_t>(at.inlined_at)];
    }
    return all.empty() ? innermost : all;
}

}  // namespace gpu_emulator
