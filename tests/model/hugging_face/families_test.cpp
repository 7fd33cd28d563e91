#include <gtest/gtest.h>

#include <cmath>

#include "framework/error.h"
#include "model/hugging_face/family.h"

namespace evenkeel::hugging_face {
namespace {

ModelConfig read(const std::string& family, const std::string& json) {
    const Family* found = find_family(family);
    EVENKEEL_CHECK(found != nullptr, "test", "no family ", family);
    return found->read_config(ConfigJson::parse(json, "config.json"));
}

std::string text_of(ModelConfig config) {
    return to_json([&](ConfigVisitor& v) { config.visit_fields(v); });
}

std::string refusal(const std::string& family, const std::string& json) {
    try {
        read(family, json);
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kConfig) << error.what();
        return error.what();
    }
    return "";
}

// A configuration of each family with settings that are not the defaults.
struct Sample {
    const char* family;
    const char* json;
};
constexpr const char* kSizes =
    R"("vocab_size": 64, "hidden_size": 128, "intermediate_size": 48, "num_hidden_layers": 4,
       "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64)";
constexpr Sample kSamples[] = {
    {"llama", R"("rms_norm_eps": 1e-5, "attention_bias": true, "mlp_bias": true, "head_dim": 64,
        "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32})"},
    {"mistral", R"("sliding_window": 7, "tie_word_embeddings": true)"},
    {"mistral", R"("sliding_window": null)"},
    {"qwen2", R"("use_sliding_window": true, "sliding_window": 5, "max_window_layers": 0)"},
    {"qwen2", R"("rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6})"},
    {"qwen3", R"("attention_bias": true, "use_sliding_window": true, "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                        "full_attention"])"},
    {"olmo2", R"("rms_norm_eps": 1e-6, "attention_bias": true)"},
    {"gemma3_text", R"("head_dim": 32, "query_pre_attn_scalar": 48, "sliding_window": 5,
        "sliding_window_pattern": 2, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "rope_theta": 1e5, "rope_local_base_freq": 100.0)"},
    {"gemma3_text", R"("head_dim": 32, "sliding_window": 5)"},  // windows in all of the few layers
    {"stablelm", R"("use_qkv_bias": true, "partial_rotary_factor": 0.5, "hidden_act": "silu")"},
    {"stablelm", R"("qk_layernorm": true, "use_parallel_residual": true)"},
    {"cohere", R"("use_qk_norm": true, "logit_scale": 0.25, "attention_bias": true)"},
    {"cohere", R"("hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": false)"},
};

std::string json_of(const Sample& sample) {
    return std::string("{") + kSizes + ", " + sample.json + "}";
}

TEST(HuggingFaceFamilies, AConfigurationWrittenAnewSaysTheSame) {
    for (const Sample& sample : kSamples) {
        const Family& family = *find_family(sample.family);
        const ModelConfig config = read(sample.family, json_of(sample));
        config.validate(1);
        ConfigJson written;
        family.write_config(config, written);
        EXPECT_EQ(text_of(family.read_config(written)), text_of(config)) << written.to_text();
        EXPECT_EQ(written.text("model_type"), sample.family);
    }
}

TEST(HuggingFaceFamilies, AConfigurationWrittenOverItsOriginSaysTheSame) {
    for (const Sample& sample : kSamples) {
        const Family& family = *find_family(sample.family);
        ConfigJson json = ConfigJson::parse(json_of(sample), "config.json");
        json.set("eos_token_id", std::int64_t{2});
        const ModelConfig config = family.read_config(json);
        family.write_config(config, json);
        EXPECT_EQ(text_of(family.read_config(json)), text_of(config)) << json.to_text();
        EXPECT_EQ(json.integer("eos_token_id"), 2);
    }
}

TEST(HuggingFaceFamilies, AnotherModelWrittenOverAnOriginIsReadAsThatModel) {
    for (const Sample& sample : kSamples) {
        for (const Sample& other : kSamples) {
            if (std::string(sample.family) != other.family) continue;
            const Family& family = *find_family(sample.family);
            const ModelConfig config = read(sample.family, json_of(sample));
            ConfigJson json = ConfigJson::parse(json_of(other), "config.json");
            family.write_config(config, json);
            EXPECT_EQ(text_of(family.read_config(json)), text_of(config)) << json.to_text();
        }
    }
}

TEST(HuggingFaceFamilies, MissingKeysMeanWhatTheFamilysClassOfConfigurationsHas) {
    EXPECT_EQ(read("llama", "{}").attention.head_dim, 128);
    EXPECT_EQ(read("llama", "{}").attention.num_kv_heads, 32);
    EXPECT_EQ(read("llama", "{}").norm_eps, 1e-6);
    EXPECT_EQ(read("mistral", "{}").attention.window, 4096);
    EXPECT_EQ(read("mistral", "{}").attention.num_kv_heads, 8);
    EXPECT_EQ(
        read("qwen3", R"({"hidden_size": 1024, "num_attention_heads": 16})").attention.head_dim,
        128);
    EXPECT_EQ(read("olmo2", "{}").norm_eps, 1e-5);
    EXPECT_EQ(read("stablelm", "{}").attention.rope.rotary_fraction, 0.25);
    EXPECT_EQ(read("cohere", "{}").logit_scale, 0.0625);
    const ModelConfig gemma = read("gemma3_text", "{}");
    EXPECT_EQ(gemma.global_interval, 6);
    EXPECT_EQ(gemma.attention.rope.theta, 1e6);
    EXPECT_EQ(gemma.local_rope_theta, 1e4);
    EXPECT_EQ(gemma.attention.softmax_scale, 0.0);
    EXPECT_EQ(gemma.embedding_scale, 48.0);
    EXPECT_TRUE(gemma.tied_embeddings);
    EXPECT_TRUE(read("cohere", "{}").tied_embeddings);
}

TEST(HuggingFaceFamilies, BothFormsOfTheRotationMeanTheSame) {
    const std::string older = R"({"rope_theta": 500.0, "rope_scaling": {"type": "linear",
                                  "factor": 2.0}})";
    const std::string newer = R"({"rope_parameters": {"rope_type": "linear", "factor": 2.0,
                                  "rope_theta": 500.0}})";
    EXPECT_EQ(text_of(read("llama", older)), text_of(read("llama", newer)));
    const std::string older_gemma = R"({"rope_theta": 500.0, "rope_local_base_freq": 50.0,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0}, "sliding_window_pattern": 6})";
    const std::string newer_gemma = R"({"rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}})";
    EXPECT_EQ(text_of(read("gemma3_text", older_gemma)), text_of(read("gemma3_text", newer_gemma)));
    EXPECT_EQ(read("gemma3_text", newer_gemma).local_rope_theta, 50.0);
    EXPECT_EQ(read("gemma3_text", newer_gemma).attention.rope.factor, 2.0);
}

TEST(HuggingFaceFamilies, AQueryScalarOfTheHeadsWidthIsTheUsualScale) {
    EXPECT_EQ(read("gemma3_text", R"({"query_pre_attn_scalar": 256})").attention.softmax_scale,
              0.0);
    EXPECT_DOUBLE_EQ(
        read("gemma3_text", R"({"query_pre_attn_scalar": 168})").attention.softmax_scale,
        1.0 / std::sqrt(168.0));
}

TEST(HuggingFaceFamilies, YarnsTwoScalesBecomeItsAttentionFactor) {
    const RopeConfig rope = read("llama", R"({"rope_scaling": {"rope_type": "yarn", "factor": 8.0,
        "mscale": 1.0, "mscale_all_dim": 0.5, "original_max_position_embeddings": 512}})")
                                .attention.rope;
    const double log = 0.1 * std::log(8.0);
    EXPECT_DOUBLE_EQ(rope.attention_factor, (log + 1.0) / (0.5 * log + 1.0));
    EXPECT_EQ(rope.original_max_position, 512);
}

struct Refusal {
    const char* family;
    const char* json;
    const char* key;
    const char* reason;
};
constexpr Refusal kRefusals[] = {
    {"gpt_oss", R"({"num_local_experts": 4})", "num_local_experts", "mixtures of experts"},
    {"llama", R"({"num_local_experts": 8})", "num_local_experts", "mixtures of experts"},
    {"llama", R"({"quantization_config": {"bits": 4}})", "quantization_config", "want weights"},
    {"llama", R"({"hidden_act": "gelu"})", "hidden_act", "supported are silu"},
    {"llama", R"({"hidden_act": "relu"})", "hidden_act", "supported are silu"},
    {"llama", R"({"architectures": ["LlamaForSequenceClassification"]})", "architectures",
     "want a language model"},
    {"llama", R"({"rope_scaling": {"type": "dynamic", "factor": 2.0}})", "rope_scaling.type",
     "supported are default"},
    {"llama", R"({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}})",
     "rope_scaling.rope_type", "supported are default"},
    {"llama", R"({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": false}})",
     "rope_scaling.truncate", "whole pairs"},
    {"llama", R"({"rope_scaling": {"type": "linear"}})", "rope_scaling.factor", ""},
    {"llama", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor", "whole heads turn"},
    {"qwen2", R"({"rope_scaling": {"type": "default", "mrope_section": [16, 24, 24]}})",
     "rope_scaling.mrope_section", "several dimensions"},
    {"llama", R"({"num_attention_heads": 0})", "num_attention_heads", "want 1 or more"},
    {"llama", R"({"is_causal": false})", "is_causal", "no later token"},
    {"llama", R"({"pruned_heads": {"0": [1]}})", "pruned_heads", "fewer heads"},
    {"mistral", R"({"sliding_window": 0})", "sliding_window", "want 1 or more"},
    {"mistral", R"({"layer_types": ["full_attention"]})", "layer_types", "all alike"},
    {"qwen2", R"({"use_sliding_window": true, "max_window_layers": 3})", "max_window_layers",
     "must begin with the first layer"},
    {"qwen3", R"({"num_hidden_layers": 2, "layer_types": ["full_attention"]})", "layer_types",
     "each of the 2 layers"},
    {"qwen3", R"({"num_hidden_layers": 3, "use_sliding_window": true, "layer_types":
        ["full_attention", "sliding_attention", "full_attention"]})",
     "layer_types", "layer 1 is out of that order"},
    {"qwen3", R"({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})", "sliding_window",
     "want 1 or more"},
    {"qwen3", R"({"num_hidden_layers": 1, "layer_types": ["chunked_attention"]})", "layer_types",
     "layer 0 is out of that order"},
    {"gemma3_text", R"({"final_logit_softcapping": 30.0})", "final_logit_softcapping", "has none"},
    {"gemma3_text", R"({"attn_logit_softcapping": 50.0})", "attn_logit_softcapping", "has none"},
    {"gemma3_text", R"({"use_bidirectional_attention": true})", "use_bidirectional_attention", ""},
    {"gemma3_text", R"({"query_pre_attn_scalar": 0})", "query_pre_attn_scalar", "positive"},
    {"gemma3_text", R"({"rope_parameters": {"sliding_attention": {"rope_type": "linear",
        "factor": 2.0}}})",
     "rope_parameters", "only where all have it"},
    // Forms of which transformers 5.24 takes only a part, or another than is meant.
    {"gemma3_text", R"({"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}})",
     "rope_parameters.", "want sections full_attention and sliding_attention alone"},
    {"gemma3_text", R"({"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "rope_parameters":
        {"full_attention": {"rope_type": "default", "rope_theta": 777.0}}})",
     "rope_scaling", "only one of them"},
    {"gemma3_text", R"({"rope_scaling": {"type": "linear", "factor": 8.0}})", "rope_scaling",
     "under the name rope_type"},
    {"gemma3_text", R"({"original_max_position_embeddings": 64})",
     "original_max_position_embeddings", "beside the kind of scaling"},
    {"llama", R"({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "attention_factor": 0.0}})",
     "rope_scaling.attention_factor", "want a positive number"},
    {"stablelm", R"({"head_dim": 64})", "head_dim", "fill hidden_size"},
};

TEST(HuggingFaceFamilies, RefuseWhatTheyCannotSayWithKeyAndReason) {
    for (const Refusal& wanted : kRefusals) {
        const std::string message = refusal(wanted.family, wanted.json);
        EXPECT_NE(message.find(std::string("config.json: ") + wanted.key), std::string::npos)
            << wanted.family << " " << wanted.json << ": " << message;
        EXPECT_NE(message.find(wanted.reason), std::string::npos) << message;
    }
}

ModelConfig unusual() {
    ModelConfig config;
    config.architecture = Architecture::kSandwichNorm;
    config.activation = Activation::kGelu;
    config.norm = {NormConfig::Kind::kLayerNorm, true, 0.5};
    config.embedding_scale = 3.0;
    config.logit_scale = 0.3;
    config.global_interval = 2;
    config.local_rope_theta = 50.0;
    config.qk_norm_layers = "0,3-5";
    config.attention.window = 7;
    config.attention.sink = AttentionConfig::Sink::kLearned;
    config.attention.softcap = 20.0;
    config.attention.rope.layout = RopeLayout::kInterleaved;
    config.attention.rope.rotary_fraction = 0.5;
    return config;
}

TEST(HuggingFaceFamilies, TheOneWithItsOwnCodeSaysEverySetting) {
    const Family& family = *find_family("evenkeel");
    const ModelConfig config = unusual();
    ConfigJson json;
    family.write_config(config, json);
    EXPECT_EQ(text_of(family.read_config(json)), text_of(config));
    EXPECT_EQ(json.integer("hidden_size"), config.width);
    ASSERT_EQ(family.files().size(), 2u);
    for (const auto& [name, text] : family.files()) {
        EXPECT_NE(text.find("evenkeel"), std::string::npos) << name;
    }
}

TEST(HuggingFaceFamilies, TheOneWithItsOwnCodeRefusesWhatTheCodeDoesNotHave) {
    const Family& family = *find_family("evenkeel");
    const auto fault = [&](void (*change)(ModelConfig&)) {
        ModelConfig config;
        change(config);
        ConfigJson json;
        try {
            family.write_config(config, json);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    EXPECT_EQ(fault([](ModelConfig&) {}), "");
    EXPECT_NE(fault([](ModelConfig& c) {
                  c.architecture = Architecture::kNgpt;
              }).find("model.architecture"),
              std::string::npos);
    EXPECT_NE(fault([](ModelConfig& c) { c.sigma_reparam = true; }).find("model.sigma_reparam"),
              std::string::npos);
    EXPECT_NE(
        fault([](ModelConfig& c) { c.attention.qk_norm.anneal_steps = 5; }).find("anneal_steps"),
        std::string::npos);
}

TEST(HuggingFaceFamilies, SettingsOfTrainingAloneAreIgnored) {
    const std::string without = text_of(read("llama", "{}"));
    EXPECT_EQ(text_of(read("llama", R"({"attention_dropout": 0.1, "initializer_range": 0.5,
                                        "pretraining_tp": 2, "use_cache": false})")),
              without);
}

}  // namespace
}  // namespace evenkeel::hugging_face
