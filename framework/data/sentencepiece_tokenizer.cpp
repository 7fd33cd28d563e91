#include <sentencepiece_processor.h>

#include <algorithm>

#include "framework/data/tokenizer.h"
#include "framework/error.h"

namespace evenkeel {
namespace {

class SentencePieceTokenizer final : public Tokenizer {
  public:
    explicit SentencePieceTokenizer(const std::string& path) {
        const auto status = processor_.Load(path);
        EVENKEEL_CHECK_CODE(status.ok(), ErrorCode::kIo, "tokenizer", path,
                            ": cannot be read as a SentencePiece model: ", status.ToString());
    }
    std::int64_t vocab_size() const override { return processor_.GetPieceSize(); }
    std::int32_t end_of_document() const override { return processor_.eos_id(); }
    std::vector<std::int32_t> encode(std::string_view text) const override {
        std::vector<int> ids;
        const auto status = processor_.Encode({text.data(), text.size()}, &ids);
        EVENKEEL_CHECK_CODE(status.ok(), ErrorCode::kIo, "tokenizer",
                            "cannot encode a text: ", status.ToString());
        return {ids.begin(), ids.end()};
    }
    std::string decode(std::span<const std::int32_t> tokens) const override {
        std::vector<int> ids;
        for (const std::int32_t token : tokens) {
            if (token >= 0 && token < vocab_size()) ids.push_back(token);
        }
        std::string text;
        const auto status = processor_.Decode(ids, &text);
        EVENKEEL_CHECK_CODE(status.ok(), ErrorCode::kIo, "tokenizer",
                            "cannot decode tokens: ", status.ToString());
        return text;
    }

  private:
    sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

bool has_sentencepiece() { return true; }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& path) {
    return std::make_unique<SentencePieceTokenizer>(path);
}

}  // namespace evenkeel
