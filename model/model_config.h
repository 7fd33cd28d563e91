// The shape of a language model, and what follows from it alone.
//
// C width, F feed-forward width, V vocabulary, L layers, H query heads, D head width, T positions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attention/tensor_parallel_attention.h"
#include "framework/config.h"

namespace evenkeel {

// gelu: the exact form (Hendrycks and Gimpel 2016). The gated ones: Shazeer 2020, eq. 6; geglu with the tanh form.
enum class Activation { kSwiGlu, kGelu, kGeGlu };
// Whether two matrices lead into the feed-forward layer, w_gate and w_up.
inline bool is_gated(Activation activation) { return activation != Activation::kGelu; }

enum class ComputeType { kFp32, kBf16 };
inline DType to_dtype(ComputeType type) {
    return type == ComputeType::kBf16 ? DType::kBFloat16 : DType::kFloat32;
}

// Where a decoder block has its norms, and how it adds up; f and g stand for attention and feed-forward.
enum class Architecture {
    kPreNorm,       // r = x + f(norm(x)),        y = r + g(norm(r))
    kNgpt,          // hidden states and weights of unit length (Loshchilov et al. 2024)
    kPostNorm,      // r = x + norm(f(x)),        y = r + norm(g(r))        (OLMo 2)
    kSandwichNorm,  // r = x + norm(f(norm(x))),  y = r + norm(g(norm(r)))  (Gemma 2 and 3)
    kParallel,      // y = x + f(n) + g(n), n = norm(x)                     (GPT-J, Command R)
};

// What backward makes again from what forward has kept, so that less is kept: the same bits in less memory and more
// time. After Chen et al. 2016 (section 4, the inputs of parts alone) and Korthikanti et al. 2022 (section 5, of
// attention alone).
enum class Recompute {
    kNone,
    // Norms before the layers, q and k after norm and rotation, and what the activation returns: no product. (Not q and k
    // that one statistic of all heads divides: its sum over ranks would be sent again.)
    kElementwise,
    kAttention,  // what attention makes up to its output projection, and the norm before it
    kFull,       // all of a block; its input is kept
};

inline constexpr Recompute kAllRecompute[] = {Recompute::kNone, Recompute::kElementwise,
                                              Recompute::kAttention, Recompute::kFull};
const char* name_of(Recompute recompute);  // as a configuration has it

// The norms of the residual stream.
struct NormConfig {
    enum class Kind { kRms, kLayerNorm };
    Kind kind = Kind::kRms;
    bool bias = false;         // kLayerNorm only
    double gain_offset = 0.0;  // 1: gains are stored as gain - 1 (Gemma)
    void visit_fields(ConfigVisitor& v);
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
    bool feed_forward_bias = false;
    double embedding_scale =
        1.0;                   // hidden states start as the embedding times this (Gemma: sqrt(C))
    double logit_scale = 1.0;  // of the output projection's result (Command R)
    // Every n-th layer, from the n-th on, attends without the window and with rope.theta and its scaling; the
    // others with the window and, where local_rope_theta is not 0, with that theta and no scaling (Gemma 3).
    // 0: all layers are alike.
    std::int64_t global_interval = 0;
    double local_rope_theta = 0.0;
    std::string qk_norm_layers;  // "0,3-5": those that have attention.qk_norm; "": all
    double norm_eps = 1e-6;
    NormConfig norm;
    double init_std = 0.02;           // residual outputs (wo, w_down) get init_std / sqrt(2 L)
    double embedding_init_std = 1.0;  // of an untied embedding; a tied one gets init_std
    ComputeType type = ComputeType::kBf16;
    bool telemetry = true;  // per-head max logit and entropy from inside the attention kernel
    Recompute recompute = Recompute::kNone;
    AttentionConfig attention;
    void visit_fields(ConfigVisitor& v);
    // Throws kConfig naming the key to change.
    void validate(std::int64_t tensor_parallel, Device device = Device::kCpu) const;

    // What is allowed but often a mistake, a sentence each; AttentionConfig's too.
    std::vector<std::string> warnings() const;

    // The attention of layer 0 .. num_layers - 1.
    AttentionConfig layer_attention(std::int64_t layer) const;
    std::vector<AttentionConfig> layer_attentions() const;  // of all layers
};

// JSON that names the model: what TrainableModel::description says of it, and model.safetensors in its metadata.
std::string description_of(const ModelConfig& config);

// Norms of the residual stream in a layer.
std::int64_t stream_norms(Architecture architecture);
// Exact number of trainable elements of the global model.
std::int64_t parameter_count(const ModelConfig& config);
// Floating-point operations of one token's forward and backward pass in a sequence of T: 6 per matrix
// element a token is multiplied with (embedding look-up excluded, output projection included), plus
// attention's 12 H D per visible (query, key) pair, the mean over the mask's visible pairs.
double flops_per_token(const ModelConfig& config, std::int64_t seq_len);
// The same of what backward makes again beside these (Recompute): what the hardware has to do more for the same model.
double recomputed_flops_per_token(const ModelConfig& config, std::int64_t seq_len);

}  // namespace evenkeel
