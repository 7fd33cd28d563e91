// A kind of model in a Hugging Face folder: how its config.json says what a ModelConfig says, and of which of
// its tensors each of this project's parameters is made. Each lives in one file of families/; families.cpp lists
// them. docs/import_export.md tells what each covers.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/hugging_face/config_json.h"
#include "model/hugging_face/tensor_map.h"
#include "model/model_config.h"

namespace evenkeel::hugging_face {

struct Family {
    const char* name;          // model_type in config.json: "llama"
    const char* architecture;  // in its "architectures": "LlamaForCausalLM"
    const char* summary;       // one sentence, for help texts and tables

    // What config.json says. Training-only settings keep their defaults. Throws kConfig, through
    // ConfigJson::refuse where a value can't be represented, naming the key and the reason. The values are not
    // to be trusted: the caller validates the result before tensors() sees it.
    ModelConfig (*read_config)(const ConfigJson& json);

    // Sets in `json` what makes it say what `config` says; other keys stay. It is empty, or the config.json the
    // model came from. Throws kConfig with the reason when this family can't say it. The caller reads the
    // result back with read_config and refuses what does not come back the same, so a family need only look for
    // what read_config can't see.
    void (*write_config)(const ModelConfig& config, ConfigJson& json);

    // One map for each parameter that LanguageModel declares for `config` (names and shapes as there). Gains
    // stored once for all heads are `same` where the config says shared_channel and `repeated` where it says
    // per_head_channel; with another RoPE layout than the family's, rows, biases and gains of q and k go through
    // with_rotary_layout.
    std::vector<TensorMap> (*tensors)(const ModelConfig& config);

    // Whether a tensor of a folder that tensors() does not name carries nothing of the model and may be left out:
    // tables of RoPE that older versions saved. Null: none may.
    bool (*ignores)(const std::string& name) = nullptr;
    // With tied embeddings some folders hold the output projection too, under this name; it must then be equal to
    // the embedding.
    const char* tied_output = "lm_head.weight";
    // Python files, name and text, that the folder of a family needs which the transformers package does not know
    // (remote code). Null: it knows it. Export takes such a family only when it is asked for.
    std::vector<std::pair<std::string, std::string>> (*files)() = nullptr;
    // No model of this family is taken: read_config and write_config throw, whatever the configuration.
    bool refused = false;
};

// In the order in which export tries them.
std::span<const Family* const> families();
// Null when there is none of that name.
const Family* find_family(const std::string& name);
std::string family_names();  // "llama, qwen2, ...", for messages

}  // namespace evenkeel::hugging_face
