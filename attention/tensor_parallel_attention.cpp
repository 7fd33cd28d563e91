#include "attention/tensor_parallel_attention.h"

#include <algorithm>

namespace evenkeel {
namespace {

constexpr const char* kOp = "attention";
// Ranks that hold the same KV head each see some of its query heads.
GradientSum kv_gradient_sum(const Sharding& sharding) {
    return sharding.replicas > 1 ? GradientSum::kReplicaGroup : GradientSum::kNone;
}

Parameter make_gain(const ProcessGrid& grid,
                    const QkNormConfig& config,
                    const std::string& name,
                    std::int64_t heads,
                    std::int64_t head_dim) {
    const int rank = grid.tp_rank(), size = grid.tp_size();
    const bool shared = config.gain == QkNormConfig::Gain::kSharedChannel;
    const Sharding sharding = shared ? Sharding::replicated(rank, size)
                                     : Sharding::sharded_by_head(0, heads, 1, rank, size);
    Parameter gain = declare_parameter(name, shared ? Shape{head_dim} : Shape{heads, head_dim},
                                       sharding, DType::kFloat32);
    // A rank's heads see a shared gain only in part.
    gain.gradient_sum = shared ? GradientSum::kTensorParallel : kv_gradient_sum(sharding);
    gain.weight_decay = config.gain_weight_decay;
    return gain;
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

// One more than the largest position.
std::int64_t positions_end(const Tensor& x, const SequenceLayout& layout) {
    if (!layout.positions.defined()) return x.size(1);
    check_shape(kOp, "positions", layout.positions, {x.size(0), x.size(1)});
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
        width, type);
    output_ = std::make_unique<RowParallelLinear>(grid, prefix + ".wo", H * D, width,
                                                  Sharding::sharded(1, H * D, D, rank, size), type);
    if (has_norm()) {
        q_gain_ = make_gain(grid, config_.qk_norm, prefix + ".q_gain", H, D);
        k_gain_ = make_gain(grid, config_.qk_norm, prefix + ".k_gain", K, D);
    }
}

void TensorParallelAttention::initialize(double weight_std, double output_std, std::uint64_t seed) {
    for (int part = 0; part < 3; ++part) init_normal(qkv_->part(part), weight_std, seed);
    init_normal(output_->weight(), output_std, seed);
    if (!has_norm()) return;
    const auto gain = static_cast<float>(config_.qk_norm.gain_init);
    init_constant(q_gain_, gain);
    init_constant(k_gain_, gain);
}

void TensorParallelAttention::collect_parameters(ParameterList& list) {
    qkv_->collect_parameters(list);
    output_->collect_parameters(list);
    if (!has_norm()) return;
    list.push_back(&q_gain_);
    list.push_back(&k_gain_);
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

QkNormRopeOptions TensorParallelAttention::norm_options() const {
    QkNormRopeOptions options;
    options.norm = config_.qk_norm.kind;
    options.eps = config_.qk_norm.eps;
    return options;
}

AttentionOptions TensorParallelAttention::attention_options(const SequenceLayout& layout) const {
    AttentionOptions options;
    options.mask.causal = config_.causal;
    options.mask.window = config_.window;
    options.mask.cu_seqlens = layout.cu_seqlens;
    options.softmax_scale = config_.logit_scale();
    options.softcap = config_.softcap;
    return options;
}

Tensor TensorParallelAttention::forward(const Tensor& x,
                                        const SequenceLayout& layout,
                                        AttentionSaved& saved,
                                        AttentionStats* stats) {
    saved.x = x;
    saved.qkv = qkv_->forward(x);
    const std::int64_t B = x.size(0), T = x.size(1);
    const Tensor q = heads(saved.qkv, 0);  // [B, T, H/P, D]
    const Tensor k = heads(saved.qkv, 1);  // [B, T, K/P, D]
    const Tensor v = heads(saved.qkv, 2);  // [B, T, K/P, D]

    saved.q = q, saved.k = k;  // rotated where they are, unless backward needs them as they were
    if (has_norm()) {
        saved.q = Tensor::uninitialized(q.shape(), type_, x.device());
        saved.k = Tensor::uninitialized(k.shape(), type_, x.device());
        saved.rstd_q = Tensor::uninitialized({B, T, local_heads_}, DType::kFloat32, x.device());
        saved.rstd_k = Tensor::uninitialized({B, T, local_kv_heads_}, DType::kFloat32, x.device());
    }
    const RopeTable& rope = rope_table(positions_end(x, layout));
    const QkNormRopePart rows[] = {{q, q_gain_.value, saved.q, saved.rstd_q},
                                   {k, k_gain_.value, saved.k, saved.rstd_k}};
    qk_norm_rope_forward(rows, rope, layout.positions, norm_options());

    saved.out = Tensor::uninitialized(q.shape(), type_, x.device());
    saved.lse = Tensor::uninitialized({B, local_heads_, T}, DType::kFloat32, x.device());
    flash_attention_forward(saved.q, saved.k, v, attention_options(layout), saved.out, saved.lse,
                            stats);
    return output_->forward(saved.out.view({B, T, local_heads_ * config_.head_dim}));
}

Tensor TensorParallelAttention::backward(const Tensor& dy,
                                         const SequenceLayout& layout,
                                         const AttentionSaved& saved) {
    const std::int64_t B = saved.x.size(0), T = saved.x.size(1);
    const Tensor dout =
        output_->backward(dy, saved.out.view({B, T, local_heads_ * config_.head_dim}))
            .view(saved.out.shape());  // [B, T, H/P, D]

    const Tensor dqkv = Tensor::uninitialized(saved.qkv.shape(), type_, dy.device());
    const Tensor dq = heads(dqkv, 0), dk = heads(dqkv, 1), dv = heads(dqkv, 2);
    flash_attention_backward(saved.q, saved.k, heads(saved.qkv, 2), saved.out, saved.lse, dout,
                             attention_options(layout), dq, dk, dv);

    const RopeTable& rope = rope_table(positions_end(saved.x, layout));
    const QkNormRopeGradientPart rows[] = {
        {dq, heads(saved.qkv, 0), q_gain_.value, saved.rstd_q, dq, q_gain_.grad},
        {dk, heads(saved.qkv, 1), k_gain_.value, saved.rstd_k, dk, k_gain_.grad}};
    qk_norm_rope_backward(rows, rope, layout.positions, norm_options());
    return qkv_->backward(dqkv, saved.x);
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
    const Tensor turned_q = has_norm() ? Tensor::uninitialized(q.shape(), type_, x.device()) : q;
    const Tensor rstd_q = Tensor::uninitialized({B, T, local_heads_}, DType::kFloat32, x.device());
    const Tensor rstd_k =
        Tensor::uninitialized({B, T, local_kv_heads_}, DType::kFloat32, x.device());
    const RopeTable rope = rows_from(rope_table(end), begin, T);
    const QkNormRopePart rows[] = {
        {q, q_gain_.value, turned_q, rstd_q},
        {heads(qkv, 1), k_gain_.value, cache.k.slice(1, begin, end), rstd_k}};
    qk_norm_rope_forward(rows, rope, {}, norm_options());
    cache.v.slice(1, begin, end).copy_from(heads(qkv, 2));
    cache.length = end;

    const Tensor out = Tensor::uninitialized(q.shape(), type_, x.device());
    const Tensor lse = Tensor::uninitialized({B, local_heads_, T}, DType::kFloat32, x.device());
    flash_attention_forward(turned_q, cache.k.slice(1, 0, end), cache.v.slice(1, 0, end),
                            attention_options({}), out, lse, nullptr);
    return output_->forward(out.view({B, T, local_heads_ * config_.head_dim}));
}

}  // namespace evenkeel
