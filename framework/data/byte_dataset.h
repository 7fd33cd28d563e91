// Byte-level text: every byte is a token, the vocabulary has 256 of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/data/dataset.h"

namespace evenkeel {

class ByteDataset final : public Dataset {
  public:
    // Reads the text into memory. Throws kConfig naming the path and what to change when it is missing,
    // empty, binary only, or shorter than one sequence of seq_len + 1 in either split; kIo when it can't
    // be read.
    ByteDataset(const DataConfig& config, std::int64_t seq_len);

    std::int64_t vocab_size() const override { return 256; }
    std::int64_t train_tokens() const override { return static_cast<std::int64_t>(split_); }
    std::int64_t validation_tokens() const override {
        return static_cast<std::int64_t>(text_.size() - split_);
    }
    // Number of whole training sequences an epoch has.
    std::int64_t train_sequences() const override;
    std::int64_t validation_sequences() const override;
    // A hash of the text and the split: a resumed run checks that its data are the same.
    std::uint64_t fingerprint() const override { return fingerprint_; }
    std::string description() const override;

    // Sequence s starts at byte s * seq_len; the last
    // target of one is the first token of the next.
    Batch train_batch(std::uint64_t seed, const std::vector<std::int64_t>& samples) const override;
    Batch validation_batch(const std::vector<std::int64_t>& sequences) const override;

    // Entropies of the validation text in nats per byte under byte frequencies (unigram) and
    // previous-byte conditionals (bigram) counted on the validation text itself: what a model has learned
    // nothing beyond when its loss equals them.
    double unigram_entropy() const;
    double bigram_entropy() const;

    const std::string& text() const { return text_; }

  private:
    Batch make_batch(std::size_t first_byte,
                     std::int64_t num_sequences,
                     const std::vector<std::int64_t>& sequences) const;
    std::string text_;
    std::size_t split_ = 0;
    std::int64_t seq_len_ = 0;
    std::uint64_t fingerprint_ = 0;
};

}  // namespace evenkeel
