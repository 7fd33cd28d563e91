// What the measurements of `evenkeel bench` share. A machine's speed drifts, so everything that is
// divided by one another is timed in turn, round by round, and the median of the rounds' ratios is
// shown.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/tensor.h"
#include "model/model_config.h"
#include "parallel/communicator.h"

namespace evenkeel::bench {

struct Share {
    double ratio = 0.0;
    std::string of;     // "of bf16 GEMM"
    double goal = 0.0;  // 0: none
    bool at_most = false;
};

struct Line {
    std::string name;
    double value = 0.0;
    std::string unit;  // "GFLOP/s", "GB/s", "ms", "MiB"
    std::vector<Share> shares;
    // The fastest round's value, where `value` is the median round's; 0: not told.
    double best = 0.0;
};
using Lines = std::vector<Line>;

using Body = std::function<void()>;
using Times = std::vector<std::vector<double>>;  // seconds of one call, [body][round]

// Seconds of one of `calls` calls in a row, by the clock on the wall.
double seconds_of(const Body& body, int calls);
// Each body runs once unmeasured, then in every round as often as fills `seconds` by that timer.
Times time_in_turn(const std::vector<Body>& bodies,
                   int rounds,
                   double seconds = 0.05,
                   double (*timer)(const Body&, int) = seconds_of);
double median(std::vector<double> values);
// Median over rounds of a / b.
double median_ratio(const std::vector<double>& a, const std::vector<double>& b);

// Normal numbers, the first thousand repeated: only the time counts.
Tensor random_tensor(const Shape& shape, DType dtype, std::string_view name);

// A square product of the machine's matrix library, the yardstick: oneDNN called directly, bf16 or
// fp32.
class YardstickGemm {
  public:
    explicit YardstickGemm(bool bf16);
    ~YardstickGemm();
    void run() const;
    double flops() const;

  private:
    struct State;
    std::unique_ptr<State> state_;
};

Lines measure_gemm();
Lines measure_attention();
Lines measure_norm();
Lines measure_memory();
Lines measure_step();
// Time and memory of a step with each ModelConfig::recompute.
Lines measure_recompute();
// What writing checkpoints beside training costs the steps.
Lines measure_checkpoint();
// What telemetry and QK-norm add to a step of training that model; `step` does one.
Lines measure_costs(const ModelConfig& config,
                    std::int64_t batch,
                    std::int64_t tokens,
                    const Body& step);
// What is measured on a GPU.
struct GpuBench {
    std::int64_t tokens = 16384, heads = 32, kv_heads = 8;
    std::vector<std::int64_t> head_dims = {64, 128, 96, 256};
    std::vector<std::int64_t> lengths = {2048, 4096, 8192, 16384};  // of sequences; divide tokens
    int rounds = 15;
    double seconds = 0.01;  // of one body in one round
};
Lines measure_gpu_norm(const GpuBench& size);
Lines measure_gpu_attention(const GpuBench& size);
// `evenkeel bench --device cuda`: measures "norm" and "attention", or only those named.
void run_gpu_bench(const std::vector<std::string>& only,
                   bool json,
                   const GpuBench& size,
                   std::ostream& out);
// Two ranks against one rank with two threads, and with sequence parallelism against without; collective over two
// ranks. Rank 0 has the result.
Lines measure_ranks(Communicator& world);

}  // namespace evenkeel::bench
