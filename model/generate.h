// Text generation from a language model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/language_model.h"

namespace evenkeel {

struct SampleOptions {
    std::int64_t tokens = 200;
    double temperature = 0.8;  // 0: greedy (ties: the lowest token)
    std::uint64_t seed = 1;
};

// Continues the prompt, of one token or more; returns prompt and continuation. Draws among the first `choices` tokens
// of the vocabulary, and ends before options.tokens with `last`, if that is drawn. The same tokens on every rank, and at
// any P up to rounding of logits. Collective over TP.
std::vector<std::int32_t> generate_tokens(LanguageModel& model,
                                          std::vector<std::int32_t> prompt,
                                          const SampleOptions& options,
                                          std::int64_t choices,
                                          std::int32_t last = -1);

// Continues the prompt's bytes ("" starts from a newline) and returns prompt and continuation. As
// generate_tokens.
std::string generate(LanguageModel& model, const std::string& prompt, const SampleOptions& options);

}  // namespace evenkeel
