#include "framework/data/dataset.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "framework/data/byte_dataset.h"
#include "framework/data/token_dataset.h"
#include "framework/data/tokenizer.h"
#include "framework/error.h"

namespace evenkeel {
namespace {

constexpr const char* kPackingNames[] = {"documents", "stream"};

std::vector<std::string> split_at_commas(const std::string& text) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0; !text.empty() && begin <= text.size();) {
        const std::size_t end = std::min(text.find(',', begin), text.size());
        parts.push_back(text.substr(begin, end - begin));
        begin = end + 1;
    }
    return parts;
}

std::vector<std::string> split_paths(const std::string& text) {
    std::error_code ignored;
    if (std::filesystem::exists(text, ignored)) return {text};  // a name with commas in it
    const std::vector<std::string> parts = split_at_commas(text);
    const bool several = parts.size() > 1 && std::all_of(parts.begin(), parts.end(), is_token_file);
    return several ? parts : std::vector<std::string>{text};
}

// Of several names none may be of anything but tokens: the one that is to blame is named.
void check_token_files(const char* setting, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
        EVENKEEL_CHECK_CODE(is_token_file(part), ErrorCode::kConfig, "dataset", setting, ": got \"",
                            part,
                            "\", which is no file of tokens; want .bin files, or the names of "
                            "pairs of .bin and .idx (evenkeel data build makes them)");
    }
}

// A list of which one is tokens is meant as a list of tokens.
void check_list(const char* setting, const std::string& text) {
    std::error_code ignored;
    if (std::filesystem::exists(text, ignored)) return;
    const std::vector<std::string> parts = split_at_commas(text);
    if (parts.size() > 1 && std::any_of(parts.begin(), parts.end(), is_token_file)) {
        check_token_files(setting, parts);
    }
}

}  // namespace

void DataConfig::visit_fields(ConfigVisitor& v) {
    v.field("path", path,
            "text file, or directory whose text files are joined in name order; or files of tokens "
            "(.bin, .bin with .idx), with commas between several");
    v.field("validation_fraction", validation_fraction,
            "last part of the text, or of each file of tokens, held out for validation");
    v.field("validation_path", validation_path,
            "files of tokens to validate on, instead of a part of those in path");
    v.field("weights", weights,
            "shares of several files of tokens in training, 0.7,0.3; empty: by their length");
    v.choice("packing", packing, kPackingNames,
             "documents of tokens: each by itself for attention, positions and loss; or all as one "
             "stream");
    v.field("end_of_document", end_of_document,
            "token that ends a document in files of tokens without an index; -1: none");
    v.field("tokenizer", tokenizer,
            "of generated text: bytes, or a SentencePiece model; empty: as the data says");
}

bool DataConfig::has_tokens() const {
    const std::vector<std::string> all = paths();
    return !all.empty() && std::all_of(all.begin(), all.end(), is_token_file);
}

std::vector<std::string> DataConfig::paths() const { return split_paths(path); }

std::vector<std::string> DataConfig::validation_paths() const {
    return split_paths(validation_path);
}

std::vector<double> DataConfig::weight_values() const {
    std::vector<double> values;
    for (const std::string& part : split_at_commas(weights)) {
        char* end = nullptr;
        values.push_back(std::strtod(part.c_str(), &end));
        EVENKEEL_CHECK_CODE(!part.empty() && *end == '\0', ErrorCode::kConfig, "dataset",
                            "data.weights: got \"", part, "\", want numbers with commas between");
    }
    return values;
}

std::unique_ptr<Dataset> open_dataset(const DataConfig& config,
                                      std::int64_t seq_len,
                                      std::int64_t vocab_size) {
    check_list("data.path", config.path);
    if (config.has_tokens()) {
        check_list("data.validation_path", config.validation_path);
        if (!config.validation_path.empty()) {
            check_token_files("data.validation_path", config.validation_paths());
        }
        for (const std::string& path : config.paths()) {
            const auto described = read_token_description(path);
            EVENKEEL_CHECK_CODE(!described || described->vocab_size <= vocab_size,
                                ErrorCode::kConfig, "dataset", "model.vocab_size: got ", vocab_size,
                                ", want ", described ? described->vocab_size : 0,
                                " or more, as data.path=", path, " has tokens of that vocabulary");
        }
        return std::make_unique<TokenDataset>(config, seq_len, vocab_size);
    }
    for (const auto& [name, value] :
         {std::pair{"weights", &config.weights}, {"validation_path", &config.validation_path}}) {
        EVENKEEL_CHECK_CODE(value->empty(), ErrorCode::kConfig, "dataset", "data.", name, ": got ",
                            *value,
                            " and a text in data.path, want files of tokens there "
                            "(evenkeel data build makes them)");
    }
    return std::make_unique<ByteDataset>(config, seq_len);
}

}  // namespace evenkeel
