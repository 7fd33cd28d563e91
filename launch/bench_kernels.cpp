// The kernels against the machine's own matrix products and copies.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>

#include "attention/flash_attention.h"
#include "attention/qk_norm_rope.h"
#include "framework/gemm.h"
#include "framework/rng.h"
#include "launch/bench_attention.h"

namespace evenkeel::bench {
namespace {

constexpr int kRounds = 7;
constexpr std::int64_t kYardstick = 1536;  // rows, columns and depth
constexpr double kGiga = 1e9;

Lines measure_attention_case(const AttentionCase& c, double forward_goal, double backward_goal) {
    AttentionTensors t(c, true);
    const YardstickGemm bf16(true), fp32(false);
    const auto times = time_in_turn(
        "attention",
        {[&] { t.forward(); }, [&] { t.backward(); }, [&] { bf16.run(); }, [&] { fp32.run(); }},
        kRounds);
    const std::string size = concat("D=", c.head_dim, " T=", c.tokens, " causal");
    const auto line = [&](const char* what, std::size_t i, double flops, double goal) {
        return Line{concat("attention ", what, " ", size),
                    flops / median(times[i]) / kGiga,
                    "GFLOP/s",
                    {share_of_rounds(ratios_of(times[2], times[i]), "of bf16 GEMM", goal, false,
                                     flops / bf16.flops()),
                     share_of_rounds(ratios_of(times[3], times[i]), "of fp32 GEMM", 0.0, false,
                                     flops / fp32.flops())}};
    };
    return {line("forward ", 0, c.forward_flops(), forward_goal),
            line("backward", 1, c.backward_flops(), backward_goal)};
}

}  // namespace

void copy_bytes(const Tensor& from, const Tensor& to) {
    const auto bytes = static_cast<std::int64_t>(from.bytes());
    const std::int64_t part = bytes / omp_get_max_threads() & ~std::int64_t{63};
#pragma omp parallel
    {
        const std::int64_t begin = part * omp_get_thread_num();
        const std::int64_t end =
            omp_get_thread_num() + 1 == omp_get_num_threads() ? bytes : begin + part;
        std::memcpy(to.raw() + begin, from.raw() + begin, static_cast<std::size_t>(end - begin));
    }
}

Tensor random_tensor(const Shape& shape, DType dtype, std::string_view name) {
    const Tensor x = Tensor::uninitialized(shape, DType::kFloat32);
    const CounterRng rng(1, purpose(name));
    auto* data = x.data<float>();
    // A thousand numbers, repeated: only the time counts.
    for (std::int64_t i = 0; i < x.numel(); ++i) {
        data[i] = i < 1009 ? static_cast<float>(rng.normal(static_cast<std::uint64_t>(i)))
                           : data[i - 1009];
    }
    return x.to(dtype);
}

struct YardstickGemm::State {
    dnnl::engine engine{dnnl::engine::kind::cpu, 0};
    dnnl::stream stream{engine};
    dnnl::matmul product;
    dnnl::memory a, b, c;
};

YardstickGemm::YardstickGemm(bool bf16) : state_(std::make_unique<State>()) {
    using Memory = dnnl::memory;
    const auto type = bf16 ? Memory::data_type::bf16 : Memory::data_type::f32;
    const Memory::dims size = {kYardstick, kYardstick};
    const Memory::desc rows(size, type, Memory::format_tag::ab);
    const Memory::desc any(size, type, Memory::format_tag::any);  // b as oneDNN likes it best
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc primitive(state_->engine, rows, any, rows);
#else
    const dnnl::matmul::primitive_desc primitive(dnnl::matmul::desc(rows, any, rows),
                                                 state_->engine);
#endif
    state_->product = dnnl::matmul(primitive);
    state_->a = Memory(rows, state_->engine);
    state_->b = Memory(primitive.weights_desc(), state_->engine);
    state_->c = Memory(rows, state_->engine);
    std::memset(state_->a.get_data_handle(), 0, state_->a.get_desc().get_size());
    std::memset(state_->b.get_data_handle(), 0, state_->b.get_desc().get_size());
}

YardstickGemm::~YardstickGemm() = default;

void YardstickGemm::run() const {
    state_->product.execute(
        state_->stream,
        {{DNNL_ARG_SRC, state_->a}, {DNNL_ARG_WEIGHTS, state_->b}, {DNNL_ARG_DST, state_->c}});
    state_->stream.wait();
}

double YardstickGemm::flops() const { return 2.0 * kYardstick * kYardstick * kYardstick; }

Lines measure_gemm() {
    const YardstickGemm bf16(true), fp32(false);
    const Shape size = {kYardstick, kYardstick};
    const Tensor a = random_tensor(size, DType::kBFloat16, "a"),
                 b = random_tensor(size, DType::kBFloat16, "b");
    const Tensor c = Tensor::uninitialized(size, DType::kBFloat16);
    const auto times = time_in_turn(
        "gemm", {[&] { bf16.run(); }, [&] { fp32.run(); }, [&] { gemm(a, b, c); }}, kRounds);
    const auto rate = [&](std::size_t i) { return bf16.flops() / median(times[i]) / kGiga; };
    return {{"oneDNN bf16 (the yardstick)", rate(0), "GFLOP/s", {}},
            {"oneDNN fp32",
             rate(1),
             "GFLOP/s",
             {share_of_rounds(ratios_of(times[0], times[1]), "of bf16 GEMM")}},
            {"evenkeel::gemm, bf16 in and out",
             rate(2),
             "GFLOP/s",
             {share_of_rounds(ratios_of(times[0], times[2]), "of bf16 GEMM")}}};
}

Lines measure_attention() {
    Lines lines = measure_attention_case({64, 4096, 8, 4}, 0.72, 0.55);
    for (const Line& line : measure_attention_case({128, 4096, 4, 2}, 0.82, 0.55)) {
        lines.push_back(line);
    }
    return lines;
}

Lines measure_norm() {
    // Beyond caches: 128 MiB a tensor, most of which no core keeps.
    const std::int64_t tokens = 65536, heads = 16, width = 64;
    const Shape shape = {1, tokens, heads, width};
    const Tensor x = random_tensor(shape, DType::kBFloat16, "x");
    const Tensor dy = random_tensor(shape, DType::kBFloat16, "dy");
    const Tensor y = Tensor::zeros(shape, DType::kBFloat16);
    const Tensor gain = Tensor::full({heads, width}, 1.0f, DType::kFloat32);
    const Tensor dgain = Tensor::zeros({heads, width}, DType::kFloat32);
    const Tensor rstd = Tensor::zeros({1, tokens, heads}, DType::kFloat32);
    const RopeTable rope = make_rope_table({}, width, 0, tokens);
    const auto times = time_in_turn(
        "norm",
        {[&] { copy_bytes(x, y); }, [&] { qk_norm_rope_forward(x, gain, rope, {}, {}, y, rstd); },
         [&] { qk_norm_rope_backward(dy, x, gain, rstd, rope, {}, {}, y, dgain); }},
        2 * kRounds + 1);
    const auto bytes = static_cast<double>(x.bytes());
    const auto rate = [&](std::size_t i, double streams) {
        return streams * bytes / median(times[i]) / kGiga;
    };
    return {{"copy", rate(0, 2.0), "GB/s", {}},
            {"QK-norm + RoPE forward (reads x, writes y)",
             rate(1, 2.0),
             "GB/s",
             {share_of_rounds(ratios_of(times[0], times[1]), "of the copy", 0.85)}},
            {"QK-norm + RoPE backward (reads dy, x; writes dx)",
             rate(2, 3.0),
             "GB/s",
             {share_of_rounds(ratios_of(times[0], times[2]), "of the copy", 0.85, false, 1.5)}}};
}

}  // namespace evenkeel::bench
