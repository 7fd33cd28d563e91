// Training and validation sequences out of files of tokens (token_stream.h), or out of a blend of several.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "framework/data/blend.h"
#include "framework/data/dataset.h"
#include "framework/data/token_stream.h"

namespace evenkeel {

// Sequence s of a corpus is its tokens from s seq_len on: seq_len of them and the one that follows, which is the first
// of the next sequence. The order in which a corpus's sequences come is Sampler's, for each of its epochs; which corpus
// a sample is of is Blend's. Neither needs memory that grows with the corpora or with the run.
//
// Packing kDocuments: a batch has cu_seqlens, and no last token of a document has a target. A document that does not fit
// goes on in another sequence, as a document of its own. The validation part then begins with a document, so far as an
// index says where one does.
class TokenDataset final : public Dataset {
  public:
    // Throws kConfig for settings that do not fit together, and kIo for a file that can't be read or is not what its
    // format says.
    TokenDataset(const DataConfig& config, std::int64_t seq_len, std::int64_t vocab_size);

    std::int64_t vocab_size() const override { return vocab_size_; }
    std::int64_t train_tokens() const override;
    std::int64_t validation_tokens() const override;
    // One pass over every corpus.
    std::int64_t train_sequences() const override;
    std::int64_t validation_sequences() const override;
    std::uint64_t fingerprint() const override { return fingerprint_; }
    std::string description() const override;
    Batch train_batch(std::uint64_t seed, const std::vector<std::int64_t>& samples) const override;
    Batch validation_batch(const std::vector<std::int64_t>& sequences) const override;

    std::size_t num_corpora() const { return train_.size(); }
    // "2 corpora, Megatron u16, ..": a line for each.
    std::string describe() const;

  private:
    // Tokens [begin, end) of a stream.
    struct Part {
        std::shared_ptr<const TokenStream> stream;
        std::int64_t begin = 0, end = 0, sequences = 0;
    };
    struct Row {
        const Part* part;
        std::int64_t sequence;
    };
    Part make_part(const std::shared_ptr<const TokenStream>& stream,
                   std::int64_t begin,
                   std::int64_t end,
                   const char* use,
                   const char* advice) const;
    void split(const DataConfig& config, const std::shared_ptr<const TokenStream>& stream);
    Batch make_batch(const std::vector<Row>& rows) const;

    std::int64_t seq_len_;
    std::int64_t vocab_size_;
    DataConfig::Packing packing_;
    std::int64_t end_of_document_;
    bool has_documents_ = false;
    std::vector<Part> train_, validation_;
    std::unique_ptr<Blend> blend_;
    std::uint64_t fingerprint_ = 0;
};

}  // namespace evenkeel
