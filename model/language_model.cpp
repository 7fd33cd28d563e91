#include "model/language_model.h"

#include "framework/gemm.h"
#include "model/decoder_block.h"
#include "model/head_statistics.h"
#include "model/rms_norm.h"
#include "parallel/tensor_reduce.h"

namespace evenkeel {

struct LanguageModel::Activations {
    std::vector<DecoderBlockSaved> blocks;
    Tensor x;       // [B, T, C], what the last block returned
    Tensor rstd;    // [B T], of the final norm
    Tensor normed;  // [B, T, C]
};

LanguageModel::LanguageModel(const ProcessGrid& grid, const ModelConfig& config, std::uint64_t seed)
    : grid_(grid), config_(config) {
    config.validate(grid.tp_size());
    const DType type = config.type == ComputeType::kBf16 ? DType::kBFloat16 : DType::kFloat32;
    embedding_ = std::make_unique<VocabParallelEmbedding>(grid, "embedding", config.vocab_size,
                                                          config.width, type);
    embedding_->collect_parameters(parameters_);
    // A residual stream that starts as small as the other weights lets the first updates turn its direction
    // round, which shows as a spike of the loss.
    init_normal(embedding_->weight(),
                config.tied_embeddings ? config.init_std : config.embedding_init_std, seed);
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        blocks_.push_back(
            std::make_unique<DecoderBlock>(grid, config, type, concat("layers.", layer)));
        blocks_.back()->initialize(seed);
        blocks_.back()->collect_parameters(parameters_);
    }
    final_norm_ = std::make_unique<RmsNorm>(grid, "final_norm", config.width, config.norm_eps);
    final_norm_->collect_parameters(parameters_);
    if (!config.tied_embeddings) {
        const Sharding rows =
            Sharding::sharded(0, config.vocab_size, 1, grid.tp_rank(), grid.tp_size());
        output_ = std::make_unique<ColumnParallelLinear>(
            grid, std::vector<ColumnParallelLinear::Part>{{"output", config.vocab_size, rows}},
            config.width, type);
        output_->collect_parameters(parameters_);
        init_normal(output_->part(0), config.init_std, seed);
    }
    if (config.telemetry) {
        statistics_ = std::make_unique<HeadStatistics>(config.num_layers,
                                                       blocks_.front()->attention().local_heads());
    }
}

LanguageModel::~LanguageModel() = default;

// Forward and backward --------------------------------------------------------------------------------

// x [B, T, C], replicated; returns logits [B, T, V/P].
Tensor LanguageModel::project(const Tensor& x) const {
    if (output_ != nullptr) return output_->forward(x);
    const Tensor& weight = embedding_->weight().value;  // [V/P, C]
    const std::int64_t rows = x.size(0) * x.size(1);
    const Tensor logits =
        Tensor::uninitialized({x.size(0), x.size(1), weight.size(0)}, x.dtype());  // [B, T, V/P]
    gemm(x.view({rows, x.size(2)}), weight, logits.view({rows, weight.size(0)}),
         {.transpose_b = true});
    return logits;
}

// Adds to the projection's weight gradient; returns dx [B, T, C], summed over TP.
Tensor LanguageModel::project_backward(const Tensor& dlogits, const Tensor& x) {
    if (output_ != nullptr) return output_->backward(dlogits, x);
    const Parameter& weight = embedding_->weight();
    const std::int64_t rows = x.size(0) * x.size(1);
    const Tensor flat = dlogits.view({rows, dlogits.size(2)});
    gemm(flat, x.view({rows, x.size(2)}), weight.grad, {.transpose_a = true, .accumulate = true});
    const Tensor dx = Tensor::uninitialized(x.shape(), x.dtype());  // [B, T, C]
    gemm(flat, weight.value, dx.view({rows, x.size(2)}));
    sum_partial_products(grid_, dx);
    return dx;
}

Tensor LanguageModel::forward(const Tensor& tokens,
                              Activations* saved,
                              HeadStatistics* statistics,
                              FiniteProbe* probe) {
    EVENKEEL_CHECK(tokens.rank() == 2 && tokens.size(1) <= config_.max_seq_len, "LanguageModel",
                   "tokens: got shape ", to_string(tokens.shape()), ", want [B, T] with T up to ",
                   config_.max_seq_len, " (model.max_seq_len)");
    const SequenceLayout layout;
    if (saved != nullptr) saved->blocks.resize(blocks_.size());
    DecoderBlockSaved scratch;
    Tensor x = embedding_->forward(tokens);  // [B, T, C]
    if (probe != nullptr) probe->check("embedding (forward)", x);
    for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
        AttentionStats stats;
        if (statistics != nullptr) stats = statistics->make_stats();
        x = blocks_[layer]->forward(x, layout, saved != nullptr ? saved->blocks[layer] : scratch,
                                    statistics != nullptr ? &stats : nullptr, probe);
        if (statistics != nullptr) statistics->add(layer, stats, tokens.numel());
    }
    Tensor rstd;
    const Tensor normed = final_norm_->forward(x, rstd);
    Tensor logits = project(normed);  // [B, T, V/P]
    if (probe != nullptr) {
        probe->check("final_norm (forward)", normed);
        probe->check("output (forward)", logits);
    }
    if (saved != nullptr) {
        saved->x = x;
        saved->rstd = rstd;
        saved->normed = normed;
    }
    return logits;
}

void LanguageModel::backward(const Tensor& tokens,
                             const Tensor& dlogits,
                             Activations& saved,
                             FiniteProbe* probe) {
    const SequenceLayout layout;
    const Tensor dnormed = project_backward(dlogits, saved.normed);                   // [B, T, C]
    const Tensor gradient = Tensor::uninitialized(dnormed.shape(), dnormed.dtype());  // [B, T, C]
    final_norm_->backward(dnormed, saved.x, saved.rstd, false, gradient);
    if (probe != nullptr) {
        const Parameter& projection = output_ != nullptr ? output_->part(0) : embedding_->weight();
        probe->check(projection.name + " (gradient)", projection.grad);
        probe->check("output (backward)", dnormed);
        probe->check("final_norm (gradient)", final_norm_->gain().grad);
        probe->check("final_norm (backward)", gradient);
    }
    for (std::size_t layer = blocks_.size(); layer-- > 0;) {
        blocks_[layer]->backward(gradient, layout, saved.blocks[layer]);
        saved.blocks[layer] = {};  // no longer needed; the peak stays one layer lower
        if (probe == nullptr) continue;
        ParameterList of_block;
        blocks_[layer]->collect_parameters(of_block);
        // Backward runs from the last parameter to the first.
        for (auto it = of_block.rbegin(); it != of_block.rend(); ++it) {
            probe->check((*it)->name + " (gradient)", (*it)->grad);
        }
        probe->check(concat("layers.", layer, " (backward)"), gradient);
    }
    embedding_->backward(gradient, tokens);
    if (probe != nullptr) probe->check("embedding (gradient)", embedding_->weight().grad);
}

Tensor LanguageModel::local_logits(const Tensor& tokens) {
    return forward(tokens, nullptr, nullptr, nullptr);
}

double LanguageModel::forward_backward(const Batch& batch, double loss_scale) {
    Activations saved;
    const Tensor logits = forward(batch.tokens, &saved, statistics_.get(), nullptr);
    CrossEntropySaved loss_saved;
    const double loss = mean_cross_entropy(grid_, logits, batch.targets, loss_saved);
    cross_entropy_backward(grid_, logits, batch.targets, loss_saved, loss_scale, logits);
    backward(batch.tokens, logits, saved, nullptr);
    return loss;
}

double LanguageModel::evaluate(const Batch& batch) {
    CrossEntropySaved unused;
    return mean_cross_entropy(grid_, local_logits(batch.tokens), batch.targets, unused);
}

std::string LanguageModel::locate_non_finite(const std::vector<Batch>& batches) {
    // What the step had summed names the place if running it again finds nothing.
    FiniteProbe summed;
    for (const Parameter* parameter : parameters_) {
        summed.check(parameter->name + " (gradient, not seen when run again)", parameter->grad);
    }
    std::string place;
    for (std::size_t i = 0; i < batches.size() && place.empty(); ++i) {
        zero_gradients(parameters_);
        FiniteProbe probe;
        for (const Parameter* parameter : parameters_) {
            probe.check(parameter->name + " (weight)", parameter->value);
        }
        Activations saved;
        const Tensor logits = forward(batches[i].tokens, &saved, nullptr, &probe);
        CrossEntropySaved loss_saved;
        mean_cross_entropy(grid_, logits, batches[i].targets, loss_saved);
        probe.check("loss (forward)", loss_saved.log_sum_exp);
        cross_entropy_backward(grid_, logits, batches[i].targets, loss_saved, 1.0, logits);
        probe.check("loss (backward)", logits);
        backward(batches[i].tokens, logits, saved, &probe);
        place = probe.first(grid_);
    }
    zero_gradients(parameters_);
    const std::string in_sum = summed.first(grid_);
    return place.empty() ? in_sum : place;
}

// Decoding --------------------------------------------------------------------------------------------

std::unique_ptr<LanguageModel::DecodeState> LanguageModel::start_decoding(std::int64_t batch,
                                                                          std::int64_t capacity) {
    auto state = std::make_unique<DecodeState>();
    for (const auto& block : blocks_) {
        state->caches.push_back(block->attention().make_cache(batch, capacity));
    }
    return state;
}

Tensor LanguageModel::decode(DecodeState& state, const Tensor& tokens) {
    Tensor x = embedding_->forward(tokens);  // [B, T, C]
    for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
        x = blocks_[layer]->decode(x, state.caches[layer]);
    }
    const std::int64_t batch = x.size(0), ranks = grid_.tp_size();
    const Tensor last = x.slice(1, x.size(1) - 1, x.size(1)).contiguous();  // [B, 1, C]
    Tensor rstd;
    const Tensor local =
        project(final_norm_->forward(last, rstd)).to(DType::kFloat32);  // [B, 1, V/P]
    const std::int64_t columns = local.size(2);
    const Tensor gathered = Tensor::uninitialized({ranks, batch, columns}, DType::kFloat32);
    grid_.tensor().all_gather(local, gathered);
    Tensor logits = Tensor::uninitialized({batch, config_.vocab_size}, DType::kFloat32);  // [B, V]
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
        logits.slice(1, rank * columns, (rank + 1) * columns)
            .copy_from(gathered.slice(0, rank, rank + 1).view({batch, columns}));
    }
    return logits;
}

// What ranks do together --------------------------------------------------------------------------------

void LanguageModel::reduce_gradients() {
    ::evenkeel::reduce_gradients(grid_, parameters_, config_.attention.num_kv_heads);
}

double LanguageModel::gradient_norm() { return ::evenkeel::gradient_norm(grid_, parameters_); }

double LanguageModel::data_parallel_mean(double value) {
    return grid_.data().all_reduce_scalar(value, ReduceOp::kSum) / grid_.dp_size();
}

std::vector<MetricTable> LanguageModel::head_metrics() {
    if (statistics_ == nullptr) return {};
    return statistics_->reduce(grid_);
}

bool LanguageModel::is_main_rank() const { return grid_.world().rank() == 0; }
int LanguageModel::data_parallel_rank() const { return grid_.dp_rank(); }
int LanguageModel::data_parallel_size() const { return grid_.dp_size(); }
void LanguageModel::barrier() { grid_.world().barrier(); }

double LanguageModel::flops_per_token(std::int64_t seq_len) const {
    return ::evenkeel::flops_per_token(config_, seq_len);
}

}  // namespace evenkeel
