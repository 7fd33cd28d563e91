#include "attention/tensor_parallel_attention.h"

#include <algorithm>

#include "attention/full_width_norm.h"
#include "attention/gain.h"

namespace evenkeel {
namespace {

constexpr const char* kOp = "attention";
// Ranks that hold the same KV head each see some of its query heads.
GradientSum kv_gradient_sum(const Sharding& sharding) {
    return sharding.replicas > 1 ? GradientSum::kReplicaGroup : GradientSum::kNone;
}

bool is_factor(QkNormConfig::Gain gain) {
    return gain == QkNormConfig::Gain::kPerHeadScalar || gain == QkNormConfig::Gain::kScalar;
}

Parameter make_gain(const ProcessGrid& grid,
                    const QkNormConfig& config,
                    const std::string& name,
                    std::int64_t heads,
                    std::int64_t head_dim) {
    using Gain = QkNormConfig::Gain;
    const int rank = grid.tp_rank(), size = grid.tp_size();
    const bool shared = config.gain == Gain::kSharedChannel || config.gain == Gain::kScalar;
    const std::int64_t width = is_factor(config.gain) ? 1 : head_dim;
    Shape shape{shared ? width : heads};
    if (config.gain == Gain::kPerHeadChannel) shape.push_back(width);
    const Sharding sharding = shared ? Sharding::replicated(rank, size)
                                     : Sharding::sharded_by_head(0, heads, 1, rank, size);
    Parameter gain = declare_parameter(name, shape, sharding, DType::kFloat32);
    // A rank's heads see a shared gain only in part.
    gain.gradient_sum = shared ? GradientSum::kTensorParallel : kv_gradient_sum(sharding);
    gain.weight_decay = config.gain_weight_decay;
    gain.first_phase = true;
    return gain;
}

Parameter make_sink(const ProcessGrid& grid, const std::string& name, std::int64_t heads) {
    Parameter sink = declare_parameter(
        name, {heads}, Sharding::sharded_by_head(0, heads, 1, grid.tp_rank(), grid.tp_size()),
        DType::kFloat32);
    sink.weight_decay = false;
    return sink;
}

bool exists(const Parameter& parameter) { return !parameter.name.empty(); }

// Where the gradient of a gain is added up: a tensor like it.
Tensor zeros_like(const Tensor& gain) {
    return gain.defined() ? Tensor::zeros(gain.shape(), DType::kFloat32, gain.device()) : Tensor();
}

// The table's rows from position `first` on.
RopeTable rows_from(const RopeTable& table, std::int64_t first, std::int64_t count) {
    RopeTable rows = table;
    rows.first = first;
    rows.count = count;
    if (table.rotary_dim > 0) {
        rows.cos = table.cos.slice(0, first, first + count);
        rows.sin = table.sin.slice(0, first, first + count);
    }
    return rows;
}

// One more than the largest position of heads [B, T, ..].
std::int64_t positions_end(const Tensor& heads, const SequenceLayout& layout) {
    if (!layout.positions.defined()) return heads.size(1);
    check_shape(kOp, "positions", layout.positions, {heads.size(0), heads.size(1)});
    check_dtype(kOp, "positions", layout.positions, DType::kInt32);
    if (layout.positions_end > 0) return layout.positions_end;
    const Tensor positions = layout.positions.to(Device::kCpu).contiguous();
    const std::int32_t* values = positions.data<std::int32_t>();
    std::int64_t end = 0;
    for (std::int64_t i = 0; i < positions.numel(); ++i) {
        end = std::max<std::int64_t>(end, values[i] + 1);
    }
    return end;
}

}  // namespace

TensorParallelAttention::TensorParallelAttention(const ProcessGrid& grid,
                                                 const AttentionConfig& config,
                                                 std::int64_t width,
                                                 DType type,
                                                 const std::string& prefix)
    : grid_(grid), config_(config), type_(type) {
    config_.validate(grid.tp_size(), grid.device());
    const std::int64_t H = config_.num_heads, K = config_.num_kv_heads, D = config_.head_dim;
    const int rank = grid.tp_rank(), size = grid.tp_size();
    const Sharding query = Sharding::sharded_by_head(0, H, D, rank, size);
    const Sharding key = Sharding::sharded_by_head(0, K, D, rank, size);
    local_heads_ = (query.end - query.begin) / D;
    local_kv_heads_ = (key.end - key.begin) / D;

    const GradientSum kv_sum = kv_gradient_sum(key);
    qkv_ = std::make_unique<ColumnParallelLinear>(
        grid,
        std::vector<ColumnParallelLinear::Part>{{prefix + ".wq", H * D, query, GradientSum::kNone},
                                                {prefix + ".wk", K * D, key, kv_sum},
                                                {prefix + ".wv", K * D, key, kv_sum}},
        width, type, config_.qkv_bias);
    output_ = std::make_unique<RowParallelLinear>(grid, prefix + ".wo", H * D, width,
                                                  Sharding::sharded(1, H * D, D, rank, size), type,
                                                  config_.output_bias);
    const QkNormConfig& norm = config_.qk_norm;
    if (has_norm() && norm.gain != QkNormConfig::Gain::kNone) {
        q_gain_ = make_gain(grid, norm, prefix + ".q_gain", H, D);
        if (!is_factor(norm.gain)) k_gain_ = make_gain(grid, norm, prefix + ".k_gain", K, D);
    }
    if (config_.sink == AttentionConfig::Sink::kLearned) {
        sink_ = make_sink(grid, prefix + ".sink", H);
    } else if (config_.sink == AttentionConfig::Sink::kOffByOne) {
        zero_sink_ = Tensor::zeros({local_heads_}, DType::kFloat32, grid.device());
    }
}

void TensorParallelAttention::initialize(double weight_std, double output_std, std::uint64_t seed) {
    for (int part = 0; part < 3; ++part) init_normal(qkv_->part(part), weight_std, seed);
    init_normal(output_->weight(), output_std, seed);
    for (Parameter* gain : {&q_gain_, &k_gain_}) {
        if (!exists(*gain)) continue;
        init_constant(*gain, static_cast<float>(initial_gain_parameter(config_.qk_norm)));
    }
    if (exists(sink_)) init_constant(sink_, static_cast<float>(config_.sink_init));
}

void TensorParallelAttention::collect_parameters(ParameterList& list) {
    qkv_->collect_parameters(list);
    output_->collect_parameters(list);
    for (Parameter* parameter : {&q_gain_, &k_gain_, &sink_}) {
        if (exists(*parameter)) list.push_back(parameter);
    }
}

Tensor TensorParallelAttention::heads(const Tensor& qkv, int part) const {
    const std::int64_t begin = qkv_->part_begin(part), end = qkv_->part_end(part);
    return qkv.slice(2, begin, end)
        .view({qkv.size(0), qkv.size(1), (end - begin) / config_.head_dim, config_.head_dim});
}

const RopeTable& TensorParallelAttention::rope_table(std::int64_t positions) {
    if (rope_.count < positions) {
        // Twice as long as before at least, so that decoding token by token seldom makes one.
        rope_ = make_rope_table(config_.rope, config_.head_dim, 0,
                                std::max(positions, 2 * rope_.count), grid_.device());
    }
    return rope_;
}

void TensorParallelAttention::set_lambda(const Tensor& lambda) {
    EVENKEEL_CHECK(!lambda.defined() || (config_.qk_norm.kind == QkNormKind::kRms &&
                                         config_.qk_norm.scope == QkNormConfig::Scope::kHead),
                   kOp, "lambda: got one where the norm is not rms of each head, want none");
    lambda_ = lambda;
}

bool TensorParallelAttention::has_kernel_gains() const {
    return is_kernel_gain(config_.qk_norm) && !lambda_.defined();
}

QkNormRopeOptions TensorParallelAttention::norm_options() const {
    QkNormRopeOptions options;
    options.norm = config_.qk_norm.kind;
    options.eps = config_.qk_norm.eps;
    if (exists(q_gain_) && has_kernel_gains()) {
        options.gain_offset = config_.qk_norm.gain_offset;
    }
    options.token_statistic = is_full_width();
    options.lambda = lambda_;
    return options;
}

void TensorParallelAttention::normalize(const Tensor& q,
                                        const Tensor& k,
                                        const RopeTable& rope,
                                        const Tensor& positions,
                                        AttentionSaved& saved) const {
    const std::int64_t B = q.size(0), T = q.size(1);
    const QkNormConfig& norm = config_.qk_norm;
    if (is_full_width()) {
        const Tensor rstd = full_width_rstd(grid_, q, k, config_.num_heads, config_.num_kv_heads,
                                            norm.eps);  // [2, B, T]
        saved.rstd_q = rstd.slice(0, 0, 1).view({B, T});
        saved.rstd_k = rstd.slice(0, 1, 2).view({B, T});
    } else if (has_norm()) {
        saved.rstd_q = Tensor::uninitialized({B, T, local_heads_}, DType::kFloat32, q.device());
        saved.rstd_k = Tensor::uninitialized({B, T, local_kv_heads_}, DType::kFloat32, q.device());
    }
    const bool direct = has_kernel_gains();
    const auto gain_of = [&](const Parameter& gain, std::int64_t count) {
        if (direct || !exists(gain)) return gain.value;
        return effective_gain(gain.value, norm, count, config_.head_dim, lambda_);
    };
    saved.q_gain = gain_of(q_gain_, local_heads_);
    saved.k_gain = gain_of(k_gain_, local_kv_heads_);
    const QkNormRopePart rows[] = {{q, saved.q_gain, saved.q, saved.rstd_q},
                                   {k, saved.k_gain, saved.k, saved.rstd_k}};
    qk_norm_rope_forward(rows, rope, positions, norm_options());
}

// In place: dq and dk become the gradients of what has been normalised.
void TensorParallelAttention::normalize_backward(const Tensor& dq,
                                                 const Tensor& dk,
                                                 const RopeTable& rope,
                                                 const Tensor& positions,
                                                 const AttentionSaved& saved) const {
    const QkNormConfig& norm = config_.qk_norm;
    const bool direct = has_kernel_gains();
    const Tensor dq_gain = direct ? q_gain_.grad : zeros_like(saved.q_gain);
    const Tensor dk_gain = direct ? k_gain_.grad : zeros_like(saved.k_gain);
    QkNormRopeGradientPart rows[] = {
        {dq, heads(saved.qkv, 0), saved.q_gain, saved.rstd_q, dq, dq_gain},
        {dk, heads(saved.qkv, 1), saved.k_gain, saved.rstd_k, dk, dk_gain}};
    if (is_full_width()) {
        const Tensor mean = full_width_mean(grid_, dq, saved.q, dk, saved.k, config_.num_heads,
                                            config_.num_kv_heads);  // [2, B, T]
        rows[0].mean = mean.slice(0, 0, 1).view({dq.size(0), dq.size(1)});
        rows[1].mean = mean.slice(0, 1, 2).view({dq.size(0), dq.size(1)});
    }
    qk_norm_rope_backward(rows, rope, positions, norm_options());
    if (direct) return;
    if (exists(q_gain_)) add_gain_gradient(dq_gain, q_gain_.value, norm, q_gain_.grad, lambda_);
    if (exists(k_gain_)) add_gain_gradient(dk_gain, k_gain_.value, norm, k_gain_.grad, lambda_);
}

AttentionOptions TensorParallelAttention::attention_options(const SequenceLayout& layout) const {
    AttentionOptions options;
    options.mask.causal = config_.causal;
    options.mask.window = config_.window;
    options.mask.cu_seqlens = layout.cu_seqlens;
    options.softmax_scale = config_.logit_scale();
    options.softcap = config_.softcap;
    options.sink = exists(sink_) ? sink_.value : zero_sink_;
    return options;
}

Tensor TensorParallelAttention::forward(const Tensor& x,
                                        const SequenceLayout& layout,
                                        AttentionSaved& saved,
                                        AttentionStats* stats) {
    attend(x, layout, saved, stats);
    return project(layout, saved);
}

void TensorParallelAttention::forget_turned(AttentionSaved& saved) const {
    if (has_norm() && !is_full_width()) saved.q = saved.k = {};
}

void TensorParallelAttention::turn_again(const SequenceLayout& layout, AttentionSaved& saved) {
    if (!has_norm() || is_full_width()) return;
    turn(heads(saved.qkv, 0), heads(saved.qkv, 1), layout, saved);
}

// Memory for q and k after norm and rotation, and these.
void TensorParallelAttention::turn(const Tensor& q,
                                   const Tensor& k,
                                   const SequenceLayout& layout,
                                   AttentionSaved& saved) {
    saved.q = Tensor::uninitialized(q.shape(), type_, q.device());
    saved.k = Tensor::uninitialized(k.shape(), type_, k.device());
    normalize(q, k, rope_table(positions_end(q, layout)), layout.positions, saved);
}

void TensorParallelAttention::attend(const Tensor& x,
                                     const SequenceLayout& layout,
                                     AttentionSaved& saved,
                                     AttentionStats* stats) {
    saved.x = x;
    saved.qkv = qkv_->forward(x, layout.region);
    const std::int64_t B = saved.qkv.size(0), T = saved.qkv.size(1);
    const Tensor q = heads(saved.qkv, 0);  // [B, T, H/P, D]
    const Tensor k = heads(saved.qkv, 1);  // [B, T, K/P, D]
    const Tensor v = heads(saved.qkv, 2);  // [B, T, K/P, D]

    if (has_norm() || saved.keeps_qkv) {
        turn(q, k, layout, saved);
    } else {
        saved.q = q,
        saved.k = k;  // rotated where they are: backward does not need them as they were
        normalize(q, k, rope_table(positions_end(q, layout)), layout.positions, saved);
    }

    saved.out = Tensor::uninitialized(q.shape(), type_, x.device());
    saved.lse = Tensor::uninitialized({B, local_heads_, T}, DType::kFloat32, x.device());
    flash_attention_forward(saved.q, saved.k, v, attention_options(layout), saved.out, saved.lse,
                            stats);
}

Tensor TensorParallelAttention::project(const SequenceLayout& layout,
                                        const AttentionSaved& saved) const {
    const Tensor& out = saved.out;
    return output_->forward(out.view({out.size(0), out.size(1), local_heads_ * config_.head_dim}),
                            layout.region);
}

Tensor TensorParallelAttention::backward(const Tensor& dy,
                                         const SequenceLayout& layout,
                                         const AttentionSaved& saved) {
    const std::int64_t B = saved.out.size(0), T = saved.out.size(1);
    const Tensor dout =
        output_
            ->backward(dy, saved.out.view({B, T, local_heads_ * config_.head_dim}), layout.region)
            .view(saved.out.shape());  // [B, T, H/P, D]

    const Tensor dqkv = Tensor::uninitialized(saved.qkv.shape(), type_, dy.device());
    const Tensor dq = heads(dqkv, 0), dk = heads(dqkv, 1), dv = heads(dqkv, 2);
    flash_attention_backward(saved.q, saved.k, heads(saved.qkv, 2), saved.out, saved.lse, dout,
                             attention_options(layout), dq, dk, dv, sink_.grad);
    normalize_backward(dq, dk, rope_table(positions_end(saved.out, layout)), layout.positions,
                       saved);
    return qkv_->backward(dqkv, saved.x, layout.region);
}

KvCache TensorParallelAttention::make_cache(std::int64_t batch, std::int64_t capacity) const {
    const Shape shape{batch, capacity, local_kv_heads_, config_.head_dim};
    const auto memory = [&] { return Tensor::uninitialized(shape, type_, grid_.device()); };
    return {memory(), memory(), 0};
}

Tensor TensorParallelAttention::decode(const Tensor& x, KvCache& cache) {
    EVENKEEL_CHECK(config_.causal, "decode", "model.attention.causal: got false, want true");
    EVENKEEL_CHECK(x.defined() && x.rank() == 3, "decode", "x: want a tensor [B, T, C]");
    const std::int64_t B = x.size(0), T = x.size(1);
    const std::int64_t begin = cache.length, end = begin + T;
    check_shape("decode", "cache.k", cache.k,
                {B, cache.k.size(1), local_kv_heads_, config_.head_dim});
    EVENKEEL_CHECK(end <= cache.k.size(1), "decode", "cache: got ", end, " tokens, want at most ",
                   cache.k.size(1));

    const Tensor qkv = qkv_->forward(x);
    const Tensor q = heads(qkv, 0);
    AttentionSaved now;
    now.q = has_norm() ? Tensor::uninitialized(q.shape(), type_, x.device()) : q;
    now.k = cache.k.slice(1, begin, end);
    normalize(q, heads(qkv, 1), rows_from(rope_table(end), begin, T), {}, now);
    cache.v.slice(1, begin, end).copy_from(heads(qkv, 2));
    cache.length = end;

    const Tensor out = Tensor::uninitialized(q.shape(), type_, x.device());
    const Tensor lse = Tensor::uninitialized({B, local_heads_, T}, DType::kFloat32, x.device());
    flash_attention_forward(now.q, cache.k.slice(1, 0, end), cache.v.slice(1, 0, end),
                            attention_options({}), out, lse, nullptr);
    return output_->forward(out.view({B, T, local_heads_ * config_.head_dim}));
}

}  // namespace evenkeel
