#include "framework/data/byte_dataset.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "framework/data/sampler.h"
#include "framework/data/text_files.h"
#include "framework/data/token_stream.h"
#include "framework/error.h"
#include "framework/rng.h"
#include "framework/storage/checkpoint.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kVocabulary = 256;

std::string read_text(const std::string& path) {
    const auto check = [&](bool condition, const auto&... what) {
        EVENKEEL_CHECK_CODE(condition, ErrorCode::kConfig, "dataset", "data.path: got ",
                            path.empty() ? "nothing" : path, what...);
    };
    check(!path.empty(), ", want a text file or a directory of text files");
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    check(status.type() != fs::file_type::not_found,
          ", which does not exist; want a text file or a directory of text files "
          "(launch/fortunes.sh FILE makes one)");
    // Every rank reads the text by itself, so it can't be a pipe; a device may never end.
    check(fs::is_regular_file(status) || fs::is_directory(status) ||
              status.type() == fs::file_type::none,
          ", which is neither a file nor a directory; want a text file or a directory of text "
          "files");
    if (!fs::is_directory(status)) {
        std::string text = read_file(path);
        check(!text.empty(), ", which is empty; want a text file");
        check(is_text(text), ", which is not text (byte ", text.find('\0'),
              " is NUL); want a text file");
        return text;
    }
    std::string text;
    std::size_t skipped = 0;
    for (const std::string& file : regular_files(path, "dataset")) {
        check(!is_token_file(file), ", a directory with ", fs::path(file).filename().string(),
              " in it, a file of tokens; want the file's own name, or a directory of text files");
        const std::string bytes = read_file(file);
        if (is_text(bytes)) {
            text += bytes;
        } else {
            ++skipped;
        }
    }
    check(!text.empty(), ", a directory without text (", skipped,
          " binary files); want a directory of text files");
    tell_left_out(path, skipped);
    return text;
}

double entropy(const std::vector<std::int64_t>& counts, std::int64_t total) {
    double sum = 0.0;
    for (std::int64_t count : counts) {
        if (count > 0) {
            const double p = static_cast<double>(count) / static_cast<double>(total);
            sum -= p * std::log(p);
        }
    }
    return sum;
}

}  // namespace

ByteDataset::ByteDataset(const DataConfig& config, std::int64_t seq_len) : seq_len_(seq_len) {
    const double fraction = config.validation_fraction;
    EVENKEEL_CHECK_CODE(fraction > 0.0 && fraction < 1.0, ErrorCode::kConfig, "dataset",
                        "data.validation_fraction: got ", fraction,
                        ", want a number between 0 and 1");
    EVENKEEL_CHECK_CODE(seq_len >= 1, ErrorCode::kConfig, "dataset", "trainer.seq_len: got ",
                        seq_len, ", want 1 or more");
    text_ = read_text(config.path);
    split_ = text_.size() -
             static_cast<std::size_t>(std::floor(static_cast<double>(text_.size()) * fraction));
    const std::int64_t shortest = std::min(train_tokens(), validation_tokens());
    EVENKEEL_CHECK_CODE(shortest > seq_len, ErrorCode::kConfig, "dataset", "data.path: got ",
                        config.path, " of ", text_.size(), " bytes, ", train_tokens(),
                        " to train and ", validation_tokens(), " to validate on, want more than ",
                        seq_len, " (trainer.seq_len) in each: a longer text, a shorter seq_len, ",
                        "or another data.validation_fraction");
    fingerprint_ = purpose(concat(purpose(text_), " ", text_.size(), " ", split_));
}

std::string ByteDataset::description() const {
    return concat("{\"text\": {\"bytes\": ", text_.size(), ", \"hash\": \"", std::hex,
                  purpose(text_), std::dec, "\"}, \"bytes to train on\": ", split_, "}");
}

std::int64_t ByteDataset::train_sequences() const { return (train_tokens() - 1) / seq_len_; }
std::int64_t ByteDataset::validation_sequences() const {
    return (validation_tokens() - 1) / seq_len_;
}

Batch ByteDataset::make_batch(std::size_t first_byte,
                              std::int64_t num_sequences,
                              const std::vector<std::int64_t>& sequences) const {
    const auto rows = static_cast<std::int64_t>(sequences.size());
    Batch batch;
    batch.tokens = Tensor::uninitialized({rows, seq_len_}, DType::kInt32);
    batch.targets = Tensor::uninitialized({rows, seq_len_}, DType::kInt32);
    std::int32_t* tokens = batch.tokens.data<std::int32_t>();
    std::int32_t* targets = batch.targets.data<std::int32_t>();
    for (std::int64_t sequence : sequences) {
        EVENKEEL_CHECK(0 <= sequence && sequence < num_sequences, "dataset", "sequence: got ",
                       sequence, ", want 0 to ", num_sequences - 1);
        const char* from = text_.data() + first_byte + sequence * seq_len_;
        for (std::int64_t t = 0; t < seq_len_; ++t) {
            *tokens++ = static_cast<unsigned char>(from[t]);
            *targets++ = static_cast<unsigned char>(from[t + 1]);
        }
    }
    return batch;
}

Batch ByteDataset::train_batch(std::uint64_t seed, const std::vector<std::int64_t>& samples) const {
    const Sampler sampler(train_sequences(), seed);
    std::vector<std::int64_t> sequences;
    for (const std::int64_t sample : samples) sequences.push_back(sampler.sequence(sample));
    return make_batch(0, train_sequences(), sequences);
}

Batch ByteDataset::validation_batch(const std::vector<std::int64_t>& sequences) const {
    return make_batch(split_, validation_sequences(), sequences);
}

double ByteDataset::unigram_entropy() const {
    std::vector<std::int64_t> counts(kVocabulary);
    for (std::size_t i = split_; i < text_.size(); ++i) {
        ++counts[static_cast<unsigned char>(text_[i])];
    }
    return entropy(counts, validation_tokens());
}

double ByteDataset::bigram_entropy() const {
    std::vector<std::int64_t> pairs(kVocabulary * kVocabulary), firsts(kVocabulary);
    for (std::size_t i = split_; i + 1 < text_.size(); ++i) {
        const auto a = static_cast<unsigned char>(text_[i]);
        const auto b = static_cast<unsigned char>(text_[i + 1]);
        ++pairs[a * kVocabulary + b];
        ++firsts[a];
    }
    // H(second | first) = H(first, second) - H(first).
    const std::int64_t total = validation_tokens() - 1;
    return entropy(pairs, total) - entropy(firsts, total);
}

}  // namespace evenkeel
