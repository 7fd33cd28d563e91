#include "launch/scale/run/rates.h"

#include <cstring>

#include "attention/flash_attention.h"
#include "framework/gemm.h"
#include "launch/bench.h"

namespace evenkeel::scale {
namespace {

constexpr int kRounds = 3;
constexpr double kSeconds = 0.03;  // of a round

double seconds_of(const bench::Body& body, Communicator& world) {
    world.barrier();
    return bench::median(bench::time_in_turn("rates", {body}, kRounds, kSeconds)[0]);
}

double mean(double value, Communicator& world) {
    return world.all_reduce_scalar(value, ReduceOp::kSum) / world.size();
}

}  // namespace

Rates measure_rates(const RunConfig& config, Communicator& world) {
    const ModelConfig& model = config.model;
    const std::int64_t P = config.parallel.tensor_parallel, T = config.trainer.seq_len;
    const DType type = to_dtype(model.type);
    Rates rates;
    {
        const bench::YardstickGemm product(model.type == ComputeType::kBf16);
        rates.yardstick_flops = product.flops() / seconds_of([&] { product.run(); }, world);
    }
    {
        const std::int64_t rows = config.trainer.micro_batch_size * T;
        const std::int64_t columns = model.feed_forward_width / P;
        const Tensor a = bench::random_tensor({rows, model.width}, type, "a"),
                     b = bench::random_tensor({columns, model.width}, type, "b"),
                     c = Tensor::uninitialized({rows, columns}, type);
        const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(columns) *
                             static_cast<double>(model.width);
        rates.product_flops =
            flops / seconds_of([&] { gemm(a, b, c, {.transpose_b = true}); }, world);
    }
    {
        const std::int64_t heads = model.attention.num_heads / P, D = model.attention.head_dim;
        const std::int64_t kv_heads = std::max<std::int64_t>(1, model.attention.num_kv_heads / P);
        const std::int64_t B = config.trainer.micro_batch_size;
        const Shape query = {B, T, heads, D}, key = {B, T, kv_heads, D};
        const Tensor q = bench::random_tensor(query, type, "q"),
                     k = bench::random_tensor(key, type, "k"),
                     v = bench::random_tensor(key, type, "v"),
                     dout = bench::random_tensor(query, type, "dout"),
                     out = Tensor::uninitialized(query, type),
                     lse = Tensor::uninitialized({B, heads, T}, DType::kFloat32),
                     dq = Tensor::uninitialized(query, type), dk = Tensor::uninitialized(key, type),
                     dv = Tensor::uninitialized(key, type);
        AttentionOptions options;
        options.mask.window = model.attention.window;
        AttentionStats stats;
        AttentionStats* const telemetry = model.telemetry ? &stats : nullptr;
        // As the model of a step counts them: 4 D a pair that is seen, and 10 D backward.
        double pairs = 0.0;
        for (std::int64_t t = 1; t <= T; ++t) {
            pairs +=
                static_cast<double>(options.mask.window > 0 ? std::min(t, options.mask.window) : t);
        }
        const double products = pairs * static_cast<double>(B * heads * D);
        rates.attention_forward_flops =
            4.0 * products /
            seconds_of([&] { flash_attention_forward(q, k, v, options, out, lse, telemetry); },
                       world);
        rates.attention_backward_flops =
            10.0 * products /
            seconds_of(
                [&] { flash_attention_backward(q, k, v, out, lse, dout, options, dq, dk, dv); },
                world);
    }
    {
        const Tensor from = Tensor::zeros({16 << 20}, DType::kFloat32),
                     to = Tensor::zeros({16 << 20}, DType::kFloat32);
        rates.memory_bytes =
            2.0 * static_cast<double>(from.bytes()) /
            seconds_of([&] { std::memcpy(to.raw(), from.raw(), from.bytes()); }, world);
    }
    for (double Rates::*rate :
         {&Rates::yardstick_flops, &Rates::product_flops, &Rates::attention_forward_flops,
          &Rates::attention_backward_flops, &Rates::memory_bytes}) {
        rates.*rate = mean(rates.*rate, world);
    }
    return rates;
}

}  // namespace evenkeel::scale
