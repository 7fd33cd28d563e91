#include "model/memory_plan.h"

#include <algorithm>
#include <cstdio>
#include <utility>
#include <vector>

#include "attention/gain.h"
#include "framework/parameter_buckets.h"
#include "model/ops/spectral_norm.h"
#include "model/telemetry/head_statistics.h"

namespace evenkeel {
namespace {

// Sizes as the formulas of the header name them, on this rank.
struct Sizes {
    std::size_t N, T, C, D, F, V, L, e;  // F and V over P, V of the longest part
    std::size_t R;                       // rows of the stream
    std::size_t gradient;                // w: bytes
    std::size_t
        gathered;  // all rows of one tensor of the stream, of a parallel layer whose rows are cut
    std::size_t heads, kv_heads;  // Hl, Kl
    std::size_t inner;            // g
    std::size_t norms;            // n, of the residual stream in a layer
    std::size_t norm_elements;    // of one of those
    std::size_t statistics;       // m, of a row of one
    std::size_t parts;            // Q, or 1 where nothing is cut
    bool ngpt;
    bool cut;  // sequence parallelism

    Sizes(const ModelConfig& config, const StepShape& shape) {
        const auto size = [](std::int64_t value) { return static_cast<std::size_t>(value); };
        const AttentionConfig& a = config.attention;
        const std::int64_t P = shape.tensor_parallel;
        N = size(shape.micro_batch_size * shape.seq_len), T = size(shape.seq_len);
        C = size(config.width), D = size(a.head_dim), L = size(config.num_layers);
        F = size(config.feed_forward_width / P),
        V = size(piece_range(config.vocab_size, P, 0).size());
        heads = size(a.num_heads / P);
        kv_heads = size(std::max<std::int64_t>(a.num_kv_heads / P, 1));
        inner = is_gated(config.activation) ? 2 : 1;
        e = config.type == ComputeType::kBf16 ? 2 : 4;
        norms = size(stream_norms(config.architecture));
        norm_elements = (config.norm.bias ? 2 : 1) * C;
        statistics = config.norm.kind == NormConfig::Kind::kLayerNorm ? 2 : 1;
        parts = size(shape.zero_stage == 1 ? shape.data_parallel : 1);
        ngpt = config.architecture == Architecture::kNgpt;
        cut = shape.sequence_parallel && P > 1;
        R = cut ? N / size(P) : N;
        gradient = e * C * (cut ? 2 * N + R : N);
        gathered = cut && config.architecture == Architecture::kParallel ? e * N * C : 0;
    }
};

// Of one layer: the parameters of gains and sinks.
std::size_t head_gain_elements(const AttentionConfig& a, const Sizes& s) {
    const std::size_t sinks = a.sink == AttentionConfig::Sink::kLearned ? s.heads : 0;
    if (a.qk_norm.kind == QkNormConfig::Kind::kNone) return sinks;
    switch (a.qk_norm.gain) {
        case QkNormConfig::Gain::kPerHeadChannel:
            return sinks + (s.heads + s.kv_heads) * s.D;
        case QkNormConfig::Gain::kSharedChannel:
            return sinks + 2 * s.D;
        case QkNormConfig::Gain::kPerHeadScalar:
            return sinks + s.heads;
        case QkNormConfig::Gain::kScalar:
            return sinks + 1;
        case QkNormConfig::Gain::kNone:
            break;
    }
    return sinks;
}

// Of one layer.
std::size_t bias_elements(const ModelConfig& config, const Sizes& s) {
    std::size_t biases = 0;
    if (config.attention.qkv_bias) biases += (s.heads + 2 * s.kv_heads) * s.D;
    if (config.attention.output_bias) biases += s.C;
    if (config.feed_forward_bias) biases += s.inner * s.F + s.C;
    return biases;
}

// Of one layer: those of matrices that rules change as a whole.
std::size_t whole_matrix_elements(const ModelConfig& config,
                                  const AttentionConfig& a,
                                  const Sizes& s,
                                  std::size_t all) {
    if (s.ngpt || config.sigma_reparam) return all;
    const bool has_gains =
        a.qk_norm.kind != QkNormConfig::Kind::kNone && a.qk_norm.gain != QkNormConfig::Gain::kNone;
    return a.qk_clip_threshold > 0.0 && !has_gains ? (s.heads + 2 * s.kv_heads) * s.D * s.C : 0;
}

// The same of gains, and of biases.
std::size_t whole_gain_elements(const AttentionConfig& a, const Sizes& s) {
    AttentionConfig no_sink = a;
    no_sink.sink = AttentionConfig::Sink::kNone;
    const std::size_t gains = head_gain_elements(no_sink, s);
    const bool held = a.qk_norm.gain_bound > 0.0 || a.qk_norm.gain_pull > 0.0;
    if (a.qk_clip_threshold > 0.0 && gains == 0 && a.qkv_bias) {
        return (s.heads + 2 * s.kv_heads) * s.D;
    }
    return held || a.qk_clip_threshold > 0.0 ? gains : 0;
}

// Bytes that the norm of q and k keeps of a layer for backward, beside q and k: the statistic of each row, and
// gains that are not the parameters themselves.
std::size_t saved_norm(const AttentionConfig& a, const Sizes& s) {
    if (a.qk_norm.kind == QkNormConfig::Kind::kNone) return 0;
    const bool full_width = a.qk_norm.scope == QkNormConfig::Scope::kFullWidth;
    const std::size_t statistic = 4 * s.N * (full_width ? 2 : s.heads + s.kv_heads);
    if (is_kernel_gain(a.qk_norm) && a.qk_norm.anneal_steps == 0) return statistic;
    const bool of_keys = a.qk_norm.gain == QkNormConfig::Gain::kPerHeadChannel ||
                         a.qk_norm.gain == QkNormConfig::Gain::kSharedChannel;
    const std::size_t rows = a.qk_norm.gain == QkNormConfig::Gain::kSharedChannel
                                 ? 2
                                 : s.heads + (of_keys ? s.kv_heads : 0);
    return statistic + 4 * rows * s.D;
}

// Returns the bytes of the gradients that travel together between data-parallel ranks, the most that do: parameters lie
// in buckets with their like (ParameterBuckets).
std::size_t plan_parameters(const ModelConfig& config, const Sizes& s, MemoryPlan& plan) {
    const std::size_t layer =
        (2 * s.heads + 2 * s.kv_heads) * s.D * s.C + (s.inner + 1) * s.F * s.C;
    const std::size_t matrices = (config.tied_embeddings ? 1 : 2) * s.V * s.C + s.L * layer;
    const std::size_t norms =
        s.ngpt ? 2 * s.L * s.C : (s.norms * s.L + 1) * s.norm_elements;  // or rates
    const std::size_t scales = s.ngpt ? s.L * s.inner * s.F + s.V : 0;
    std::size_t gains = norms + scales + s.L * bias_elements(config, s);
    std::size_t whole_matrices = s.ngpt ? matrices - s.L * layer : 0, whole_gains = scales;
    for (std::int64_t i = 0; i < config.num_layers; ++i) {
        const AttentionConfig attention = config.layer_attention(i);
        gains += head_gain_elements(attention, s);
        whole_matrices += whole_matrix_elements(config, attention, s, layer);
        whole_gains += whole_gain_elements(attention, s);
    }
    plan.values = s.e == 2 ? 2 * matrices : 4 * scales * s.C;
    // What rules add (gain_hold.h).
    const bool pulls = config.attention.qk_norm.gain_pull > 0.0;
    const std::size_t starts = pulls ? s.L * (s.heads + s.kv_heads) * s.D : 0;
    const auto held = [&](std::size_t all, std::size_t whole) {
        return whole + (all - whole) / s.parts;
    };
    const std::size_t own_masters = s.e == 2 ? held(matrices, whole_matrices) : matrices;
    plan.masters = 4 * (own_masters + gains + starts);
    plan.gradients = 4 * (matrices + gains + starts);
    const std::size_t trained = held(matrices, whole_matrices) + held(gains, whole_gains);
    plan.moments = 8 * (trained + starts);
    plan.snapshot = 12 * trained + 4 * starts;

    const std::size_t scaled = scales * s.C;  // of nGPT: their values are made with scales
    const std::size_t others = matrices - whole_matrices + (s.e == 4 ? gains : 0);  // of one type
    const std::size_t bucket = std::max({scaled, whole_matrices - scaled, others, gains});
    return 4 * std::min(bucket, static_cast<std::size_t>(ParameterBuckets::kElements));
}

// sigma_reparam.h: values of their own in fp32 too, three small parameters a matrix (at multiples of
// ParameterBucket::kAlignment), the iteration's vectors and sums.
void plan_sigma_reparam(const ModelConfig& config, const Sizes& s, MemoryPlan& plan) {
    const std::size_t q = s.heads * s.D, kv = s.kv_heads * s.D;
    std::vector<std::pair<std::size_t, std::size_t>> matrices = {
        {q, s.C}, {kv, s.C}, {kv, s.C}, {s.C, q}, {s.C, s.F}};  // rows, columns
    matrices.insert(matrices.end(), s.inner, {s.F, s.C});
    for (const auto& [rows, columns] : matrices) {
        const std::size_t state = s.L * (2 * ParameterBucket::kAlignment + rows);
        if (config.type == ComputeType::kFp32) plan.values += 4 * s.L * rows * columns;
        plan.masters += 4 * state;
        plan.gradients += 4 * state;
        plan.moments += 8 * state;
        plan.snapshot += s.L * (12 + 4 * (1 + rows));
        plan.tables += s.L * 8 * (rows + columns + 3 + sizeof(SpectralMatrix) / 8);
    }
}

// Attention's share of what backward makes: the gradients of out and qkv, and what flash attention needs or else what
// the gradient of the input does; of parallel layers beside the one that the feed-forward layer returned. (The partial sums
// of the gains' gradients, N/64 numbers a channel, are always less.)
std::size_t attention_backward(const ModelConfig& config, const Sizes& s, std::size_t scratch) {
    const std::size_t qkv = (s.heads + 2 * s.kv_heads) * s.D;
    const std::size_t returned = config.architecture == Architecture::kParallel ? s.C : 0;
    return s.gathered + s.e * (s.R * returned + s.N * (s.heads * s.D + qkv)) +
           std::max(scratch + s.gathered, s.gradient);
}

// What forward keeps of a layer, in bytes, and what backward's two halves have of it beside that.
struct LayerMemory {
    std::int64_t kept;
    std::int64_t in_feed_forward;  // made again
    std::int64_t in_attention;     // the same, less what the half before has read and dropped
};

LayerMemory layer_memory(const ModelConfig& config, std::int64_t layer, const Sizes& s) {
    const Architecture architecture = config.architecture;
    const bool sandwich = architecture == Architecture::kSandwichNorm;
    const bool parallel = architecture == Architecture::kParallel;
    // Whether attention reads a tensor of its own, and not one that is kept anyway.
    const bool own_input = sandwich || architecture == Architecture::kPreNorm;
    // Of the stream: what attention and the feed-forward layer read and, where a norm follows, return; of nGPT
    // those are the stream itself.
    const std::size_t of_stream = sandwich ? 6 : parallel ? 2 : 4;
    const std::size_t statistics = s.ngpt ? 4 : s.norms * s.statistics;
    const auto stream = static_cast<std::int64_t>(s.e * s.R * s.C);

    const AttentionConfig attention = config.layer_attention(layer);
    const bool has_norm = attention.qk_norm.kind != QkNormConfig::Kind::kNone;
    const std::size_t in_and_out = s.heads + (s.heads + 2 * s.kv_heads);
    const std::size_t turned = has_norm ? s.heads + s.kv_heads : 0;
    const std::size_t heads =
        s.e * s.N * (in_and_out + turned) * s.D + 4 * s.N * s.heads + saved_norm(attention, s);
    const std::size_t hidden = s.e * s.N * (s.inner + 1) * s.F;
    const auto all = static_cast<std::int64_t>(heads + hidden + 4 * s.R * statistics) +
                     static_cast<std::int64_t>(of_stream) * stream;
    const std::int64_t inside = static_cast<std::int64_t>(heads) + (own_input ? stream : 0);
    // Of the stream, the feed-forward layer's input and what it returns where others do not read them too.
    const int own = sandwich ? 2 : parallel ? 0 : 1;
    const std::int64_t dropped = static_cast<std::int64_t>(hidden) + own * stream;
    switch (config.recompute) {
        case Recompute::kNone:
            break;
        case Recompute::kElementwise: {
            // Inputs of the layers that are norms of the stream; the two of parallel are one.
            const std::int64_t inputs = own_input ? 2 : parallel ? 1 : 0;
            const bool full_width = attention.qk_norm.scope == QkNormConfig::Scope::kFullWidth;
            const auto forgotten =
                static_cast<std::int64_t>(full_width ? 0 : s.e * s.N * turned * s.D);
            const auto activated = static_cast<std::int64_t>(s.e * s.N * s.F);
            const std::int64_t kept = all - forgotten - activated - inputs * stream;
            return {kept, activated + (inputs > 0 ? stream : 0), all - dropped - kept};
        }
        case Recompute::kAttention:
            return {all - inside, 0, inside - dropped};
        case Recompute::kFull:
            return {stream, all - stream - (parallel ? inside : 0), all - stream - dropped};
    }
    return {all, 0, -dropped};
}

// What forward keeps and what backward makes on top, most in the last layer, for which all others wait.
void plan_activations(const ModelConfig& config,
                      const Sizes& s,
                      std::size_t scratch,
                      MemoryPlan& plan) {
    const std::size_t stream = s.e * s.R * s.C;
    // Where norms follow the layers, also the gradient of what a layer returned.
    const bool post = config.architecture == Architecture::kPostNorm ||
                      config.architecture == Architecture::kSandwichNorm;
    const std::size_t gradients = (post || s.ngpt ? 2 : 1) * stream;
    // The activation's gradient takes the place of its input; what it returned is dropped before.
    const auto activated = static_cast<std::int64_t>(s.e * s.N * s.F);
    const auto rows = static_cast<std::int64_t>(s.cut ? s.e * s.N * s.C : 0);
    const std::int64_t feed_forward =
        static_cast<std::int64_t>(s.gathered) +
        std::max(activated + rows, static_cast<std::int64_t>(s.gradient) - activated);
    const auto attention = static_cast<std::int64_t>(attention_backward(config, s, scratch));
    std::int64_t saved = 0, most = 0;
    for (std::int64_t i = 0; i < config.num_layers; ++i) {
        const LayerMemory layer = layer_memory(config, i, s);
        plan.saved_layer = std::max(plan.saved_layer, static_cast<std::size_t>(layer.kept));
        saved += layer.kept;
        most = std::max({most, saved + layer.in_feed_forward + feed_forward,
                         saved + layer.in_attention + attention});
    }
    plan.saved = static_cast<std::size_t>(saved);
    plan.backward = gradients + static_cast<std::size_t>(most - saved);
}

}  // namespace

MemoryPlan plan_memory(const ModelConfig& config, const StepShape& shape) {
    constexpr std::size_t kWorkspace = 32 << 20;  // as framework/gemm_cuda.cpp has it from sm_90 on
    // Of a sum over ranks on the CPU; short ones on all ranks are exchanged whole (mpi_communicator.cpp).
    constexpr std::size_t kLongestMessage = 2 << 20, kDirectMessage = 64 << 10;
    const Sizes s(config, shape);
    const bool on_gpu = shape.device == Device::kCuda;
    const DType type = s.e == 2 ? DType::kBFloat16 : DType::kFloat32;
    // Packed documents are one sequence.
    const std::int64_t tokens = shape.micro_batch_size * shape.seq_len;
    const std::int64_t sequences = shape.packed ? 1 : shape.micro_batch_size;
    const FlashAttentionScratch scratch = flash_attention_scratch(
        {sequences, tokens / sequences, static_cast<std::int64_t>(s.heads),
         static_cast<std::int64_t>(s.kv_heads), config.attention.head_dim, type, shape.device,
         config.telemetry, config.attention.sink != AttentionConfig::Sink::kNone});

    MemoryPlan plan;
    const std::size_t bucket = plan_parameters(config, s, plan);
    if (config.sigma_reparam) plan_sigma_reparam(config, s, plan);
    const std::size_t rotated =
        2 * rope_frequencies(config.attention.rope, config.attention.head_dim).size();
    // A step's micro-batches are made at once, on the CPU; a GPU holds one at a time.
    const auto batches = static_cast<std::size_t>(on_gpu ? 1 : shape.micro_batches);
    plan.tables += s.L * 4 * s.T * rotated + batches * 8 * s.N;
    if (shape.packed) plan.tables += 4 * s.N;
    if (config.telemetry) {
        plan.tables += HeadStatistics::bytes(static_cast<std::int64_t>(s.L),
                                             static_cast<std::int64_t>(s.heads),
                                             static_cast<std::int64_t>(s.kv_heads));
    }

    const std::size_t final_norm = s.ngpt ? 1 : 2;  // tensors of the stream
    plan.loss = s.e * (s.N * s.V + final_norm * s.R * s.C) + s.gradient + 4 * s.N +
                (s.ngpt ? 0 : 4 * s.R * s.statistics);
    const std::size_t documents = shape.packed && on_gpu ? 8 * s.N : 0;
    plan_activations(config, s, scratch.backward + documents, plan);
    if (!on_gpu && shape.tensor_parallel > 1) {
        const auto P = static_cast<std::size_t>(shape.tensor_parallel);
        const std::size_t stream = s.e * s.N * s.C;
        const std::size_t pieces = std::min(kLongestMessage, stream) / P * (P - 1);
        const bool direct = !s.cut && stream <= kDirectMessage;
        plan.communication = direct ? stream * (P - 1) : pieces;
    }
    if (!on_gpu && shape.data_parallel > 1) {
        const auto Q = static_cast<std::size_t>(shape.data_parallel);
        plan.communication += std::min(kLongestMessage, bucket) / Q * (Q - 1);
    }
    if (on_gpu) plan.workspace = kWorkspace;
    plan.snapshot_is_apart = on_gpu;
    if (!shape.async_checkpoints) plan.snapshot = 0;
    return plan;
}

std::string bytes_text(std::size_t bytes) {
    static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    auto value = static_cast<double>(bytes);
    int unit = 0;
    for (; value >= 1024.0 && unit < 4; ++unit) value /= 1024.0;
    char text[32];
    const int digits = unit == 0 || value >= 100.0 ? 0 : value >= 10.0 ? 1 : 2;
    std::snprintf(text, sizeof text, "%.*f %s", digits, value, kUnits[unit]);
    return text;
}

std::string to_text(const MemoryPlan& plan) {
    std::string text;
    const auto line = [&](const char* name, std::size_t bytes, const std::string& detail) {
        if (bytes == 0) return;
        char start[64];
        std::snprintf(start, sizeof start, "  %-14s %10s", name, bytes_text(bytes).c_str());
        text += start + (detail.empty() ? "" : "  " + detail) + "\n";
    };
    constexpr const char* kSnapshot =
        "the state's copy that is written beside the training, from the first checkpoint on";
    line("parameters", plan.parameters(),
         (plan.values > 0 ? "values " + bytes_text(plan.values) + ", " : "") + "masters " +
             bytes_text(plan.masters) + ", gradients " + bytes_text(plan.gradients) + ", moments " +
             bytes_text(plan.moments));
    line("tables", plan.tables, "rotation, telemetry, token ids");
    line("activations", plan.saved, bytes_text(plan.saved_layer) + " a layer");
    line("loss", plan.loss, "logits, replaced by their gradients, and the final norm");
    line("backward", plan.backward,
         "gradients of one layer, and activations made again; after the loss, the larger counts");
    line("communication", plan.communication, "");
    line("workspace", plan.workspace,
         "cuBLASLt; beside it a GPU holds its context and NCCL's buffers");
    if (!plan.snapshot_is_apart && plan.snapshot > 0) {
        line("first step", plan.peak(), "all of these, at its peak");
        line("checkpoint", plan.snapshot, kSnapshot);
    }
    line("in all", plan.total(), "");
    if (plan.snapshot_is_apart) line("on the host", plan.snapshot, kSnapshot);
    return text;
}

}  // namespace evenkeel
