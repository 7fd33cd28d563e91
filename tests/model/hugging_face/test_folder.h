// A small Hugging Face folder that a test makes, and then makes wrong.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "framework/storage/safetensors.h"
#include "model/hugging_face/family.h"
#include "tests/support/data.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel::testing {

struct TestFolder {
    // Two layers of a Llama with two KV heads.
    std::string config = R"({
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "vocab_size": 64,
  "hidden_size": 32,
  "intermediate_size": 48,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "head_dim": 32,
  "max_position_embeddings": 64,
  "rms_norm_eps": 1e-05,
  "rope_theta": 10000.0,
  "tie_word_embeddings": false,
  "torch_dtype": "float32",
  "an_unknown_key": {"of": [1, "kind"]}
}
)";
    using Tensors = std::vector<std::pair<std::string, Tensor>>;
    Tensors tensors;  // all that the configuration wants, random
    TemporaryDirectory files;

    explicit TestFolder(DType dtype = DType::kFloat32, const std::string& json = "") {
        if (!json.empty()) config = json;
        using namespace hugging_face;
        const ConfigJson parsed = ConfigJson::parse(config, "config.json");
        const Family& family = *find_family(parsed.text("model_type"));
        std::uint64_t seed = 1;
        for (const TensorMap& map : family.tensors(family.read_config(parsed))) {
            for (const TensorMap::Theirs& theirs : map.theirs) {
                tensors.emplace_back(theirs.name, gaussian(theirs.shape, dtype, seed++));
            }
        }
        files.write("config.json", config);
    }

    const std::string& path() const { return files.path(); }
    Tensor& tensor(const std::string& name) {
        for (auto& [mine, tensor] : tensors) {
            if (mine == name) return tensor;
        }
        throw_error(ErrorCode::kInvalidArgument, "TestFolder", "no tensor " + name);
    }

    void write_single() const {
        write_safetensors(files.file("model.safetensors"), tensors, {{"format", "pt"}});
    }

    static std::string shard_name(std::size_t i, std::size_t count) {
        return concat("model-0000", i + 1, "-of-0000", count, ".safetensors");
    }
    // Cuts the list into shards of as many tensors; returns the index's text, which it writes too.
    std::string write_shards(std::size_t count) const {
        std::string map;
        std::uint64_t bytes = 0;
        for (std::size_t i = 0; i < count; ++i) {
            const std::size_t begin = tensors.size() * i / count;
            const std::size_t end = tensors.size() * (i + 1) / count;
            const Tensors part(tensors.begin() + static_cast<std::ptrdiff_t>(begin),
                               tensors.begin() + static_cast<std::ptrdiff_t>(end));
            write_safetensors(files.file(shard_name(i, count)), part, {{"format", "pt"}});
            for (const auto& [name, tensor] : part) {
                map += concat(map.empty() ? "" : ",\n", "\"", name, "\": \"", shard_name(i, count),
                              "\"");
                bytes += tensor.bytes();
            }
        }
        const std::string index =
            concat("{\"metadata\": {\"total_size\": ", bytes, "}, \"weight_map\": {\n", map, "}}");
        files.write("model.safetensors.index.json", index);
        return index;
    }
};

// `text` with the first `from` in it replaced.
inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
    const std::size_t at = text.find(from);
    EVENKEEL_CHECK(at != std::string::npos, "test", "no ", from, " in ", text);
    return text.replace(at, from.size(), to);
}

// What the action throws; "" if nothing.
template <typename Action>
std::string thrown(const Action& action) {
    try {
        action();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace evenkeel::testing
