// A pre-norm decoder language model: embedding, blocks of (norm, attention, add, norm, feed-forward, add),
// final norm, vocabulary-parallel projection, cross-entropy.
//
// B batch, T positions, C width, F feed-forward width, V vocabulary, L layers, P tensor-parallel size.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "attention/tensor_parallel_attention.h"
#include "framework/config.h"
#include "framework/trainer.h"
#include "parallel/process_grid.h"
#include "parallel/vocab.h"

namespace evenkeel {

enum class Activation { kSwiGlu, kGelu };
enum class ComputeType { kFp32, kBf16 };

struct ModelConfig {
    std::int64_t vocab_size = 256;
    std::int64_t num_layers = 6;
    std::int64_t width = 256;               // C
    std::int64_t feed_forward_width = 704;  // F
    std::int64_t max_seq_len = 256;
    Activation activation = Activation::kSwiGlu;
    bool tied_embeddings = false;  // the output projection is the embedding
    double norm_eps = 1e-6;
    double init_std = 0.02;  // residual outputs (wo, w_down) get init_std / sqrt(2 L)
    ComputeType type = ComputeType::kBf16;
    bool telemetry = true;  // per-head max logit and entropy from inside the attention kernel
    AttentionConfig attention;
    void visit_fields(ConfigVisitor& v);
    void validate(std::int64_t tensor_parallel) const;
};

// Exact number of trainable elements of the global model.
std::int64_t parameter_count(const ModelConfig& config);
// Floating-point operations of one token's forward and backward pass in a sequence of T: 6 per matrix
// element a token is multiplied with (embedding look-up excluded, output projection included), plus
// attention's 12 H D per visible (query, key) pair, the mean over the mask's visible pairs.
double flops_per_token(const ModelConfig& config, std::int64_t seq_len);

class DecoderBlock;

class LanguageModel : public TrainableModel {
  public:
    // Allocates and initialises. The grid must outlive the model.
    LanguageModel(const ProcessGrid& grid, const ModelConfig& config, std::uint64_t seed);
    ~LanguageModel() override;

    const ModelConfig& config() const { return config_; }

    // Logits of the last position, gathered over TP: [B, V] fp32. Decodes through per-layer KV caches.
    struct DecodeState;
    std::unique_ptr<DecodeState> start_decoding(std::int64_t batch, std::int64_t capacity);
    Tensor decode(DecodeState& state, const Tensor& tokens);  // tokens [B, T] int32

    // TrainableModel; see there.
    const ParameterList& parameters() override { return parameters_; }
    double forward_backward(const Batch& batch, double loss_scale) override;
    double evaluate(const Batch& batch) override;
    void reduce_gradients() override;
    double gradient_norm() override;
    double data_parallel_mean(double value) override;
    std::vector<MetricTable> head_metrics() override;
    std::string locate_non_finite(const Batch& batch) override;
    void save_state(const std::string& directory) override;
    void load_state(const std::string& directory) override;
    void load_weights(const std::string& directory);  // without optimizer state
    std::string description() const override;
    bool is_main_rank() const override;
    int data_parallel_rank() const override;
    int data_parallel_size() const override;
    void barrier() override;
    double flops_per_token(std::int64_t seq_len) const override;

  private:
    struct Activations;
    const ProcessGrid& grid_;
    ModelConfig config_;
    std::unique_ptr<VocabParallelEmbedding> embedding_;
    std::vector<std::unique_ptr<DecoderBlock>> blocks_;
    Parameter final_norm_;
    std::unique_ptr<ColumnParallelLinear> output_;  // null when tied
    ParameterList parameters_;
};

}  // namespace evenkeel
