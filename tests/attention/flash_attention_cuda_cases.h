// Masks and shapes for attention's CUDA tests of both directions.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "attention/flash_attention.h"
#include "attention/reference_attention.h"
#include "tests/attention/flash_attention_methods.h"
#include "tests/support/devices.h"

namespace evenkeel::testing {

struct FlashCase {
    std::string name;
    ReferenceShape shape;  // B, T, S, H, K, D
    AttentionMask mask;
    double scale = 0.0;
};
inline void PrintTo(const FlashCase& c, std::ostream* out) { *out << c.name; }

inline std::vector<FlashCase> common_flash_cases() {
    const AttentionMask kCausal{}, kBidirectional{false, 0, {}};
    std::vector<FlashCase> cases;
    cases.push_back({"multi_query", {1, 61, 61, 5, 1, 64}, kCausal});
    cases.push_back({"decode_one", {3, 1, 300, 4, 2, 64}, kCausal});
    cases.push_back({"decode_seven", {1, 7, 131, 2, 1, 128}, kCausal});
    cases.push_back({"more_queries_than_keys", {1, 150, 40, 2, 1, 64}, kCausal});
    cases.push_back({"more_queries_bidirectional", {1, 150, 3, 2, 1, 64}, kBidirectional});
    cases.push_back({"window_1", {1, 40, 40, 2, 1, 64}, {true, 1, {}}});
    cases.push_back({"window_50", {1, 300, 300, 2, 1, 64}, {true, 50, {}}});
    cases.push_back({"window_two_sided", {1, 300, 300, 1, 1, 64}, {false, 33, {}}});
    cases.push_back({"window_decode", {1, 5, 400, 2, 1, 64}, {true, 70, {}}});
    cases.push_back({"window_that_misses_all_keys", {1, 200, 20, 1, 1, 64}, {false, 10, {}}});
    cases.push_back({"documents", {1, 300, 300, 2, 1, 64}, {true, 0, {0, 1, 130, 130, 231, 300}}});
    cases.push_back({"documents_window", {1, 200, 200, 2, 2, 64}, {true, 20, {0, 97, 200}}});
    // More than the boundaries of one launch, empty ones among them.
    AttentionMask many{true, 0, {0}};
    for (std::int32_t end = 1; end <= 210; ++end) {
        many.cu_seqlens.push_back(end);
        if (end % 7 == 0) many.cu_seqlens.push_back(end);
    }
    cases.push_back({"documents_by_the_hundred", {1, 210, 210, 1, 1, 64}, many});
    return cases;
}

// For softcap and sinks: whole and ragged tiles, groups, rows and keys that nobody sees.
inline std::vector<FlashCase> method_flash_cases() {
    if (test_gpus().empty()) return {};
    return {{"causal_129", {1, 129, 129, 4, 2, 64}, {}},
            {"ragged", {2, 70, 141, 6, 2, 64}, {false, 0, {}}},
            {"more_queries_than_keys", {1, 150, 40, 3, 3, 64}, {}},
            {"documents_window", {1, 200, 200, 2, 2, 64}, {true, 20, {0, 97, 98, 200}}}};
}
// At every head width.
inline std::vector<FlashCase> width_flash_cases() {
    if (test_gpus().empty()) return {};
    std::vector<FlashCase> cases;
    for (std::int64_t d : {64, 96, 128, 256}) {
        cases.push_back({"head_dim_" + std::to_string(d), {1, 150, 150, 3, 1, d}, {}});
    }
    return cases;
}
inline std::vector<FlashMethod> wide_flash_methods() {
    return {{"both", 4.0, {1.0f, -1.5f}}, {"huge_sink", 0.0, {2000.0f, 3.0f}}};
}
template <typename Info>
std::string name_of_method_case(const Info& info) {
    const auto& [method, c, dtype] = info.param;
    return method.name + "_" + c.name + "_" + name_of(dtype);
}

}  // namespace evenkeel::testing
