// The kernels on a GPU: norm and rotation against the card's own copy, attention in TFLOP/s, and
// what its telemetry adds. Only what the card's clock saw between two events counts.
#include <algorithm>
#include <utility>

#include "attention/flash_attention.h"
#include "attention/qk_norm_rope.h"
#include "framework/stream.h"
#include "launch/bench.h"

namespace evenkeel::bench {
namespace {

constexpr DType kType = DType::kBFloat16;
constexpr double kNormGoal = 0.85, kTelemetryGoal = 0.01;
// TFLOP/s of D = 128 without a mask, in the longest sequence, on an H200.
constexpr double kForwardGoal = 350.0, kBackwardGoal = 300.0;

double gpu_seconds_of(const Body& body, int calls) {
    const Stream& stream = Stream::current();
    Event begin, end;
    begin.record(stream);
    for (int i = 0; i < calls; ++i) body();
    end.record(stream);
    return 1e-3 * Event::elapsed_ms(begin, end) / calls;
}

Times time_in_turn_on_gpu(const std::vector<Body>& bodies, const GpuBench& size) {
    return time_in_turn("cuda", bodies, size.rounds, size.seconds, gpu_seconds_of);
}

Tensor random_on_gpu(const Shape& shape, std::string_view name) {
    return random_tensor(shape, kType, name).to(Device::kCuda);
}

Tensor empty(const Shape& shape, DType dtype = kType) {
    return Tensor::uninitialized(shape, dtype, Device::kCuda);
}

// `work` of one call, in billions or trillions a second: the median round's and the fastest
// round's.
Line rate(const std::string& name,
          double work,
          const std::string& unit,
          const std::vector<double>& seconds) {
    Line line{name, work / median(seconds), unit, {}};
    line.best = work / *std::min_element(seconds.begin(), seconds.end());
    return line;
}

// Queries and keys as a layer holds them: packed with the values before the norm and in gradients,
// in tensors of their own after it.
Lines measure_norm_case(std::int64_t D, const GpuBench& size) {
    const std::int64_t T = size.tokens, H = size.heads, K = size.kv_heads;
    const Tensor qkv = random_on_gpu({1, T, H + 2 * K, D}, "qkv");
    const Tensor dqkv = empty(qkv.shape());
    const Tensor from = random_on_gpu({1, T, H + K, D}, "from"), to = empty(from.shape());
    RopeTable rope = make_rope_table({}, D, 0, T);
    rope.cos = rope.cos.to(Device::kCuda), rope.sin = rope.sin.to(Device::kCuda);

    std::vector<QkNormRopePart> parts;
    std::vector<QkNormRopeGradientPart> gradient_parts;
    for (const auto& [begin, heads] : {std::pair{std::int64_t{0}, H}, std::pair{H, K}}) {
        const Tensor x = qkv.slice(2, begin, begin + heads);
        const Tensor gain = Tensor::full({heads, D}, 1.0f, DType::kFloat32, Device::kCuda);
        const Tensor dgain = Tensor::zeros({heads, D}, DType::kFloat32, Device::kCuda);
        const Tensor rstd = empty({1, T, heads}, DType::kFloat32);
        parts.push_back({x, gain, empty(x.shape()), rstd});
        gradient_parts.push_back({random_on_gpu(x.shape(), "dy"), x, gain, rstd,
                                  dqkv.slice(2, begin, begin + heads), dgain});
    }
    const Times times = time_in_turn_on_gpu(
        {[&] { to.copy_from(from); }, [&] { qk_norm_rope_forward(parts, rope, {}, {}); },
         [&] { qk_norm_rope_backward(gradient_parts, rope, {}, {}); }},
        size);
    const double gigabytes = 1e-9 * static_cast<double>(from.bytes());
    const std::string name = concat(" D=", D);
    Line copy = rate("copy" + name, 2.0 * gigabytes, "GB/s", times[0]);
    Line forward = rate("norm+rope forward" + name, 2.0 * gigabytes, "GB/s", times[1]);
    Line backward = rate("norm+rope backward" + name, 3.0 * gigabytes, "GB/s", times[2]);
    forward.shares = {{median_ratio(times[0], times[1]), "of the copy", kNormGoal}};
    backward.shares = {{1.5 * median_ratio(times[0], times[2]), "of the copy", kNormGoal}};
    return {copy, forward, backward};
}

// Tensors of all tokens, to be seen as B sequences of T.
struct Attention {
    GpuBench size;
    std::int64_t head_dim;
    Tensor q, k, v, out, dout, dq, dk, dv;

    Attention(std::int64_t D, const GpuBench& s) : size(s), head_dim(D) {
        const Shape query = {s.tokens, s.heads, D}, key = {s.tokens, s.kv_heads, D};
        q = random_on_gpu(query, "q"), dout = random_on_gpu(query, "dout");
        k = random_on_gpu(key, "k"), v = random_on_gpu(key, "v");
        out = empty(query), dq = empty(query), dk = empty(key), dv = empty(key);
    }
    Lines measure(std::int64_t T, bool causal) const;
};

Lines Attention::measure(std::int64_t T, bool causal) const {
    const std::int64_t B = size.tokens / T;
    const auto in_sequences = [&](const Tensor& x) { return x.view({B, T, x.size(1), head_dim}); };
    const Tensor q_ = in_sequences(q), k_ = in_sequences(k), v_ = in_sequences(v);
    const Tensor out_ = in_sequences(out), dout_ = in_sequences(dout);
    const Tensor dq_ = in_sequences(dq), dk_ = in_sequences(dk), dv_ = in_sequences(dv);
    const Tensor lse = empty({B, size.heads, T}, DType::kFloat32);
    AttentionOptions options;
    options.mask.causal = causal;
    AttentionStats stats;
    const auto forward = [&](AttentionStats* wanted) {
        flash_attention_forward(q_, k_, v_, options, out_, lse, wanted);
    };
    const Times times = time_in_turn_on_gpu(
        {[&] { forward(nullptr); }, [&] { forward(&stats); },
         [&] { flash_attention_backward(q_, k_, v_, out_, lse, dout_, options, dq_, dk_, dv_); }},
        size);

    // Two products forward and five backward, over visible pairs.
    const auto length = static_cast<double>(T);
    const double pairs = causal ? 0.5 * length * (length + 1.0) : length * length;
    const double product = 2e-12 * pairs * static_cast<double>(B * size.heads * head_dim);
    const std::string name = concat(" D=", head_dim, " T=", T, causal ? " causal" : " full");
    Lines lines = {rate("attention forward" + name, 2.0 * product, "TFLOP/s", times[0]),
                   rate("attention backward" + name, 5.0 * product, "TFLOP/s", times[2])};
    if (head_dim == 128 && B == 1 && !causal) {
        lines[0].shares = {{lines[0].value / kForwardGoal, "of 350 TFLOP/s", 1.0}};
        lines[1].shares = {{lines[1].value / kBackwardGoal, "of 300 TFLOP/s", 1.0}};
    }
    lines[0].shares.push_back(
        {median_ratio(times[1], times[0]) - 1.0, "added by telemetry", kTelemetryGoal, true});
    return lines;
}

void append(Lines& lines, const Lines& more) {
    lines.insert(lines.end(), more.begin(), more.end());
}

}  // namespace

Lines measure_gpu_norm(const GpuBench& size) {
    Lines lines;
    for (const std::int64_t D : size.head_dims) append(lines, measure_norm_case(D, size));
    return lines;
}

Lines measure_gpu_attention(const GpuBench& size) {
    Lines lines;
    for (const std::int64_t D : size.head_dims) {
        const Attention attention(D, size);
        for (const std::int64_t T : size.lengths) {
            for (const bool causal : {false, true}) append(lines, attention.measure(T, causal));
        }
    }
    return lines;
}

}  // namespace evenkeel::bench
