#include "launch/run_text.h"

#include <algorithm>
#include <utility>

namespace evenkeel {

std::unique_ptr<Tokenizer> tokenizer_of_run(const RunConfig& config) {
    std::string name = config.data.tokenizer;
    if (name.empty() && config.data.has_tokens()) name = tokenizer_of(config.data.paths().front());
    if (name.empty()) return nullptr;
    auto tokenizer = make_tokenizer(name);
    EVENKEEL_CHECK_CODE(tokenizer->vocab_size() <= config.model.vocab_size, ErrorCode::kConfig,
                        "tokenizer", name, ": got ", tokenizer->vocab_size(),
                        " tokens, want at most ", config.model.vocab_size, " (model.vocab_size)");
    return tokenizer;
}

std::string generate_text(LanguageModel& model,
                          const Tokenizer* tokenizer,
                          const std::string& prompt,
                          const SampleOptions& options) {
    if (tokenizer == nullptr) return generate(model, prompt, options);
    const std::int32_t end = tokenizer->end_of_document();
    std::vector<std::int32_t> ids = tokenizer->encode(prompt);
    const bool starts = ids.empty();
    if (starts) ids.push_back(std::max(end, 0));
    std::vector<std::int32_t> tokens =
        generate_tokens(model, std::move(ids), options, tokenizer->vocab_size(), end);
    if (starts) tokens.erase(tokens.begin());
    return tokenizer->decode(tokens);
}

const char* unit_of(const RunConfig& config) { return config.data.has_tokens() ? "token" : "byte"; }

}  // namespace evenkeel
