#include "tests/gpu_emulator/replacement.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "tests/gpu_emulator/machine.h"

namespace gpu_emulator {
namespace {

constexpr std::string_view kAnonymous = "_GLOBAL__N__";
constexpr std::size_t kDigits = 8;  // of the path's hash, which follow

// Calls body with the name of each kernel, until it returns false.
template <typename Body>
bool all_kernels(std::string_view text, Body body) {
    constexpr std::string_view kEntry = ".entry ";
    for (std::size_t at = text.find(kEntry); at != text.npos; at = text.find(kEntry, at)) {
        at += kEntry.size();
        if (!body(text.substr(at, text.find('(', at) - at))) return false;
    }
    return true;
}

}  // namespace

std::string fit_replacement(std::string_view replacement, std::string_view text) {
    std::string fitted(replacement);
    if (const std::size_t own = text.find(kAnonymous); own != text.npos) {
        const std::string_view hash = text.substr(own + kAnonymous.size(), kDigits);
        for (std::size_t at = fitted.find(kAnonymous); at != fitted.npos;
             at = fitted.find(kAnonymous, at)) {
            at += kAnonymous.size();
            fitted.replace(at, kDigits, hash);
        }
    }
    bool any = false;
    const bool fits = all_kernels(fitted, [&](std::string_view name) {
        any = true;
        return !all_kernels(text, [&](std::string_view other) { return other != name; });
    });
    return any && fits ? fitted : "";
}

std::string replaced_ptx(std::string_view text) {
    const char* const path = std::getenv("EVENKEEL_EMULATOR_PTX");
    if (path == nullptr) return std::string(text);
    std::ifstream file(path, std::ios::binary);
    const std::string replacement{std::istreambuf_iterator<char>(file), {}};
    if (replacement.empty()) report(std::string("EVENKEEL_EMULATOR_PTX: cannot read ") + path);
    const std::string fitted = fit_replacement(replacement, text);
    if (fitted.empty()) return std::string(text);
    std::fprintf(stderr, "[gpu emulator] runs %s\n", path);
    return fitted;
}

}  // namespace gpu_emulator
