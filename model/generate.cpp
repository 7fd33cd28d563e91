#include "model/generate.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "framework/rng.h"

namespace evenkeel {
namespace {

std::int32_t argmax(const float* logits, std::int64_t count) {
    return static_cast<std::int32_t>(std::max_element(logits, logits + count) - logits);
}

// Draws from softmax(logits / temperature) by inverting its cumulative sum at `uniform` in [0, 1).
std::int32_t draw(const float* logits, std::int64_t count, double temperature, double uniform) {
    const double largest = *std::max_element(logits, logits + count);
    std::vector<double> cumulative(static_cast<std::size_t>(count));
    double total = 0.0;
    for (std::int64_t i = 0; i < count; ++i) {
        total += std::exp((logits[i] - largest) / temperature);
        cumulative[static_cast<std::size_t>(i)] = total;
    }
    const auto at = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * total);
    return static_cast<std::int32_t>(std::min(at - cumulative.begin(), count - 1));
}

Tensor as_tensor(std::span<const std::int32_t> ids) {
    const Tensor tokens =
        Tensor::uninitialized({1, static_cast<std::int64_t>(ids.size())}, DType::kInt32);
    std::copy(ids.begin(), ids.end(), tokens.data<std::int32_t>());
    return tokens;
}

}  // namespace

std::vector<std::int32_t> generate_tokens(LanguageModel& model,
                                          std::vector<std::int32_t> prompt,
                                          const SampleOptions& options,
                                          std::int64_t choices,
                                          std::int32_t last) {
    EVENKEEL_CHECK(!prompt.empty(), "generate", "prompt: got no token, want one or more");
    EVENKEEL_CHECK(choices >= 1 && choices <= model.config().vocab_size, "generate",
                   "choices: got ", choices, ", want 1 to ", model.config().vocab_size);
    EVENKEEL_CHECK(options.tokens >= 0, "generate", "tokens: got ", options.tokens,
                   ", want 0 or more");
    EVENKEEL_CHECK(options.temperature >= 0.0, "generate", "temperature: got ", options.temperature,
                   ", want 0 or more");
    const CounterRng rng(options.seed, purpose("sampling"));
    std::vector<std::int32_t> ids = std::move(prompt);
    // No more than the text can fill: max_seq_len may be far beyond.
    const std::int64_t capacity = std::min(model.config().max_seq_len,
                                           static_cast<std::int64_t>(ids.size()) + options.tokens);

    std::unique_ptr<LanguageModel::DecodeState> state;
    std::int64_t decoded = 0;  // tokens that the caches hold
    for (std::int64_t i = 0; i < options.tokens; ++i) {
        std::size_t next = 1;
        if (state == nullptr || decoded == capacity) {
            // At the end of the trained context, go on from its second half.
            const auto kept = static_cast<std::size_t>(
                state == nullptr ? capacity : std::max<std::int64_t>(1, capacity / 2));
            next = std::min(kept, ids.size());
            state = model.start_decoding(1, capacity);
            decoded = 0;
        }
        const Tensor logits = model.decode(*state, as_tensor(std::span(ids).last(next)));  // [1, V]
        decoded += static_cast<std::int64_t>(next);
        const float* row = logits.data<float>();
        const std::int32_t token = options.temperature == 0.0
                                       ? argmax(row, choices)
                                       : draw(row, choices, options.temperature, rng.uniform(i));
        if (token == last) break;
        ids.push_back(token);
    }
    return ids;
}

std::string generate(LanguageModel& model,
                     const std::string& prompt,
                     const SampleOptions& options) {
    // Tokens are bytes: those beyond 255 only make a vocabulary divisible, and no text holds them.
    const std::int64_t choices = std::min<std::int64_t>(model.config().vocab_size, 256);
    const std::string text = prompt.empty() ? "\n" : prompt;
    std::vector<std::int32_t> ids;
    for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
    std::string out;
    for (const std::int32_t id : generate_tokens(model, std::move(ids), options, choices)) {
        out.push_back(static_cast<char>(id));
    }
    return out.substr(prompt.empty() ? 1 : 0);  // the newline is not part of the result
}

}  // namespace evenkeel
