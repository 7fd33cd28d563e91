// Writing a model of this project as a Hugging Face folder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "framework/dtype.h"
#include "framework/storage/tensor_source.h"
#include "model/hugging_face/family.h"

namespace evenkeel::hugging_face {

// Where what two configurations compute differs: a sentence that names keys, "" where they compute the same from
// weights of the same layouts. Settings of training and storage do not count, nor do RoPE layouts and, where `theirs`
// has one gain for all heads, gains for each: tensors can say these.
std::string difference_in_function(const ModelConfig& ours, const ModelConfig& theirs);

// A family, and the config.json with which its folder holds the model exactly.
struct Fit {
    const Family* family = nullptr;
    ConfigJson json;
    std::vector<TensorMap> maps;
};
// `origin` is the config.json of the folder that the model came from, {} if none: its other keys stay. Throws kConfig
// with the reason when the family can't hold the model: settings it does not have, gains that differ where it has one
// for all heads (these tensors are read).
Fit fit(const Family& family,
        const ModelConfig& config,
        const TensorSource& weights,
        const ConfigJson& origin);
// The family `name`; "" for the origin's, else the first of families() that can hold the model and that the transformers
// package knows. Throws kConfig with the reason of each that can't.
Fit fit_any(const std::string& name,
            const ModelConfig& config,
            const TensorSource& weights,
            const ConfigJson& origin);

struct FolderOptions {
    std::optional<DType> dtype;                 // of all tensors; none: each as in the source
    std::uint64_t shard_bytes = 5'000'000'000;  // a larger tensor gets a file of its own
};
struct FolderSummary {
    std::size_t files = 0, tensors = 0;
    std::uint64_t bytes = 0;  // of tensors
};
// Writes weights, index and config.json into an existing, empty directory, in one pass: at most three tensors are in
// memory at a time, and of those that are stored as they are here, one. Throws kIo, kNonFinite naming a weight that is
// NaN or infinite or too large for fp16, and kConfig where gains differ that the family has one of.
FolderSummary write_folder(const TensorSource& weights,
                           const Fit& fit,
                           const FolderOptions& options,
                           const std::string& directory);

}  // namespace evenkeel::hugging_face
