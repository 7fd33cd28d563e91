#include "framework/data/token_dataset.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "framework/data/sampler.h"
#include "framework/error.h"
#include "framework/rng.h"

namespace evenkeel {
namespace {

constexpr std::uint64_t kSeedStride = 0x9e3779b97f4a7c15u;

std::vector<std::shared_ptr<const TokenStream>> open_streams(const std::vector<std::string>& paths,
                                                             std::int64_t vocab_size,
                                                             std::int64_t end_of_document) {
    std::vector<std::shared_ptr<const TokenStream>> streams;
    for (const std::string& path : paths) {
        streams.push_back(std::make_shared<TokenStream>(path, vocab_size, end_of_document));
    }
    return streams;
}

}  // namespace

TokenDataset::TokenDataset(const DataConfig& config, std::int64_t seq_len, std::int64_t vocab_size)
    : seq_len_(seq_len),
      vocab_size_(vocab_size),
      packing_(config.packing),
      end_of_document_(config.end_of_document) {
    EVENKEEL_CHECK_CODE(seq_len >= 1, ErrorCode::kConfig, "dataset", "trainer.seq_len: got ",
                        seq_len, ", want 1 or more");
    EVENKEEL_CHECK_CODE(config.end_of_document >= -1 && config.end_of_document < vocab_size,
                        ErrorCode::kConfig, "dataset", "data.end_of_document: got ",
                        config.end_of_document, ", want a token below model.vocab_size (",
                        vocab_size, "), or -1 for none");
    const std::vector<std::string> paths = config.paths();
    const auto streams = open_streams(paths, vocab_size, config.end_of_document);
    if (config.validation_path.empty()) {
        for (const auto& stream : streams) split(config, stream);
    } else {
        const char* const advice = "a longer file or a shorter seq_len";
        for (const auto& stream : streams) {
            train_.push_back(make_part(stream, 0, stream->num_tokens(), "train", advice));
        }
        for (const auto& stream :
             open_streams(config.validation_paths(), vocab_size, config.end_of_document)) {
            validation_.push_back(
                make_part(stream, 0, stream->num_tokens(), "validate on", advice));
        }
    }
    std::vector<double> weights = config.weight_values();
    if (weights.empty()) {
        for (const Part& part : train_) weights.push_back(static_cast<double>(part.sequences));
    }
    EVENKEEL_CHECK_CODE(weights.size() == train_.size(), ErrorCode::kConfig, "dataset",
                        "data.weights: got ", weights.size(), " numbers, want ", train_.size(),
                        ", one for each file of data.path, or none");
    blend_ = std::make_unique<Blend>(weights);

    std::string identity = concat("tokens ", seq_len, " ",
                                  packing_ == DataConfig::Packing::kDocuments
                                      ? concat("documents ", config.end_of_document)
                                      : "stream");
    for (const auto* parts : {&train_, &validation_}) {
        for (const Part& part : *parts) {
            // Where no file tells of documents every row is one, and passes may be recorded as graphs.
            has_documents_ =
                has_documents_ || part.stream->index() != nullptr || config.end_of_document >= 0;
            identity += concat("; ", part.stream->fingerprint(), " ", part.begin, " ", part.end);
        }
    }
    for (const std::int64_t share : blend_->numerators()) identity += concat("; ", share);
    fingerprint_ = purpose(identity);
}

std::string TokenDataset::description() const {
    const bool by_document = packing_ == DataConfig::Packing::kDocuments;
    std::string text = concat("{\"data.packing\": \"", by_document ? "documents" : "stream", "\"");
    if (by_document) text += concat(", \"data.end_of_document\": ", end_of_document_);
    for (const auto& [use, parts] :
         {std::pair{"training", &train_}, {"validation", &validation_}}) {
        for (std::size_t i = 0; i < parts->size(); ++i) {
            const Part& part = (*parts)[i];
            text +=
                concat(", \"", use, " file ", i + 1, "\": {\"tokens\": ", part.stream->num_tokens(),
                       ", \"hash\": \"", std::hex, part.stream->fingerprint(), std::dec,
                       "\", \"first token\": ", part.begin, ", \"end\": ", part.end, "}");
        }
    }
    text += ", \"shares of the files\": \"";
    for (const std::int64_t share : blend_->numerators()) text += concat(" ", share);
    return text + "\"}";
}

TokenDataset::Part TokenDataset::make_part(const std::shared_ptr<const TokenStream>& stream,
                                           std::int64_t begin,
                                           std::int64_t end,
                                           const char* use,
                                           const char* advice) const {
    EVENKEEL_CHECK_CODE(end - begin > seq_len_, ErrorCode::kConfig, "dataset", stream->path(),
                        ": got ", end - begin, " of ", stream->num_tokens(), " tokens to ", use,
                        ", want more than ", seq_len_, " (trainer.seq_len): ", advice);
    return {stream, begin, end, (end - begin - 1) / seq_len_};
}

void TokenDataset::split(const DataConfig& config,
                         const std::shared_ptr<const TokenStream>& stream) {
    const double fraction = config.validation_fraction;
    EVENKEEL_CHECK_CODE(fraction > 0.0 && fraction < 1.0, ErrorCode::kConfig, "dataset",
                        "data.validation_fraction: got ", fraction,
                        ", want a number between 0 and 1");
    const std::int64_t tokens = stream->num_tokens();
    std::int64_t at =
        tokens - static_cast<std::int64_t>(std::floor(static_cast<double>(tokens) * fraction));
    // Not within a document, unless the training part would be lost with it.
    if (packing_ == DataConfig::Packing::kDocuments && at < tokens) {
        const std::int64_t start = stream->document_of(at);
        if (start > seq_len_) at = start;
    }
    const char* const advice =
        "a longer file, a shorter seq_len, another data.validation_fraction, or "
        "data.validation_path";
    train_.push_back(make_part(stream, 0, at, "train", advice));
    validation_.push_back(make_part(stream, at, tokens, "validate on", advice));
}

namespace {

template <typename Parts, typename F>
std::int64_t sum_over(const Parts& parts, F&& f) {
    return std::accumulate(parts.begin(), parts.end(), std::int64_t{0},
                           [&](std::int64_t sum, const auto& part) { return sum + f(part); });
}

}  // namespace

std::int64_t TokenDataset::train_tokens() const {
    return sum_over(train_, [](const Part& part) { return part.end - part.begin; });
}
std::int64_t TokenDataset::validation_tokens() const {
    return sum_over(validation_, [](const Part& part) { return part.end - part.begin; });
}
std::int64_t TokenDataset::train_sequences() const {
    return sum_over(train_, [](const Part& part) { return part.sequences; });
}
std::int64_t TokenDataset::validation_sequences() const {
    return sum_over(validation_, [](const Part& part) { return part.sequences; });
}

Batch TokenDataset::train_batch(std::uint64_t seed,
                                const std::vector<std::int64_t>& samples) const {
    std::vector<Row> rows;
    for (const std::int64_t sample : samples) {
        const Blend::Place place = blend_->place(sample);
        const Part& part = train_[place.corpus];
        const Sampler sampler(part.sequences, seed + place.corpus * kSeedStride);
        rows.push_back({&part, sampler.sequence(place.index)});
    }
    return make_batch(rows);
}

Batch TokenDataset::validation_batch(const std::vector<std::int64_t>& sequences) const {
    std::vector<Row> rows;
    for (const std::int64_t sequence : sequences) {
        EVENKEEL_CHECK(0 <= sequence && sequence < validation_sequences(), "dataset",
                       "sequence: got ", sequence, ", want 0 to ", validation_sequences() - 1);
        std::int64_t left = sequence;
        auto part = validation_.begin();
        for (; left >= part->sequences; ++part) left -= part->sequences;
        rows.push_back({&*part, left});
    }
    return make_batch(rows);
}

Batch TokenDataset::make_batch(const std::vector<Row>& rows) const {
    const auto count = static_cast<std::int64_t>(rows.size());
    Batch batch{Tensor::uninitialized({count, seq_len_}, DType::kInt32),
                Tensor::uninitialized({count, seq_len_}, DType::kInt32),
                {}};
    const bool by_document = packing_ == DataConfig::Packing::kDocuments && has_documents_;
    EVENKEEL_CHECK(!by_document || count * seq_len_ <= INT32_MAX, "dataset", "batch: got ",
                   count * seq_len_, " tokens, want fewer than 2^31");
    std::vector<std::int32_t> ids(static_cast<std::size_t>(seq_len_) + 1);
    std::vector<std::int64_t> starts;
    for (std::int64_t row = 0; row < count; ++row) {
        const auto& [part, sequence] = rows[static_cast<std::size_t>(row)];
        const std::int64_t first = part->begin + sequence * seq_len_;
        part->stream->read(first, ids);
        std::int32_t* const tokens = batch.tokens.data<std::int32_t>() + row * seq_len_;
        std::int32_t* const targets = batch.targets.data<std::int32_t>() + row * seq_len_;
        std::copy(ids.begin(), ids.end() - 1, tokens);
        std::copy(ids.begin() + 1, ids.end(), targets);
        if (!by_document) continue;
        starts.clear();
        part->stream->document_starts(first, std::span(ids).first(ids.size() - 1), starts);
        batch.cu_seqlens.push_back(static_cast<std::int32_t>(row * seq_len_));
        for (const std::int64_t start : starts) {
            targets[start - 1] = Batch::kNoTarget;
            if (start == seq_len_) continue;
            batch.cu_seqlens.push_back(static_cast<std::int32_t>(row * seq_len_ + start));
        }
    }
    if (by_document) batch.cu_seqlens.push_back(static_cast<std::int32_t>(count * seq_len_));
    return batch;
}

std::string TokenDataset::describe() const {
    std::string text;
    for (std::size_t i = 0; i < train_.size(); ++i) {
        const TokenStream& stream = *train_[i].stream;
        text += concat(i == 0 ? "" : "\n", stream.path(), ": ", name_of(stream.format()), ", ",
                       name_of(stream.type()), ", ", stream.num_tokens(), " tokens");
        if (stream.format() == TokenFormat::kNanoGpt) {
            text += " (taken as ids of 16 bits: there is no .idx file and no header that is known)";
        }
        if (stream.index() != nullptr) {
            text += concat(" in ", stream.index()->num_documents(), " documents");
        } else if (packing_ == DataConfig::Packing::kDocuments && end_of_document_ < 0) {
            text += ", no document boundaries: data.end_of_document is not set";
        }
        if (train_.size() > 1) {
            text += concat(", share ", static_cast<double>(blend_->numerators()[i]) /
                                           static_cast<double>(blend_->period()));
        }
    }
    return text;
}

}  // namespace evenkeel
