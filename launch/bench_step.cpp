// Whole training steps against matrix products, and with what backward makes again.
#include "framework/buffer.h"
#include "launch/bench_stepper.h"

namespace evenkeel::bench {

Lines measure_step(const StepBench& size) {
    const auto world = make_single_communicator();
    const ProcessGrid grid(*world, {});
    Stepper full(grid, size);
    const YardstickGemm bf16(true), fp32(false);
    const auto times = time_in_turn(
        "step", {[&] { full.step(); }, [&] { bf16.run(); }, [&] { fp32.run(); }}, size.rounds, 0.2);
    const double flops = full.flops();
    Lines lines = {{name_of(size, "training step"),
                    flops / median(times[0]) / 1e9,
                    "GFLOP/s",
                    {share_of_rounds(ratios_of(times[1], times[0]), "of bf16 GEMM", 0.60, false,
                                     flops / bf16.flops()),
                     share_of_rounds(ratios_of(times[2], times[0]), "of fp32 GEMM", 0.0, false,
                                     flops / fp32.flops())}}};
    for (const Line& cost :
         measure_costs(model_of(size), size.batch, size.tokens, [&] { full.step(); }))
        lines.push_back(cost);
    return lines;
}

Lines measure_recompute(const StepBench& size) {
    const auto world = make_single_communicator();
    const ProcessGrid grid(*world, {});
    std::vector<std::unique_ptr<Stepper>> steppers;
    std::vector<Body> bodies;
    std::vector<double> peaks, flops;
    for (const Recompute mode : kAllRecompute) {
        ModelConfig config = model_of(size);
        config.recompute = mode;
        const std::size_t before = Buffer::live_bytes(Device::kCpu);
        steppers.push_back(std::make_unique<Stepper>(grid, size, config));
        Buffer::reset_peak(Device::kCpu);
        steppers.back()->step();
        peaks.push_back(static_cast<double>(Buffer::peak_bytes(Device::kCpu) - before));
        bodies.emplace_back([stepper = steppers.back().get()] { stepper->step(); });
        flops.push_back(flops_per_token(config, size.tokens) +
                        recomputed_flops_per_token(config, size.tokens));
    }
    const Times times = time_in_turn("recompute", bodies, size.rounds, 0.2);
    Lines lines;
    for (std::size_t i = 0; i < std::size(kAllRecompute); ++i) {
        Line time{name_of(size, concat("recompute ", name_of(kAllRecompute[i]))),
                  1e3 * median(times[i]),
                  "ms",
                  {}};
        Line memory{concat("peak of memory, recompute ", name_of(kAllRecompute[i])),
                    peaks[i] / (1 << 20),
                    "MiB",
                    {}};
        if (i > 0) {
            time.shares = {share_of_rounds(ratios_of(times[i], times[0]), "of the time of none"),
                           {flops[i] / flops[0], "of its hardware FLOPs"}};
            memory.shares = {{peaks[i] / peaks[0], "of the memory of none"}};
        }
        lines.push_back(time);
        lines.push_back(memory);
    }
    return lines;
}

}  // namespace evenkeel::bench
