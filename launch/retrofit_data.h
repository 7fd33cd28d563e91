// The sequences that a retrofit looks at: held-out text, part of it to make gains from, part to judge them by.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "framework/data/dataset.h"

namespace evenkeel {

struct RetrofitData {
    std::vector<Batch> calibration, held_out;  // of at most 4 sequences each
    std::int64_t seq_len = 0;                  // T
    std::int64_t calibration_sequences = 0, held_out_sequences = 0;
    bool is_trainable = true;  // text or tokens of a file that train reads too
};

// Who speaks in errors.
inline constexpr const char* kRetrofit = "retrofit";

inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

// From the validation part of a text (`text`), or, where its path ends in .safetensors, from the rows of its tensor
// `tokens`. As many sequences as hold `tokens` tokens to calibrate on, two at least, and half as many others, spread
// evenly. Throws kConfig when there are fewer, saying how many there are and how many it takes, and for a text where
// the model's tokens are not bytes (`reads_bytes`, saved_run.h). tokens: at most kMostTokens.
RetrofitData load_retrofit_data(const DataConfig& text,
                                std::int64_t vocab_size,
                                bool reads_bytes,
                                std::int64_t seq_len,
                                std::int64_t max_seq_len,
                                std::int64_t tokens);

}  // namespace evenkeel
