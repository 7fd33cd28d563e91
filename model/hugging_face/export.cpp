#include "model/hugging_face/export.h"

#include <algorithm>
#include <cstdio>

#include "framework/error.h"
#include "framework/json.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/safetensors.h"
#include "model/hugging_face/gather.h"

namespace evenkeel::hugging_face {
namespace {

constexpr std::size_t kMaxFiles = 512;  // what import takes

const char* torch_name(DType dtype) {
    switch (dtype) {
        case DType::kBFloat16:
            return "bfloat16";
        case DType::kFloat16:
            return "float16";
        default:
            return "float32";
    }
}

struct Planned {
    Target target;
    DType dtype = DType::kFloat32;
    std::uint64_t bytes() const {
        return static_cast<std::uint64_t>(num_elements(target.shape)) * size_of(dtype);
    }
};

// Greedy, in order.
std::vector<std::vector<Planned>> plan(const TensorSource& weights,
                                       const Fit& fit,
                                       const FolderOptions& options) {
    std::vector<std::vector<Planned>> files;
    std::uint64_t filled = 0;
    for (const Target& target : targets(fit.maps)) {
        const DType dtype = options.dtype ? *options.dtype : dtype_of(target, weights);
        const Planned planned{target, dtype};
        if (files.empty() || filled + planned.bytes() > options.shard_bytes) {
            files.emplace_back();
            filled = 0;
        }
        files.back().push_back(planned);
        filled += planned.bytes();
    }
    EVENKEEL_CHECK_CODE(files.size() <= kMaxFiles, ErrorCode::kConfig, "export",
                        "--shard-size: got ", options.shard_bytes, ", which makes ", files.size(),
                        " files, want at most ", kMaxFiles);
    return files;
}

std::string file_name(std::size_t index, std::size_t count) {
    if (count == 1) return "model.safetensors";
    char name[64];
    std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
    return name;
}

// The type that config.json names is the tensors', where these have one.
void set_dtype(const std::vector<std::vector<Planned>>& files, ConfigJson& json) {
    const DType first = files.at(0).at(0).dtype;
    for (const auto& file : files) {
        for (const Planned& planned : file) {
            if (planned.dtype != first) return;
        }
    }
    const char* key = json.has("dtype") ? "dtype" : "torch_dtype";
    if (json.text(key, "") != torch_name(first)) json.set(key, torch_name(first));
}

}  // namespace

FolderSummary write_folder(const TensorSource& weights,
                           const Fit& fit,
                           const FolderOptions& options,
                           const std::string& directory) {
    const std::vector<std::vector<Planned>> files = plan(weights, fit, options);
    Gatherer gatherer(weights);
    FolderSummary summary;
    nlohmann::json index;
    for (std::size_t i = 0; i < files.size(); ++i) {
        const std::string name = file_name(i, files.size());
        std::vector<SafetensorsWriter::Declaration> declarations;
        for (const Planned& planned : files[i]) {
            declarations.push_back({planned.target.name, planned.dtype, planned.target.shape});
            index["weight_map"][planned.target.name] = name;
            summary.bytes += planned.bytes();
        }
        // Loaders of the transformers package want "format".
        SafetensorsWriter writer(directory + "/" + name, declarations, {{"format", "pt"}});
        for (const Planned& planned : files[i]) {
            writer.write(planned.target.name, gatherer.gather(planned.target, planned.dtype));
        }
        writer.finish();
        summary.tensors += files[i].size();
    }
    summary.files = files.size();
    if (files.size() > 1) {
        index["metadata"]["total_size"] = summary.bytes;
        write_file_atomically(directory + "/model.safetensors.index.json", index.dump(2) + "\n");
    }
    ConfigJson json = fit.json;
    set_dtype(files, json);
    write_file_atomically(directory + "/config.json", json.to_text());
    if (fit.family->files != nullptr) {
        for (const auto& [name, text] : fit.family->files()) {
            write_file_atomically(directory + "/" + name, text);
        }
    }
    return summary;
}

}  // namespace evenkeel::hugging_face
