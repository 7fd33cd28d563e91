// Text to tokens and back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace evenkeel {

class Tokenizer {
  public:
    virtual ~Tokenizer() = default;
    virtual std::int64_t vocab_size() const = 0;
    // What ends a document unless another token is asked for; -1: there is none.
    virtual std::int32_t end_of_document() const = 0;
    // From any thread. Throws kIo for text that it can't take.
    virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
    // Ids outside the vocabulary give nothing.
    virtual std::string decode(std::span<const std::int32_t> tokens) const = 0;
};

// "bytes": every byte is a token, and a document is ended by byte 0, which no text has. Else the path of a
// SentencePiece model. Throws kConfig for what is neither, such as a tokenizer.json of Hugging Face, and kNotBuilt for
// a model where this build has no SentencePiece.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name);
std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& path);
bool has_sentencepiece();

// What `evenkeel data build` says of the tokens in PREFIX.bin: PREFIX.json.
struct TokenDescription {
    std::string tokenizer;  // "bytes", or a file beside PREFIX.json
    std::int64_t vocab_size = 0;
    std::int64_t end_of_document = -1;
};
std::string to_json(const TokenDescription& description);
// path: of a file of tokens. Nothing where there is no description; throws kIo for one that is none.
std::optional<TokenDescription> read_token_description(const std::string& path);
TokenDescription parse_token_description(std::string_view json, const std::string& name);

// What make_tokenizer takes for a file of tokens: by its description, "" where it has none.
std::string tokenizer_of(const std::string& path);

}  // namespace evenkeel
