// Sequences of tokens to train and to validate on. What a step sees is a pure function of the data, a seed and
// the number of the sample: the same on any number of ranks, and after any restart.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/config.h"
#include "framework/data/batch.h"

namespace evenkeel {

struct DataConfig {
    enum class Packing { kDocuments, kStream };
    // A text file, or a directory whose regular text files (not those of its directories, no links, no
    // files with NUL bytes) are joined in name order; or files of tokens (token_stream.h), with commas between several.
    std::string path;
    double validation_fraction = 0.05;  // the last part of each file, never trained on
    // The rest is for files of tokens only.
    std::string validation_path;  // files held out instead of a part of those of `path`
    std::string weights;          // "0.7,0.3": shares of the files in training; "": by their length
    Packing packing = Packing::kDocuments;
    // The token after which a document ends where no index says so; -1: none.
    std::int64_t end_of_document = -1;
    // For generated text: "bytes", or a SentencePiece model; "": what the data's own description names (tokenizer.h).
    std::string tokenizer;
    void visit_fields(ConfigVisitor& v);

    // Whether the paths name tokens rather than text.
    bool has_tokens() const;
    std::vector<std::string> paths() const;
    std::vector<std::string> validation_paths() const;
    std::vector<double> weight_values() const;  // throws kConfig for what is no number
};

class Dataset {
  public:
    virtual ~Dataset() = default;

    virtual std::int64_t vocab_size() const = 0;  // every token is below
    virtual std::int64_t train_tokens() const = 0;
    virtual std::int64_t validation_tokens() const = 0;
    virtual std::int64_t train_sequences() const = 0;  // that an epoch has
    virtual std::int64_t validation_sequences() const = 0;
    // Of everything that decides what the numbers of samples stand for, beside the seed: a resumed run checks
    // that it is the same.
    virtual std::uint64_t fingerprint() const = 0;
    // JSON: what goes into it, for a message that says what has changed.
    virtual std::string description() const = 0;

    // Samples of the training order that belongs to `seed`, by their numbers 0, 1, 2, .. over the whole run.
    virtual Batch train_batch(std::uint64_t seed,
                              const std::vector<std::int64_t>& samples) const = 0;
    // Validation sequences by their numbers.
    virtual Batch validation_batch(const std::vector<std::int64_t>& sequences) const = 0;
};

// Of bytes for a text, else of tokens below vocab_size.
std::unique_ptr<Dataset> open_dataset(const DataConfig& config,
                                      std::int64_t seq_len,
                                      std::int64_t vocab_size);

}  // namespace evenkeel
