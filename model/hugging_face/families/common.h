// What the families share: most are Llama with other norms, biases or masks, under the same names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/hugging_face/family.h"

namespace evenkeel::hugging_face {

// What a key that is not in config.json means: each family's configuration class in `transformers` has its own.
struct Defaults {
    std::int64_t vocab_size;
    std::int64_t hidden_size;
    std::int64_t intermediate_size;
    std::int64_t num_layers;
    std::int64_t num_heads;
    std::int64_t num_kv_heads;  // 0: as many as heads
    std::int64_t head_dim;      // 0: hidden_size / num_heads
    std::int64_t max_positions;
    bool tied = false;
    const char* activation_key = "hidden_act";
    const char* activation = "silu";
    const char* eps_key = "rms_norm_eps";
    double eps = 1e-6;  // of all norms
    double rope_theta = 10000.0;
    double rotary_fraction = 1.0;
    // Whether partial_rotary_factor counts at all, or is refused where it is not 1.
    bool partial_rotary = false;
    RopeLayout layout = RopeLayout::kHalfSplit;
};

// Sizes, activation, eps of the norms, rotation; everything else is as in a plain pre-norm model without QK-norm.
// Refuses what no family has: experts, quantised weights, other heads than a language model's, attention in both
// directions.
ModelConfig read_common(const ConfigJson& json, const Defaults& defaults);
// The same keys and the family's names, set. Refuses an ungated activation.
void write_common(const ModelConfig& config,
                  const Defaults& defaults,
                  const Family& family,
                  ConfigJson& json);

// Rotation alone, of the keys rope_theta, rope_scaling and partial_rotary_factor or, as newer versions write it, of
// rope_parameters; `layers` names a section of rope_parameters by layer type, "" where there is one for all.
RopeConfig read_rope(const ConfigJson& json, const Defaults& defaults, const std::string& layers);
// As rope_theta and rope_scaling, which old and new versions read, unless the keys that are there say the same.
void write_rope(const RopeConfig& rope, const Defaults& defaults, ConfigJson& json);
// rope_scaling's value; {} without scaling.
ConfigJson rope_scaling(const RopeConfig& rope);
bool same_rope(const RopeConfig& a, const RopeConfig& b);

// Which layers have the window, a type a layer ("sliding_attention" or "full_attention"): sets window and
// global_interval. Refuses a pattern that is no period of one full layer after others with the window.
void read_layer_types(const ConfigJson& json,
                      const std::vector<std::string>& types,
                      std::int64_t window,
                      ModelConfig& config);
std::vector<std::string> layer_types(const ModelConfig& config);

// How a family stores the gains of queries and keys.
enum class GainNames {
    kNone,
    kForAllHeads,  // q_norm.weight [D]
    kPerHead,      // q_norm.weight [H, D]
    kFullWidth,    // q_norm.weight [H D]
    kModules,      // q_layernorm.norms.I.weight [D], one a head
    kAsOurs,       // q_norm.weight, of whatever shape the gains have here
};
// What the tensors of a block are called, behind "model.layers.N."; null where a family has no such norm.
struct BlockNames {
    const char* attention_norm = "input_layernorm";
    const char* feed_forward_norm = "post_attention_layernorm";
    const char* attention_post_norm = nullptr;
    const char* feed_forward_post_norm = nullptr;
    GainNames gains = GainNames::kNone;
    RopeLayout layout = RopeLayout::kHalfSplit;
};
// The maps of all parameters that a LanguageModel of this configuration declares.
std::vector<TensorMap> decoder_tensors(const ModelConfig& config, const BlockNames& names);

// Tables of frequencies that older versions saved with each layer.
bool is_rope_table(const std::string& name);

}  // namespace evenkeel::hugging_face
