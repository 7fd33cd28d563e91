// The shape of a language model, and what follows from it alone.
//
// C width, F feed-forward width, V vocabulary, L layers, H query heads, D head width, T positions.
#pragma once

#include <cstdint>
#include <string>

#include "attention/tensor_parallel_attention.h"
#include "framework/config.h"

namespace evenkeel {

enum class Activation { kSwiGlu, kGelu };
enum class ComputeType { kFp32, kBf16 };
enum class Architecture {
    kPreNorm,  // decoder_block.h
    kNgpt,     // hidden states and weights of unit length (Loshchilov et al. 2024)
};

struct ModelConfig {
    std::string method;                     // a name of method.h, or none: the settings as they are
    std::int64_t vocab_size = 256;          // V
    std::int64_t num_layers = 6;            // L
    std::int64_t width = 256;               // C
    std::int64_t feed_forward_width = 704;  // F
    std::int64_t max_seq_len = 256;
    Activation activation = Activation::kSwiGlu;
    Architecture architecture = Architecture::kPreNorm;
    bool sigma_reparam = false;  // linear layers' weights are gamma W / sigma(W) (Zhai et al. 2023)
    bool tied_embeddings = false;  // the output projection is the embedding
    double norm_eps = 1e-6;
    double init_std = 0.02;           // residual outputs (wo, w_down) get init_std / sqrt(2 L)
    double embedding_init_std = 1.0;  // of an untied embedding; a tied one gets init_std
    ComputeType type = ComputeType::kBf16;
    bool telemetry = true;  // per-head max logit and entropy from inside the attention kernel
    AttentionConfig attention;
    void visit_fields(ConfigVisitor& v);
    // Throws kConfig naming the key to change.
    void validate(std::int64_t tensor_parallel, Device device = Device::kCpu) const;
};

// Exact number of trainable elements of the global model.
std::int64_t parameter_count(const ModelConfig& config);
// Floating-point operations of one token's forward and backward pass in a sequence of T: 6 per matrix
// element a token is multiplied with (embedding look-up excluded, output projection included), plus
// attention's 12 H D per visible (query, key) pair, the mean over the mask's visible pairs.
double flops_per_token(const ModelConfig& config, std::int64_t seq_len);

}  // namespace evenkeel
