#include "scaling/layer_cost.h"

#include <algorithm>

namespace evenkeel::scaling {
namespace {

constexpr double kActivationBytes = 2.0;  // e: bf16

// Sizes as the header names them.
struct Sizes {
    double N, T, C, D, F, V, R;               // F and V over P
    double heads, kv_heads, inner;            // Hl, Kl, g
    double gradient;                          // bytes of a weight's
    double norm, rotation, activation, loss;  // factors where kernels are not fused
    bool parallel;

    explicit Sizes(const StepPlan& plan) {
        const ModelConfig& m = plan.model;
        const auto P = static_cast<double>(plan.layout.tensor_parallel);
        N = static_cast<double>(plan.layout.micro_batch * plan.layout.seq_len);
        T = static_cast<double>(plan.layout.seq_len);
        C = static_cast<double>(m.width), D = static_cast<double>(m.attention.head_dim);
        F = static_cast<double>(m.feed_forward_width) / P;
        V = static_cast<double>(m.vocab_size) / P;
        R = plan.layout.sequence_parallel ? N / P : N;
        heads = static_cast<double>(m.attention.num_heads) / P;
        kv_heads = std::max(1.0, static_cast<double>(m.attention.num_kv_heads) / P);
        inner = is_gated(m.activation) ? 2.0 : 1.0;
        gradient = static_cast<double>(plan.software.gradient_bytes);
        const bool fused = plan.software.fused;
        norm = rotation = fused ? 1.0 : 4.0;
        activation = fused ? 1.0 : 5.0 / 3.0, loss = fused ? 1.0 : 10.0 / 3.0;
        parallel = m.architecture == Architecture::kParallel;
    }
};

Op product(Part part, double rows, double inputs, double outputs) {
    return {part, Kind::kProduct, 2.0 * rows * inputs * outputs,
            kActivationBytes * (rows * inputs + inputs * outputs + rows * outputs)};
}
// Gradients of its input and of its weights; the second reads and writes the sum over micro-batches.
void add_gradients(
    std::vector<Op>& ops, const Sizes& s, Part part, double rows, double inputs, double outputs) {
    ops.push_back(product(part, rows, outputs, inputs));
    Op weights = product(part, rows, inputs, outputs);
    weights.bytes += (2.0 * s.gradient - kActivationBytes) * inputs * outputs;
    ops.push_back(weights);
}
Op memory(Part part, double bytes) { return {part, Kind::kMemory, 0.0, bytes}; }

bool rotates(const ModelConfig& m) {
    return m.attention.rope.rotary_fraction > 0.0 ||
           m.attention.qk_norm.kind != QkNormConfig::Kind::kNone;
}

// Operations of a pair, head and layer over all tokens of the micro-batch, on this rank: those of the model's own
// count, which is 12 D a pair for forward and backward, over 12 D.
double pairs_times_width(const StepPlan& plan, bool all_pairs) {
    ModelConfig model = plan.model;
    if (all_pairs) model.attention.causal = false, model.attention.window = 0;
    if (model.global_interval == 0) {  // all layers see as much as one
        model.num_layers = 1;
        model.qk_norm_layers.clear();
    }
    const double a_token = flops_per_token(model, plan.layout.seq_len) - flops_per_token(model, 0);
    const auto tokens = static_cast<double>(plan.layout.micro_batch * plan.layout.seq_len);
    return a_token / 12.0 * tokens / static_cast<double>(model.num_layers) /
           static_cast<double>(plan.layout.tensor_parallel);
}

Op attention(const StepPlan& plan, const Sizes& s, bool backward) {
    const double stream = kActivationBytes * s.N * (2.0 * s.heads + 2.0 * s.kv_heads) * s.D;
    if (plan.software.attention == AttentionKernel::kUnfused) {
        const double scores = s.N * s.T * s.heads;
        return {Part::kAttention, Kind::kAttention,
                (backward ? 8.0 : 4.0) * pairs_times_width(plan, true),
                (backward ? 19.0 : 13.0) * scores + (backward ? 2.0 : 1.0) * stream};
    }
    return {Part::kAttention, Kind::kAttention,
            (backward ? 10.0 : 4.0) * pairs_times_width(plan, false),
            (backward ? 2.0 : 1.0) * stream};
}

}  // namespace

std::vector<Op> layer_forward(const StepPlan& plan) {
    const Sizes s(plan);
    const double e = kActivationBytes, qkv = (s.heads + 2.0 * s.kv_heads) * s.D;
    std::vector<Op> ops = {memory(Part::kFirstNorm, 2.0 * e * s.R * s.C * s.norm),
                           product(Part::kQkv, s.N, s.C, qkv)};
    if (rotates(plan.model)) {
        ops.push_back(
            memory(Part::kRotation, 2.0 * e * s.N * (s.heads + s.kv_heads) * s.D * s.rotation));
    }
    ops.push_back(attention(plan, s, false));
    ops.push_back(product(Part::kOutput, s.N, s.heads * s.D, s.C));
    ops.push_back(memory(Part::kFirstSum, 3.0 * e * s.R * s.C));
    if (!s.parallel) {
        ops.push_back(memory(Part::kSecondNorm, 2.0 * e * s.R * s.C * s.norm));
    }
    ops.push_back(product(Part::kUp, s.N, s.C, s.inner * s.F));
    ops.push_back(memory(Part::kActivation, e * s.N * (s.inner + 1.0) * s.F * s.activation));
    ops.push_back(product(Part::kDown, s.N, s.F, s.C));
    ops.push_back(memory(Part::kSecondSum, 3.0 * e * s.R * s.C));
    return ops;
}

std::vector<Op> layer_backward(const StepPlan& plan) {
    const Sizes s(plan);
    const double e = kActivationBytes, qkv = (s.heads + 2.0 * s.kv_heads) * s.D;
    std::vector<Op> ops = {memory(Part::kSecondSum, 3.0 * e * s.R * s.C)};
    add_gradients(ops, s, Part::kDown, s.N, s.F, s.C);
    ops.push_back(memory(Part::kActivation, e * s.N * (2.0 * s.inner + 1.0) * s.F * s.activation));
    add_gradients(ops, s, Part::kUp, s.N, s.C, s.inner * s.F);
    if (!s.parallel) {
        ops.push_back(memory(Part::kSecondNorm, 3.0 * e * s.R * s.C * s.norm));
    }
    ops.push_back(memory(Part::kFirstSum, 3.0 * e * s.R * s.C));
    add_gradients(ops, s, Part::kOutput, s.N, s.heads * s.D, s.C);
    ops.push_back(attention(plan, s, true));
    if (rotates(plan.model)) {
        ops.push_back(
            memory(Part::kRotation, 3.0 * e * s.N * (s.heads + s.kv_heads) * s.D * s.rotation));
    }
    add_gradients(ops, s, Part::kQkv, s.N, s.C, qkv);
    ops.push_back(memory(Part::kFirstNorm, 3.0 * e * s.R * s.C * s.norm));
    return ops;
}

std::vector<Op> layer_again(const StepPlan& plan) {
    const Architecture architecture = plan.model.architecture;
    const bool parallel = architecture == Architecture::kParallel;
    const bool whole = plan.software.again_whole;
    const bool norms_before =
        architecture != Architecture::kPostNorm && architecture != Architecture::kNgpt;
    const QkNormConfig& norm = plan.model.attention.qk_norm;
    const bool turns_again =
        norm.kind != QkNormConfig::Kind::kNone && norm.scope != QkNormConfig::Scope::kFullWidth;
    const auto is_made_again = [&](const Op& op) {
        switch (plan.layout.again) {
            case Again::kNone:
                return false;
            case Again::kElementwise:
                if (op.part == Part::kRotation) return turns_again;
                return op.part == Part::kActivation ||
                       (norms_before &&
                        (op.part == Part::kFirstNorm || op.part == Part::kSecondNorm));
            case Again::kAttention:
                return op.part == Part::kFirstNorm || op.part == Part::kQkv ||
                       op.part == Part::kRotation || op.part == Part::kAttention;
            case Again::kScores:
                return op.part == Part::kAttention;
            case Again::kHalf:
                return op.part != Part::kAttention;
            case Again::kFull:
                break;
        }
        if (whole) return true;
        // evenkeel stops where nobody reads on (docs/parallelism.md).
        if (op.part == Part::kSecondSum) return false;
        if (op.part == Part::kOutput || op.part == Part::kFirstSum) return !parallel;
        return op.part != Part::kDown || !(parallel || architecture == Architecture::kPreNorm);
    };
    std::vector<Op> ops;
    for (Op op : layer_forward(plan)) {
        if (!is_made_again(op)) continue;
        if (plan.layout.again == Again::kHalf && op.kind == Kind::kProduct) {
            op.flops /= 2.0, op.bytes /= 2.0;
        }
        ops.push_back(op);
    }
    return ops;
}

std::vector<Op> head_forward(const StepPlan& plan) {
    const Sizes s(plan);
    return {product(Part::kHead, s.N, s.C, s.V),
            memory(Part::kLoss, 3.0 * kActivationBytes * s.N * s.V * s.loss)};
}

std::vector<Op> head_backward(const StepPlan& plan) {
    const Sizes s(plan);
    std::vector<Op> ops;
    add_gradients(ops, s, Part::kHead, s.N, s.C, s.V);
    return ops;
}

double op_seconds(const Hardware& hardware,
                  const Shares& shares,
                  AttentionKernel kernel,
                  const Op& op,
                  bool backward) {
    constexpr double kTera = 1e12, kGiga = 1e9, kMicro = 1e-6;
    const double power = power_factor(hardware) * kTera;
    const double product_rate = hardware.matmul_teraflops * shares.matmul * power;
    const double memory_rate = hardware.memory_gigabytes_per_second * kGiga * shares.memory;
    const double moving = op.bytes / memory_rate, fixed = shares.kernel_microseconds * kMicro;
    if (op.kind != Kind::kAttention) return std::max(op.flops / product_rate, moving) + fixed;
    switch (kernel) {
        case AttentionKernel::kUnfused:
            // Products between which kernels do nothing but move scores.
            return op.flops / product_rate + moving + 4.0 * fixed;
        case AttentionKernel::kFlash: {
            const double rate = backward ? hardware.attention_backward_teraflops
                                         : hardware.attention_forward_teraflops;
            return std::max(op.flops / (rate * power), moving) + fixed;
        }
        case AttentionKernel::kNative: {
            const double rate = backward ? hardware.native_attention_backward_teraflops
                                         : hardware.native_attention_forward_teraflops;
            return std::max(op.flops / (rate * power), moving) + fixed;
        }
    }
    return 0.0;
}

Seconds& Seconds::operator+=(const Seconds& other) {
    products += other.products, attention += other.attention, memory += other.memory;
    return *this;
}

Seconds Seconds::operator*(double factor) const {
    return {products * factor, attention * factor, memory * factor};
}

Seconds seconds_of(const Hardware& hardware,
                   const Shares& shares,
                   AttentionKernel kernel,
                   const std::vector<Op>& ops,
                   bool backward) {
    Seconds sum;
    for (const Op& op : ops) {
        const double seconds = op_seconds(hardware, shares, kernel, op, backward);
        switch (op.kind) {
            case Kind::kProduct:
                sum.products += seconds;
                break;
            case Kind::kAttention:
                sum.attention += seconds;
                break;
            case Kind::kMemory:
                sum.memory += seconds;
                break;
        }
    }
    return sum;
}

}  // namespace evenkeel::scaling
