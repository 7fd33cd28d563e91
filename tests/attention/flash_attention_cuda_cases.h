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
// For the kernels of fp32, whose tiles are 16 rows (or keys) by 32: what the cases above have, in small, since
// the emulator takes its time over products without tensor cores.
inline std::vector<FlashCase> fp32_flash_cases() {
    if (test_gpus().empty()) return {};
    const AttentionMask kCausal{}, kBidirectional{false, 0, {}};
    return {{"one", {16, 1, 1, 2, 1, 64}, kCausal},
            {"causal_33", {1, 33, 33, 2, 1, 64}, kCausal},
            {"causal_48", {1, 48, 48, 1, 1, 64}, kCausal},
            {"head_dim_96", {1, 18, 35, 2, 2, 96}, kBidirectional},
            {"head_dim_128", {1, 20, 45, 2, 1, 128}, kCausal},
            {"head_dim_256", {1, 17, 33, 1, 1, 256}, kBidirectional},
            {"groups_of_three", {2, 19, 19, 6, 2, 64}, kBidirectional},
            {"decode_one", {3, 1, 70, 2, 1, 64}, kCausal},
            {"more_queries_than_keys", {1, 50, 10, 2, 1, 64}, kCausal},
            {"more_queries_bidirectional", {1, 50, 3, 1, 1, 64}, kBidirectional},
            {"window", {1, 70, 70, 1, 1, 64}, {true, 20, {}}},
            {"window_two_sided", {1, 50, 50, 1, 1, 64}, {false, 9, {}}},
            {"window_that_misses_all_keys", {1, 60, 8, 1, 1, 64}, {false, 5, {}}},
            {"documents", {1, 70, 70, 1, 1, 64}, {true, 0, {0, 1, 33, 33, 60, 70}}},
            {"documents_window", {1, 40, 40, 2, 2, 64}, {true, 6, {0, 17, 40}}}};
}
inline std::vector<FlashCase> fp32_method_flash_cases() {
    if (test_gpus().empty()) return {};
    return {{"causal_33", {1, 33, 33, 2, 1, 64}, {}},
            {"more_queries_than_keys", {1, 35, 10, 3, 3, 64}, {}},
            {"documents_window", {1, 40, 40, 1, 1, 64}, {true, 7, {0, 19, 20, 40}}}};
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
