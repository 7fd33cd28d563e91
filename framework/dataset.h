// Byte-level text: every byte is a token, the vocabulary has 256 of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/config.h"
#include "framework/tensor.h"

namespace evenkeel {

struct DataConfig {
    // A text file, or a directory whose regular text files (not those of its directories, no links, no
    // files with NUL bytes) are joined in name order.
    std::string path;
    double validation_fraction = 0.05;  // the last part of the text, never trained on
    void visit_fields(ConfigVisitor& v);
};

struct Batch {
    Tensor tokens;   // [B, T] int32
    Tensor targets;  // [B, T] int32: the token that follows each
};

class ByteDataset {
  public:
    // Reads the text into memory. Throws kConfig naming the path and what to change when it is missing,
    // empty, binary only, or shorter than one sequence of seq_len + 1 in either split; kIo when it can't
    // be read.
    ByteDataset(const DataConfig& config, std::int64_t seq_len);

    std::int64_t vocab_size() const { return 256; }
    std::int64_t train_bytes() const { return static_cast<std::int64_t>(split_); }
    std::int64_t validation_bytes() const {
        return static_cast<std::int64_t>(text_.size() - split_);
    }
    // Number of whole training sequences an epoch has.
    std::int64_t train_sequences() const;
    std::int64_t validation_sequences() const;
    // A hash of the text and the split: a resumed run checks that its data are the same.
    std::uint64_t fingerprint() const { return fingerprint_; }

    // Copies whole sequences, by number, of one split. Sequence s starts at byte s * seq_len; the last
    // target of one is the first token of the next.
    Batch train_batch(const std::vector<std::int64_t>& sequences) const;
    Batch validation_batch(const std::vector<std::int64_t>& sequences) const;

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

// Which sequences a step sees: a seeded permutation of each epoch, a pure function of (seed, global
// sample index). The index is all there is to save and restore, and neither the data-parallel size nor
// the number of micro-batches changes what a step sees.
class Sampler {
  public:
    Sampler(std::int64_t num_sequences, std::uint64_t seed);
    // Sequence number of global sample `index` (0, 1, 2, ... over the whole run).
    std::int64_t sequence(std::int64_t index) const;

  private:
    std::int64_t num_sequences_;
    std::uint64_t seed_;
};

}  // namespace evenkeel
