#include "model/language_model.h"

#include <cmath>
#include <utility>

#include "framework/gemm.h"
#include "framework/graph.h"
#include "framework/memory_scope.h"
#include "framework/upload.h"
#include "model/blocks/decoder_block.h"
#include "model/blocks/norm.h"
#include "model/method.h"
#include "model/ops/elementwise.h"
#include "model/ops/logit_clip.h"
#include "model/rules/gain_hold.h"
#include "model/rules/qk_norm_anneal.h"
#include "model/telemetry/head_statistics.h"
#include "parallel/replica_check.h"
#include "parallel/tensor_reduce.h"

namespace evenkeel {

struct LanguageModel::Activations {
    std::vector<DecoderBlockSaved> blocks;
    Tensor x;       // the stream, what the last block returned
    Tensor rstd;    // of the final norm, if there is one
    Tensor normed;  // what the projection reads, with the scale of logits; x itself without a norm
};

// Passes over batches of one shape, and where a graph of them finds its input and leaves its loss.
struct LanguageModel::Recorded {
    static constexpr int kRunsBefore = 3;  // to set up what is set up once, and to be timed

    Input input;
    Tensor loss;  // [1] fp64; held, so that no other tensor has its address
    double loss_scale;
    bool last;
    int runs;
    Graph graph;
};

LanguageModel::LanguageModel(const ProcessGrid& grid, const ModelConfig& config, std::uint64_t seed)
    : grid_(grid), config_(config) {
    config.validate(grid.tp_size(), grid.device());
    const DType type = to_dtype(config.type);
    embedding_ = std::make_unique<VocabParallelEmbedding>(grid, "embedding", config.vocab_size,
                                                          config.width, type);
    embedding_->collect_parameters(parameters_);
    for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
        blocks_.push_back(make_decoder_block(grid, config, layer, type));
        blocks_.back()->collect_parameters(parameters_);
    }
    if (config.architecture != Architecture::kNgpt) {
        final_norm_ = std::make_unique<Norm>(grid, config, "final_norm");
        final_norm_->collect_parameters(parameters_);
    }
    if (!config.tied_embeddings) {
        const Sharding rows =
            Sharding::sharded_unevenly(0, config.vocab_size, grid.tp_rank(), grid.tp_size());
        output_ = std::make_unique<ColumnParallelLinear>(
            grid, std::vector<ColumnParallelLinear::Part>{{"output", config.vocab_size, rows}},
            config.width, type);
        output_->collect_parameters(parameters_);
    }
    make_rules();
    buckets_ = ParameterBuckets(parameters_, grid.device(), ParameterBuckets::kElements,
                                grid.state_ranks());
    reducer_ = std::make_unique<GradientReducer>(grid, buckets_, config.attention.num_kv_heads);
    // A residual stream that starts as small as the other weights lets the first updates turn its direction
    // round, which shows as a spike of the loss.
    init_normal(embedding_->weight(),
                config.tied_embeddings ? config.init_std : config.embedding_init_std, seed);
    for (const auto& block : blocks_) block->initialize(seed);
    if (final_norm_ != nullptr) final_norm_->initialize();
    if (output_ != nullptr) init_normal(output_->part(0), config.init_std, seed);
    for (const auto& rule : rules_) {
        rule->initialized();
        if (!rule->needs_max_logit() || step_max_logit_.defined()) continue;
        step_max_logit_ =
            Tensor::full({config.num_layers, blocks_.front()->attention().local_heads()}, -INFINITY,
                         DType::kFloat32, grid.device());
    }
    if (grid.device() == Device::kCuda) uploads_ = std::make_unique<UploadRing>();
    if (config.telemetry) {
        statistics_ = std::make_unique<HeadStatistics>(
            config.layer_attentions(), blocks_.front()->attention().local_heads(),
            blocks_.front()->attention().local_kv_heads(), grid.device());
    }
}

LanguageModel::~LanguageModel() = default;

// Forward and backward --------------------------------------------------------------------------------

// Passes without backward hold all rows on every rank where these can't be shared evenly.
SequenceLayout LanguageModel::layout_of(const Input& input) const {
    SequenceLayout layout = input.layout;
    layout.region = sequence_region(grid_, input.tokens.size(0), input.tokens.size(1));
    return layout;
}

// The first hidden states [B, T, C], as the region holds them.
Tensor LanguageModel::embed(const Tensor& tokens, const SequenceRegion& region) const {
    Tensor x = embedding_->forward(tokens, region);
    if (config_.embedding_scale != 1.0) scale_in_place(x, config_.embedding_scale);
    return x;
}

// What the output projection reads. The scale of logits is in it: that of fewer numbers.
Tensor LanguageModel::normalize(const Tensor& x, Tensor& statistics) const {
    if (final_norm_ == nullptr) return x;
    Tensor normed = final_norm_->forward(x, statistics);
    if (config_.logit_scale != 1.0) scale_in_place(normed, config_.logit_scale);
    return normed;
}

// x [B, T, C] as the region holds it; returns logits [B, T, V/P].
Tensor LanguageModel::project(const Tensor& x, const SequenceRegion& region) const {
    if (output_ != nullptr) return output_->forward(x, region);
    const MemoryScope scope("output", " (forward)");
    const Tensor& weight = embedding_->weight().value;  // [V/P, C]
    const Tensor all = gather_rows(grid_, region, x);   // [B, T, C]
    const std::int64_t rows = all.size(0) * all.size(1);
    const Tensor logits = Tensor::uninitialized({all.size(0), all.size(1), weight.size(0)},
                                                x.dtype(), x.device());  // [B, T, V/P]
    gemm(all.view({rows, x.size(2)}), weight, logits.view({rows, weight.size(0)}),
         {.transpose_b = true});
    return logits;
}

// Adds to the projection's weight gradient; returns dx like x, summed over TP.
Tensor LanguageModel::project_backward(const Tensor& dlogits,
                                       const Tensor& x,
                                       const SequenceRegion& region) {
    if (output_ != nullptr) return output_->backward(dlogits, x, region);
    const Parameter& weight = embedding_->weight();
    const std::int64_t B = dlogits.size(0), T = dlogits.size(1), C = x.size(2);
    const Tensor flat = dlogits.view({B * T, dlogits.size(2)});
    PendingRows gathering = start_gather_rows(grid_, region, x);
    const Tensor dx = Tensor::uninitialized({B, T, C}, x.dtype(), x.device());
    gemm(flat, weight.value, dx.view({B * T, C}));
    const Tensor all = gathering.wait();  // [B, T, C]
    PendingRows sum = start_sum_rows(grid_, region, dx);
    gemm(flat, all.view({B * T, C}), weight.grad, {.transpose_a = true, .accumulate = true});
    return sum.wait();
}

Tensor LanguageModel::forward(const Input& input,
                              Activations* saved,
                              HeadStatistics* statistics,
                              FiniteProbe* probe,
                              const AttentionObserver* observer) {
    const Tensor& tokens = input.tokens;
    EVENKEEL_CHECK(tokens.rank() == 2, "LanguageModel", "tokens: got shape ",
                   to_string(tokens.shape()), ", want [B, T]");
    const SequenceLayout layout = layout_of(input);
    const std::int64_t longest = layout.cu_seqlens.empty() ? tokens.size(1) : layout.positions_end;
    EVENKEEL_CHECK(longest <= config_.max_seq_len, "LanguageModel", "tokens: got shape ",
                   to_string(tokens.shape()), " and a sequence of ", longest, ", want at most ",
                   config_.max_seq_len, " (model.max_seq_len)");
    EVENKEEL_CHECK_CODE(saved == nullptr || layout.region.is_cut() || !grid_.sequence_parallel(),
                        ErrorCode::kConfig, "LanguageModel", "tokens: got ", tokens.numel(),
                        " in a batch, want a multiple of parallel.tensor_parallel=",
                        grid_.tp_size(), " with parallel.sequence_parallel");
    if (saved != nullptr) saved->blocks.resize(blocks_.size());
    DecoderBlockSaved scratch;
    scratch.attention.keeps_qkv = observer != nullptr;
    // Rules count what is trained on.
    const bool for_rules = step_max_logit_.defined() && saved != nullptr && probe == nullptr;
    const bool wants_stats = statistics != nullptr || for_rules || observer != nullptr;
    Tensor x = embed(tokens, layout.region);
    if (probe != nullptr) probe->check("embedding (forward)", x);
    for (std::size_t layer = 0; layer < blocks_.size(); ++layer) {
        AttentionStats stats;
        DecoderBlockSaved& of_block = saved != nullptr ? saved->blocks[layer] : scratch;
        x = blocks_[layer]->forward(x, layout, of_block, wants_stats ? &stats : nullptr, probe);
        if (for_rules) {
            const auto at = static_cast<std::int64_t>(layer);
            take_maximum(
                step_max_logit_.slice(0, at, at + 1).view(stats.max_logit.shape()),
                config_.attention.softcap > 0.0 ? stats.max_logit_uncapped : stats.max_logit);
        }
        if (statistics != nullptr) {
            statistics->add(layer, stats, of_block.attention, tokens.numel());
        }
        if (observer != nullptr) {
            const TensorParallelAttention& attention = blocks_[layer]->attention();
            const Tensor& qkv = of_block.attention.qkv;
            (*observer)({static_cast<std::int64_t>(layer), attention.heads(qkv, 0),
                         attention.heads(qkv, 1), stats});
        }
        if (saved != nullptr) blocks_[layer]->forget(of_block);
    }
    Tensor rstd;
    const Tensor normed = normalize(x, rstd);
    Tensor logits = project(normed, layout.region);  // [B, T, V/P]
    if (probe != nullptr) {
        if (final_norm_ != nullptr) probe->check("final_norm (forward)", normed);
        probe->check("output (forward)", logits);
    }
    if (saved != nullptr) {
        saved->x = x;
        saved->rstd = rstd;
        saved->normed = normed;
    }
    return logits;
}

void LanguageModel::backward(const Input& input,
                             Tensor dlogits,
                             Activations& saved,
                             GradientReducer* reducer,
                             FiniteProbe* probe) {
    const auto complete = [&](auto& layer) {
        if (reducer == nullptr) return;
        ParameterList of_layer;
        layer.collect_parameters(of_layer);
        reducer->complete(of_layer);
    };
    // Backward runs from the last parameter to the first.
    const auto probe_gradients = [&](auto& layer) {
        ParameterList of_layer;
        layer.collect_parameters(of_layer);
        for (auto it = of_layer.rbegin(); it != of_layer.rend(); ++it) {
            probe->check((*it)->name + " (gradient)", (*it)->grad);
        }
    };
    const SequenceLayout layout = layout_of(input);
    Tensor dnormed = project_backward(dlogits, saved.normed, layout.region);
    dlogits = saved.normed = {};  // what has been read goes, and the peak with it
    if (output_ != nullptr) complete(*output_);
    Tensor gradient = dnormed;  // of the stream
    if (final_norm_ != nullptr) {
        gradient = Tensor::uninitialized(dnormed.shape(), dnormed.dtype(), dnormed.device());
        if (config_.logit_scale != 1.0) scale_in_place(dnormed, config_.logit_scale);
        final_norm_->backward(dnormed, saved.x, saved.rstd, false, gradient);
        complete(*final_norm_);
    }
    if (probe == nullptr) {
        saved.x = saved.rstd = dnormed = {};
    } else {
        const Parameter& projection = output_ != nullptr ? output_->part(0) : embedding_->weight();
        probe->check(projection.name + " (gradient)", projection.grad);
        probe->check("output (backward)", dnormed);
        if (final_norm_ != nullptr) {
            probe_gradients(*final_norm_);
            probe->check("final_norm (backward)", gradient);
        }
    }
    for (std::size_t layer = blocks_.size(); layer-- > 0;) {
        blocks_[layer]->backward(gradient, layout, saved.blocks[layer]);
        saved.blocks[layer] = {};  // no longer needed; the peak stays one layer lower
        complete(*blocks_[layer]);
        if (probe == nullptr) continue;
        probe_gradients(*blocks_[layer]);
        probe->check(concat("layers.", layer, " (backward)"), gradient);
    }
    if (config_.embedding_scale != 1.0) scale_in_place(gradient, config_.embedding_scale);
    embedding_->backward(gradient, input.tokens, layout.region);
    complete(*embedding_);
    if (probe != nullptr) probe->check("embedding (gradient)", embedding_->weight().grad);
}

Tensor LanguageModel::local_logits(const Tensor& tokens,
                                   const std::vector<std::int32_t>& cu_seqlens) {
    const Tensor logits = forward(prepare({tokens, {}, cu_seqlens}), nullptr, nullptr, nullptr);
    return logits.view({tokens.size(0), tokens.size(1), logits.size(2)});
}

void LanguageModel::run_passes(const Input& input,
                               double loss_scale,
                               bool last,
                               const Tensor& loss) {
    Activations saved;
    Tensor logits = forward(input, &saved, statistics_.get(), nullptr);
    {
        CrossEntropySaved loss_saved;
        cross_entropy_forward(grid_, logits, config_.vocab_size, input.targets, loss_saved,
                              loss_scale, loss);
        cross_entropy_backward(grid_, logits, config_.vocab_size, input.targets, loss_saved,
                               loss_scale, logits);
    }
    backward(input, std::move(logits), saved, last ? reducer_.get() : nullptr, nullptr);
    if (!last) return;
    reducer_->finish();
    for (const auto& rule : rules_) rule->gradients_complete();
}

void LanguageModel::forward_backward(const Batch& batch,
                                     double loss_scale,
                                     bool last,
                                     const Tensor& loss) {
    if (statistics_ != nullptr) statistics_->count_rows(batch.tokens.numel());
    if (!can_record(batch)) return run_passes(prepare(batch), loss_scale, last, loss);
    check_batch(batch);
    Recorded& passes = recorded(batch, loss_scale, last, loss);
    uploads_->upload_to(passes.input.tokens, batch.tokens);
    uploads_->upload_to(passes.input.targets, batch.targets);
    const auto run = [&] { run_passes(passes.input, loss_scale, last, loss); };
    if (++passes.runs <= Recorded::kRunsBefore) return run();
    if (!passes.graph.defined()) {
        // A graph has memory of its own; what the runs before have left to the pool would lie idle.
        Buffer::release_unused(Device::kCuda);
        passes.graph = Graph::capture(Stream::current(), run);
    }
    passes.graph.launch();
    replayed_ = true;
}

bool LanguageModel::can_record(const Batch& batch) const {
    return batch.cu_seqlens.empty() && grid_.device() == Device::kCuda && graphs_on_ &&
           !Stream::current().is_default() && grid_.tensor().fits_graphs() &&
           grid_.data().fits_graphs();
}

LanguageModel::Recorded& LanguageModel::recorded(const Batch& batch,
                                                 double loss_scale,
                                                 bool last,
                                                 const Tensor& loss) {
    for (const auto& passes : graphs_) {
        if (passes->input.tokens.shape() == batch.tokens.shape() &&
            passes->loss_scale == loss_scale && passes->last == last &&
            passes->loss.raw() == loss.raw()) {
            return *passes;
        }
    }
    const auto memory = [&] {
        return Tensor::uninitialized(batch.tokens.shape(), DType::kInt32, Device::kCuda);
    };
    graphs_.push_back(std::make_unique<Recorded>(
        Recorded{{memory(), memory(), {}}, loss, loss_scale, last, 0, Graph()}));
    return *graphs_.back();
}

void LanguageModel::make_rules() {
    ModelWeights weights;
    weights.embedding = &embedding_->weight();
    if (output_ != nullptr) weights.output = &output_->part(0);
    for (const auto& block : blocks_) weights.layers.push_back(block->weights());
    const auto add = [&](std::unique_ptr<WeightRule> rule) {
        rule->collect_parameters(parameters_);
        rules_.push_back(std::move(rule));
    };
    for (const Method* method : methods()) {
        if (method->make_rule == nullptr) continue;
        auto rule = method->make_rule(grid_, config_, weights);
        if (rule == nullptr) continue;
        add(std::move(rule));
    }
    const QkNormConfig& norm = config_.attention.qk_norm;
    if (norm.anneal_steps > 0) {
        auto anneal = std::make_unique<QkNormAnneal>(grid_, norm.anneal_steps);
        lambda_ = anneal->lambda();
        for (const auto& block : blocks_) {
            TensorParallelAttention& attention = block->attention();
            if (attention.config().qk_norm.kind != QkNormKind::kNone) attention.set_lambda(lambda_);
        }
        add(std::move(anneal));
    }
    // The last one: what it says of gains is true when the next step begins.
    if (norm.gain_bound > 0.0 || norm.gain_pull > 0.0) {
        add(std::make_unique<GainHold>(config_.layer_attentions(), weights.layers));
    }
}

void LanguageModel::weights_given() {
    for (const auto& rule : rules_) rule->initialized();
}

void LanguageModel::finish_update() {
    std::vector<Pending> gathers = start_gather_of_values(grid_, buckets_);
    for (const auto& rule : rules_) rule->updated(step_max_logit_);
    drop_update();
    for (Pending& gather : gathers) gather.wait();
}

void LanguageModel::drop_update() {
    if (step_max_logit_.defined()) step_max_logit_.fill(-INFINITY);
}

double LanguageModel::evaluate(const Batch& batch) {
    CrossEntropySaved unused;
    const Input input = prepare(batch);
    const Tensor logits = forward(input, nullptr, nullptr, nullptr);
    return mean_cross_entropy(grid_, logits, config_.vocab_size, input.targets, unused);
}

double LanguageModel::observe(const Batch& batch, const AttentionObserver& observer) {
    CrossEntropySaved unused;
    const Input input = prepare(batch);
    const Tensor logits = forward(input, nullptr, nullptr, nullptr, &observer);
    return mean_cross_entropy(grid_, logits, config_.vocab_size, input.targets, unused);
}

std::string LanguageModel::locate_non_finite(const std::vector<Batch>& batches) {
    // What the step had summed names the place if running it again finds nothing.
    FiniteProbe summed;
    for (const Parameter* parameter : parameters_) {
        summed.check(parameter->name + " (gradient, not seen when run again)", parameter->grad);
    }
    std::string place;
    for (std::size_t i = 0; i < batches.size() && place.empty(); ++i) {
        buckets_.zero_gradients();
        FiniteProbe probe;
        for (const Parameter* parameter : parameters_) {
            probe.check(parameter->name + " (weight)", parameter->value);
        }
        const Input input = prepare(batches[i]);
        Activations saved;
        Tensor logits = forward(input, &saved, nullptr, &probe);
        CrossEntropySaved loss_saved;
        mean_cross_entropy(grid_, logits, config_.vocab_size, input.targets, loss_saved);
        probe.check("loss (forward)", loss_saved.log_sum_exp);
        cross_entropy_backward(grid_, logits, config_.vocab_size, input.targets, loss_saved, 1.0,
                               logits);
        probe.check("loss (backward)", logits);
        backward(input, std::move(logits), saved, nullptr, &probe);
        place = probe.first(grid_);
    }
    buckets_.zero_gradients();
    const std::string in_sum = summed.first(grid_);
    return place.empty() ? in_sum : place;
}

// What ranks do together --------------------------------------------------------------------------------

void LanguageModel::reduce_numbers(const Tensor& numbers) {
    if (grid_.dp_size() > 1) {
        grid_.data().all_reduce(numbers.slice(0, kLossIndex, kLossIndex + 1), ReduceOp::kMean);
    }
    squared_gradient_norm(grid_, buckets_,
                          numbers.slice(0, kSquaredNormIndex, kSquaredNormIndex + 1));
}

double LanguageModel::data_parallel_mean(double value) {
    return grid_.data().host().all_reduce_scalar(value, ReduceOp::kSum) / grid_.dp_size();
}

bool LanguageModel::is_main_rank() const { return grid_.world().rank() == 0; }
int LanguageModel::data_parallel_rank() const { return grid_.dp_rank(); }
int LanguageModel::data_parallel_size() const { return grid_.dp_size(); }
void LanguageModel::barrier() { grid_.world().barrier(); }

int LanguageModel::rank() const { return grid_.world().rank(); }

int LanguageModel::ranks() const { return grid_.world().size(); }

double LanguageModel::max_over_ranks(double value) {
    return grid_.world().all_reduce_scalar(value, ReduceOp::kMax);
}

std::string LanguageModel::replica_drift() {
    return ::evenkeel::replica_drift(grid_, parameters_, config_.attention.num_kv_heads);
}

}  // namespace evenkeel
