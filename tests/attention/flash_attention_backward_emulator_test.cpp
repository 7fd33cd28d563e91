// What only the emulator can see of flash attention's backward kernels: that the gradients do not
// depend on the order in which threads and blocks happen to run, and what memory accesses cost.
#include <gtest/gtest.h>

#include "attention/flash_attention.h"
#include "tests/attention/flash_attention_counters.h"
#include "tests/attention/flash_attention_methods.h"
#include "tests/attention/flash_attention_plain.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/support/compare.h"

namespace evenkeel {
namespace {

using testing::DataKind;
using testing::FlashGradients;
using testing::FlashInputs;
using testing::make_flash_inputs;
using testing::poisoned;
using testing::same_bits;

// Forward and backward; gradients on the CPU.
FlashGradients run_flash(const FlashInputs& in, AttentionOptions options) {
    const auto gpu = [](const Tensor& x) { return x.to(Device::kCuda); };
    const DType dtype = in.q.dtype();
    const Tensor q = gpu(in.q), k = gpu(in.k), v = gpu(in.v), out = gpu(poisoned(q.shape(), dtype));
    const Tensor lse = gpu(poisoned({in.shape.B, in.shape.H, in.shape.T}, DType::kFloat32));
    const FlashGradients r{gpu(poisoned(q.shape(), dtype)), gpu(poisoned(k.shape(), dtype)),
                           gpu(poisoned(v.shape(), dtype)),
                           gpu(Tensor::zeros({in.shape.H}, DType::kFloat32))};
    const bool with_sink = options.sink.defined();
    if (with_sink) options.sink = gpu(options.sink);
    flash_attention_forward(q, k, v, options, out, lse, nullptr);
    flash_attention_backward(q, k, v, out, lse, gpu(in.dout), options, r.dq, r.dk, r.dv,
                             with_sink ? r.dsink : Tensor{});
    return {r.dq.to(Device::kCpu), r.dk.to(Device::kCpu), r.dv.to(Device::kCpu),
            r.dsink.to(Device::kCpu)};
}

AttentionOptions capped_with_sinks(std::int64_t heads) {
    return testing::with_method({"", 2.0, {0.5f, -1.0f}}, {}, heads);
}

void expect_same_for_every_seed(const FlashInputs& in, const AttentionOptions& options = {}) {
    gpu_emulator::set_seed(0);
    const FlashGradients want = run_flash(in, options);
    for (std::uint64_t seed : {2, 3}) {
        gpu_emulator::set_seed(seed);
        const FlashGradients got = run_flash(in, options);
        EXPECT_TRUE(same_bits(got.dq, want.dq)) << "dq, seed " << seed;
        EXPECT_TRUE(same_bits(got.dk, want.dk)) << "dk, seed " << seed;
        EXPECT_TRUE(same_bits(got.dv, want.dv)) << "dv, seed " << seed;
        EXPECT_TRUE(same_bits(got.dsink, want.dsink)) << "dsink, seed " << seed;
    }
}

class FlashBackwardEmulatorTest : public ::testing::TestWithParam<std::int64_t> {
  protected:
    void TearDown() override { gpu_emulator::set_seed(1); }
};
INSTANTIATE_TEST_SUITE_P(HeadDim,
                         FlashBackwardEmulatorTest,
                         ::testing::Values(64, 96, 128, 256),
                         ::testing::PrintToStringParamName());

TEST_P(FlashBackwardEmulatorTest, DoesNotDependOnTheOrderOfThreads) {
    expect_same_for_every_seed(
        make_flash_inputs({1, 150, 150, 2, 1, GetParam()}, DType::kBFloat16, DataKind::kGaussian));
}

TEST_P(FlashBackwardEmulatorTest, DoesNotDependOnTheOrderOfThreadsBehindSoftcapAndSinks) {
    expect_same_for_every_seed(
        make_flash_inputs({1, 150, 150, 2, 1, GetParam()}, DType::kBFloat16, DataKind::kGaussian),
        capped_with_sinks(2));
}

// With logits beyond what an fp32 lse can tell.
TEST_P(FlashBackwardEmulatorTest, DoesNotDependOnTheOrderOfThreadsWhereLogitsAreHuge) {
    const FlashInputs in =
        make_flash_inputs({1, 70, 70, 1, 1, GetParam()}, DType::kBFloat16, DataKind::kGaussian);
    in.q.fill(32.0f);
    in.k.fill(64.0f);
    expect_same_for_every_seed(in);
}

TEST_P(FlashBackwardEmulatorTest, HasNoBankConflictsAndWholeSectors) {
    // Whole tiles: all rows are there.
    const FlashInputs in =
        make_flash_inputs({1, 256, 256, 2, 1, GetParam()}, DType::kFloat16, DataKind::kGaussian);
    gpu_emulator::reset_counters();
    run_flash(in, {});
    run_flash(in, capped_with_sinks(2));
    // Beside whole tiles there are 12 bytes a row of what the kernels tell one another.
    testing::expect_no_bank_conflicts_and_whole_sectors("flash_backward_", 5, 20);
}

}  // namespace
}  // namespace evenkeel
