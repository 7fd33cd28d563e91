// What changes logits and denominators of attention, as cases for the tests of every device.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "attention/flash_attention.h"

namespace evenkeel::testing {

struct FlashMethod {
    std::string name;
    double softcap = 0.0;
    std::vector<float> sinks;  // of heads 0, 1, ..., again from the first; empty: no sink
    double scale = 0.0;        // softmax_scale
};
inline void PrintTo(const FlashMethod& m, std::ostream* out) { *out << m.name; }

inline std::vector<FlashMethod> flash_methods() {
    return {{"cap_2", 2.0, {}},
            {"cap_50", 50.0, {}},
            // Logits of some 1e4 on Gaussian data.
            {"cap_50_of_large_logits", 50.0, {}, 300.0},
            {"off_by_one", 0.0, {0.0f}},
            {"sinks", 0.0, {0.5f, -2.0f, 3.25f}},
            {"huge_sinks", 0.0, {1e4f, -1e4f, 30.0f}},
            {"cap_with_sinks", 3.0, {1.0f, -1.5f}},
            {"cap_with_sinks_and_large_logits", 50.0, {49.0f, -50.0f}, 3.0}};
}

// Sinks on the CPU.
inline AttentionOptions with_method(const FlashMethod& method,
                                    const AttentionMask& mask,
                                    std::int64_t heads) {
    AttentionOptions options;
    options.mask = mask;
    options.softmax_scale = method.scale;
    options.softcap = method.softcap;
    if (method.sinks.empty()) return options;
    options.sink = Tensor::uninitialized({heads}, DType::kFloat32);
    for (std::int64_t h = 0; h < heads; ++h) {
        options.sink.data<float>()[h] =
            method.sinks[static_cast<std::size_t>(h) % method.sinks.size()];
    }
    return options;
}

}  // namespace evenkeel::testing
