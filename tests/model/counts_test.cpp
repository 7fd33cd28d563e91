#include <gtest/gtest.h>

#include "model/method.h"
#include "tests/support/tiny_model.h"

namespace evenkeel {
namespace {

using testing::SoloGrid;
using testing::tiny_model;

std::vector<ModelConfig> variants() {
    std::vector<ModelConfig> all(11, tiny_model());
    all[1].tied_embeddings = true;
    all[2].activation = Activation::kGelu;
    all[3].attention.qk_norm.gain = QkNormConfig::Gain::kSharedChannel;
    all[4].attention.qk_norm.kind = QkNormConfig::Kind::kNone;
    all[5].attention.num_kv_heads = 1;
    all[6].attention.num_kv_heads = 4;
    all[6].attention.head_dim = 64;
    all[7].attention.window = 5;
    apply_method("ngpt", all[8]);
    all[8].activation = Activation::kGelu;
    all[9].attention.qkv_bias = all[9].attention.output_bias = all[9].feed_forward_bias = true;
    all[10] = all[9];
    all[10].activation = Activation::kGelu;
    const Architecture architectures[] = {Architecture::kPostNorm, Architecture::kSandwichNorm,
                                          Architecture::kParallel};
    for (const Architecture architecture : architectures) {
        all.push_back(tiny_model());
        all.back().architecture = architecture;
        all.back().activation = Activation::kGeGlu;
        all.push_back(all.back());
        all.back().norm.kind = NormConfig::Kind::kLayerNorm;
        all.back().norm.bias = true;
    }
    all.push_back(tiny_model());
    all.back().num_layers = 3;
    all.back().attention.window = 3;
    all.back().global_interval = 2;
    all.back().qk_norm_layers = "0,2";
    for (const Method* method : methods()) {
        all.push_back(tiny_model());
        apply_method(method->name, all.back());
    }
    return all;
}

TEST(CountsTest, ParameterCountIsTheSumOverParameters) {
    const SoloGrid solo;
    for (const ModelConfig& config : variants()) {
        LanguageModel model(solo.grid, config, 1);
        std::int64_t sum = 0;
        for (const Parameter* parameter : model.parameters()) {
            if (parameter->trained) sum += num_elements(parameter->global_shape);
        }
        EXPECT_EQ(parameter_count(config), sum) << model.description();
    }
}

TEST(CountsTest, ParameterCountOfAKnownShape) {
    ModelConfig config;
    config.vocab_size = 256;
    config.num_layers = 5;
    config.width = 256;
    config.feed_forward_width = 704;
    config.attention.num_heads = 8;
    config.attention.num_kv_heads = 4;
    config.attention.head_dim = 32;
    // By hand: q and o 2 x 256 x 256, k and v 2 x 128 x 256, feed-forward 3 x 256 x 704, gains 8 x 32 +
    // 4 x 32, two norms of 256; five such layers, two embeddings of 256 x 256, a final norm.
    EXPECT_EQ(parameter_count(config), 5 * (131072 + 65536 + 540672 + 384 + 512) + 2 * 65536 + 256);
}

TEST(CountsTest, FlopsFollowFromMatricesAndVisiblePairs) {
    const SoloGrid solo;
    for (const ModelConfig& config : variants()) {
        LanguageModel model(solo.grid, config, 1);
        for (std::int64_t seq_len : {1, 4, 17}) {
            double matrices = 0.0;
            for (const Parameter* parameter : model.parameters()) {
                const std::string& name = parameter->name;
                const bool gain = name.find("norm") != std::string::npos ||
                                  name.find("gain") != std::string::npos ||
                                  name.find("gamma") != std::string::npos ||
                                  name.find("rate") != std::string::npos ||
                                  name.find("scale") != std::string::npos ||
                                  name.ends_with("bias") || name.ends_with("sink") ||
                                  !parameter->trained;
                if (gain || (name == "embedding" && !config.tied_embeddings)) continue;
                matrices += static_cast<double>(num_elements(parameter->global_shape));
            }
            double pairs = 0.0;
            for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
                const std::int64_t window = config.layer_attention(layer).window;
                for (std::int64_t i = 0; i < seq_len; ++i) {
                    for (std::int64_t j = 0; j <= i; ++j) {
                        pairs += window == 0 || i - window < j ? 1.0 : 0.0;
                    }
                }
            }
            const double channels =
                static_cast<double>(config.attention.num_heads * config.attention.head_dim);
            const double want =
                6.0 * matrices + 12.0 * channels * pairs / static_cast<double>(seq_len);
            EXPECT_DOUBLE_EQ(flops_per_token(config, seq_len), want)
                << "T = " << seq_len << ", " << model.description();
        }
    }
}

TEST(CountsTest, FlopsOfABidirectionalWindowCountBothSides) {
    ModelConfig config = tiny_model();
    config.attention.causal = false;
    const double whole = flops_per_token(config, 8);
    config.attention.window =
        2;  // itself and one neighbour on each side: 3 x 6 + 2 x 2 pairs of 64
    const double banded = flops_per_token(config, 8);
    EXPECT_DOUBLE_EQ(whole - banded, 2.0 * 12.0 * 4 * 32 * (64.0 - 22.0) / 8.0);
}

// Forward is a third of a layer's FLOPs. Made again is all of it, or what is left without products that nobody reads.
TEST(CountsTest, RecomputedFlopsAreForwardsOfTheLayersLessWhatNobodyReads) {
    for (const Architecture architecture :
         {Architecture::kPreNorm, Architecture::kPostNorm, Architecture::kSandwichNorm,
          Architecture::kParallel, Architecture::kNgpt}) {
        for (const Activation activation : {Activation::kSwiGlu, Activation::kGelu}) {
            ModelConfig config = tiny_model();
            config.architecture = architecture;
            config.activation = activation;
            config.attention.window = 5;
            config.global_interval = 2;
            EXPECT_EQ(recomputed_flops_per_token(config, 16), 0.0);
            const double L = 2, C = 32, F = 48, q = 4 * 32, kv = 2 * 32;
            const double forward = (flops_per_token(config, 16) - 6.0 * 32 * C) / 3.0;
            config.recompute = Recompute::kFull;
            EXPECT_EQ(flops_per_token(config, 16), forward * 3.0 + 6.0 * 32 * C);
            double unread = 0.0;
            if (architecture == Architecture::kPreNorm) unread = 2 * C * F;
            if (architecture == Architecture::kParallel) unread = 2 * C * F + 2 * C * q;
            EXPECT_DOUBLE_EQ(recomputed_flops_per_token(config, 16), forward - L * unread);
            config.recompute = Recompute::kAttention;
            // Visible keys: 136 pairs of 16 in the layer without a window, 70 with one of 5.
            EXPECT_DOUBLE_EQ(recomputed_flops_per_token(config, 16),
                             L * 2 * C * (q + 2 * kv) + 4 * q * (136.0 + 70.0) / 16.0);
        }
    }
}

}  // namespace
}  // namespace evenkeel
