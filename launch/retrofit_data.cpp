#include "launch/retrofit_data.h"

#include <algorithm>
#include <functional>

#include "framework/data/byte_dataset.h"
#include "framework/data/token_file.h"
#include "launch/saved_run.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kBatch = 4;        // sequences of a forward pass
constexpr std::int64_t kLeastLength = 2;  // of one key attention has no choice, whatever the norm

using MakeBatch = std::function<Batch(const std::vector<std::int64_t>&)>;

std::vector<Batch> batches_of(const std::vector<std::int64_t>& sequences, const MakeBatch& make) {
    std::vector<Batch> batches;
    for (auto begin = sequences.begin(); begin != sequences.end();) {
        const auto end = begin + std::min<std::ptrdiff_t>(kBatch, sequences.end() - begin);
        batches.push_back(make({begin, end}));
        begin = end;
    }
    return batches;
}

// Two of three go to the calibration.
void choose(std::int64_t available,
            std::int64_t tokens,
            const std::string& origin,
            const MakeBatch& make,
            RetrofitData& data) {
    const std::int64_t judged =
        std::max<std::int64_t>((tokens + 2 * data.seq_len - 1) / (2 * data.seq_len), 1);
    const std::int64_t wanted = 3 * judged;
    EVENKEEL_CHECK_CODE(
        available >= wanted, ErrorCode::kConfig, kRetrofit, "--data: too little: got ", available,
        " held-out sequences of ", data.seq_len, " tokens in ", origin, ", want ", wanted, ": ",
        2 * judged, " to make gains from (--tokens ", tokens, ") and ", judged, " to judge them by",
        available >= 3
            ? concat("; --tokens ", available / 3 * 2 * data.seq_len, " would do with these")
            : "");
    std::vector<std::int64_t> calibration, held_out;
    for (std::int64_t i = 0; i < wanted; ++i) {
        (i % 3 == 2 ? held_out : calibration).push_back(i * available / wanted);
    }
    data.calibration_sequences = static_cast<std::int64_t>(calibration.size());
    data.held_out_sequences = static_cast<std::int64_t>(held_out.size());
    data.calibration = batches_of(calibration, make);
    data.held_out = batches_of(held_out, make);
}

// Sequences of `length` tokens and the one that follows each, of rows [N, length + 1].
MakeBatch rows_of(const Tensor& tokens) {
    return [tokens](const std::vector<std::int64_t>& sequences) {
        const std::int64_t length = tokens.size(1) - 1;
        const auto count = static_cast<std::int64_t>(sequences.size());
        Batch batch{Tensor::uninitialized({count, length}, DType::kInt32),
                    Tensor::uninitialized({count, length}, DType::kInt32),
                    {}};
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int32_t* row =
                tokens.data<std::int32_t>() + sequences[static_cast<std::size_t>(i)] * (length + 1);
            std::copy_n(row, length, batch.tokens.data<std::int32_t>() + i * length);
            std::copy_n(row + 1, length, batch.targets.data<std::int32_t>() + i * length);
        }
        return batch;
    };
}

std::int64_t length_of(std::int64_t seq_len, std::int64_t max_seq_len) {
    const std::int64_t length = std::min(seq_len, max_seq_len);
    EVENKEEL_CHECK_CODE(length >= kLeastLength, ErrorCode::kConfig, kRetrofit,
                        "trainer.seq_len: got ", length, ", want ", kLeastLength,
                        " or more: a row that sees one key alone says nothing of gains");
    return length;
}

}  // namespace

RetrofitData load_retrofit_data(const DataConfig& text,
                                std::int64_t vocab_size,
                                bool reads_bytes,
                                std::int64_t seq_len,
                                std::int64_t max_seq_len,
                                std::int64_t tokens) {
    RetrofitData data;
    EVENKEEL_CHECK_CODE(!text.path.empty(), ErrorCode::kConfig, kRetrofit,
                        "--data: got none, and the model's run names no data; want a text (for a "
                        "model of bytes), a .bin file of tokens, or a .safetensors file with a "
                        "tensor `tokens` [N, T]");
    if (text.path.ends_with(".safetensors")) {
        data.is_trainable = false;
        const Tensor rows = read_token_file(text.path, vocab_size);
        data.seq_len = rows.size(1) - 1;
        EVENKEEL_CHECK_CODE(data.seq_len >= kLeastLength && data.seq_len <= max_seq_len,
                            ErrorCode::kConfig, kRetrofit, "--data: got rows of ", rows.size(1),
                            " tokens in ", text.path, ", want ", kLeastLength + 1, " to ",
                            max_seq_len + 1, " (model.max_seq_len + 1)");
        choose(rows.size(0), tokens, text.path, rows_of(rows), data);
        return data;
    }
    if (text.has_tokens()) {
        data.seq_len = length_of(seq_len, max_seq_len);
        DataConfig stream = text;
        stream.packing = DataConfig::Packing::kStream;
        const auto tokens_of = open_dataset(stream, data.seq_len, vocab_size);
        choose(
            tokens_of->validation_sequences(), tokens, text.path,
            [&](const std::vector<std::int64_t>& sequences) {
                return tokens_of->validation_batch(sequences);
            },
            data);
        return data;
    }
    EVENKEEL_CHECK_CODE(reads_bytes, ErrorCode::kConfig, kRetrofit,
                        "--data: got a text, whose bytes are its tokens, for a model with a "
                        "vocabulary of ",
                        vocab_size,
                        "; want tokens that the model's own tokenizer has made: a .bin file, or a "
                        ".safetensors file with a tensor `tokens` [N, T]");
    data.seq_len = length_of(seq_len, max_seq_len);
    const ByteDataset bytes(text, data.seq_len);
    choose(
        bytes.validation_sequences(), tokens, text.path,
        [&](const std::vector<std::int64_t>& sequences) {
            return bytes.validation_batch(sequences);
        },
        data);
    return data;
}

}  // namespace evenkeel
