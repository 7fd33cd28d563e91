#include "framework/data/tokenizer.h"

#include <filesystem>

#include "framework/data/token_stream.h"
#include "framework/error.h"
#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/json_depth.h"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;

class ByteTokenizer final : public Tokenizer {
  public:
    std::int64_t vocab_size() const override { return 256; }
    std::int32_t end_of_document() const override { return 0; }
    std::vector<std::int32_t> encode(std::string_view text) const override {
        std::vector<std::int32_t> tokens;
        tokens.reserve(text.size());
        for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
        return tokens;
    }
    std::string decode(std::span<const std::int32_t> tokens) const override {
        std::string text;
        for (const std::int32_t token : tokens) {
            if (token >= 0 && token < 256) text += static_cast<char>(token);
        }
        return text;
    }
};

std::string description_path(const std::string& path) { return token_prefix(path) + ".json"; }

}  // namespace

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
    if (name == "bytes") return std::make_unique<ByteTokenizer>();
    EVENKEEL_CHECK_CODE(!name.ends_with(".json"), ErrorCode::kConfig, "tokenizer", name,
                        ": got a tokenizer of Hugging Face, which nothing here reads; want bytes "
                        "or a SentencePiece model (often tokenizer.model beside it), or files of "
                        "tokens that its own library has written");
    std::error_code ignored;
    EVENKEEL_CHECK_CODE(std::filesystem::is_regular_file(name, ignored), ErrorCode::kConfig,
                        "tokenizer", "got ", name.empty() ? "nothing" : name,
                        ", which is no file; want bytes or a SentencePiece model");
    return make_sentencepiece_tokenizer(name);
}

std::string to_json(const TokenDescription& description) {
    const Json json = {{"tokenizer", description.tokenizer},
                       {"vocab_size", description.vocab_size},
                       {"end_of_document", description.end_of_document}};
    return json.dump(2) + "\n";
}

TokenDescription parse_token_description(std::string_view json, const std::string& name) {
    check_json_depth("data", json, name);
    const Json parsed = Json::parse(json, nullptr, false);
    const auto check = [&](bool condition, const char* what) {
        EVENKEEL_CHECK_CODE(condition, ErrorCode::kIo, "data", name, ": ", what);
    };
    check(parsed.is_object(), "want a JSON object that describes tokens");
    const auto value = [&](const char* key) { return parsed.value(key, Json()); };
    check(value("tokenizer").is_string(), "tokenizer: want a string");
    check(value("vocab_size").is_number_integer(), "vocab_size: want a whole number");
    check(value("end_of_document").is_number_integer(), "end_of_document: want a whole number");
    return {value("tokenizer").get<std::string>(), value("vocab_size").get<std::int64_t>(),
            value("end_of_document").get<std::int64_t>()};
}

std::optional<TokenDescription> read_token_description(const std::string& path) {
    const std::string file = description_path(path);
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(file, ignored)) return std::nullopt;
    return parse_token_description(read_file(file), file);
}

std::string tokenizer_of(const std::string& path) {
    const auto description = read_token_description(path);
    if (!description) return "";
    if (description->tokenizer == "bytes") return "bytes";
    const std::filesystem::path name = description->tokenizer;
    // A description from elsewhere names files beside it only.
    EVENKEEL_CHECK_CODE(!name.empty() && name == name.filename(), ErrorCode::kIo, "data",
                        description_path(path), ": tokenizer: got ", description->tokenizer,
                        ", want bytes or the name of a file beside it");
    return (std::filesystem::path(description_path(path)).parent_path() / name).string();
}

}  // namespace evenkeel
