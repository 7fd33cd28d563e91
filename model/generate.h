// Text generation from a language model.
#pragma once

#include <cstdint>
#include <string>

#include "model/language_model.h"

namespace evenkeel {

struct SampleOptions {
    std::int64_t tokens = 200;
    double temperature = 0.8;  // 0: greedy (ties: the lowest token)
    std::uint64_t seed = 1;
};

// Continues the prompt's bytes ("" starts from a newline) and returns prompt and continuation. The same
// text on every rank and at any P up to rounding of logits. Collective over TP.
std::string generate(LanguageModel& model, const std::string& prompt, const SampleOptions& options);

}  // namespace evenkeel
