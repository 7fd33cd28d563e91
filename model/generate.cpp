#include "model/generate.h"

#include <algorithm>
#include <cmath>
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

Tensor as_tokens(const std::string& bytes) {
    const auto count = static_cast<std::int64_t>(bytes.size());
    const Tensor tokens = Tensor::uninitialized({1, count}, DType::kInt32);
    std::transform(bytes.begin(), bytes.end(), tokens.data<std::int32_t>(),
                   [](char byte) { return static_cast<unsigned char>(byte); });
    return tokens;
}

}  // namespace

std::string generate(LanguageModel& model,
                     const std::string& prompt,
                     const SampleOptions& options) {
    // Tokens are bytes: those beyond 255 only make a vocabulary divisible, and no text holds them.
    const std::int64_t choices = std::min<std::int64_t>(model.config().vocab_size, 256);
    EVENKEEL_CHECK(options.tokens >= 0, "generate", "tokens: got ", options.tokens,
                   ", want 0 or more");
    EVENKEEL_CHECK(options.temperature >= 0.0, "generate", "temperature: got ", options.temperature,
                   ", want 0 or more");
    const CounterRng rng(options.seed, purpose("sampling"));
    std::string text = prompt.empty() ? "\n" : prompt;
    const std::size_t first = prompt.empty() ? 1 : 0;  // the newline is not part of the result
    // No more than the text can fill: max_seq_len may be far beyond.
    const std::int64_t capacity = std::min(model.config().max_seq_len,
                                           static_cast<std::int64_t>(text.size()) + options.tokens);

    std::unique_ptr<LanguageModel::DecodeState> state;
    std::int64_t decoded = 0;  // tokens of the text that the caches hold
    for (std::int64_t i = 0; i < options.tokens; ++i) {
        std::string next = text.substr(text.size() - 1);
        if (state == nullptr || decoded == capacity) {
            // At the end of the trained context, go on from its second half.
            const auto kept = static_cast<std::size_t>(
                state == nullptr ? capacity : std::max<std::int64_t>(1, capacity / 2));
            next = text.substr(text.size() - std::min(kept, text.size()));
            state = model.start_decoding(1, capacity);
            decoded = 0;
        }
        const Tensor logits = model.decode(*state, as_tokens(next));  // [1, V]
        decoded += static_cast<std::int64_t>(next.size());
        const float* row = logits.data<float>();
        const std::int32_t token = options.temperature == 0.0
                                       ? argmax(row, choices)
                                       : draw(row, choices, options.temperature, rng.uniform(i));
        text.push_back(static_cast<char>(token));
    }
    return text.substr(first);
}

}  // namespace evenkeel
