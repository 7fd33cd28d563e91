// What only the emulator can see of flash attention's forward kernel: that its result does not
// depend on the order in which threads happen to run, and what its memory accesses cost.
#include <gtest/gtest.h>

#include <string>

#include "attention/flash_attention.h"
#include "tests/attention/flash_attention_counters.h"
#include "tests/attention/flash_attention_methods.h"
#include "tests/attention/flash_attention_plain.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/support/compare.h"

namespace evenkeel {
namespace {

using testing::DataKind;
using testing::FlashInputs;
using testing::make_flash_inputs;
using testing::same_bits;

// Output and lse, on the CPU.
std::pair<Tensor, Tensor> run_flash(const FlashInputs& in, AttentionOptions options = {}) {
    const auto gpu = [](const Tensor& x) { return x.to(Device::kCuda); };
    const Tensor out = gpu(testing::poisoned(in.q.shape(), in.q.dtype()));
    const Tensor lse =
        gpu(testing::poisoned({in.shape.B, in.shape.H, in.shape.T}, DType::kFloat32));
    if (options.sink.defined()) options.sink = gpu(options.sink);
    AttentionStats stats;
    flash_attention_forward(gpu(in.q), gpu(in.k), gpu(in.v), options, out, lse, &stats);
    return {out.to(Device::kCpu), lse.to(Device::kCpu)};
}

AttentionOptions capped_with_sinks(std::int64_t heads) {
    return testing::with_method({"", 2.0, {0.5f, -1.0f}}, {}, heads);
}

class FlashForwardEmulatorTest : public ::testing::TestWithParam<std::int64_t> {
  protected:
    void TearDown() override { gpu_emulator::set_seed(1); }
};
INSTANTIATE_TEST_SUITE_P(HeadDim,
                         FlashForwardEmulatorTest,
                         ::testing::Values(64, 96, 128, 256),
                         ::testing::PrintToStringParamName());

TEST_P(FlashForwardEmulatorTest, DoesNotDependOnTheOrderOfThreads) {
    const FlashInputs in =
        make_flash_inputs({1, 200, 200, 1, 1, GetParam()}, DType::kBFloat16, DataKind::kGaussian);
    gpu_emulator::set_seed(0);
    const auto [out, lse] = run_flash(in);
    for (std::uint64_t seed : {2, 3, 4}) {
        gpu_emulator::set_seed(seed);
        const auto [other_out, other_lse] = run_flash(in);
        EXPECT_TRUE(same_bits(other_out, out)) << "seed " << seed;
        EXPECT_TRUE(same_bits(other_lse, lse)) << "seed " << seed;
    }
}

TEST_P(FlashForwardEmulatorTest, DoesNotDependOnTheOrderOfThreadsBehindSoftcapAndSinks) {
    const FlashInputs in =
        make_flash_inputs({1, 150, 150, 1, 1, GetParam()}, DType::kBFloat16, DataKind::kGaussian);
    gpu_emulator::set_seed(0);
    const auto [out, lse] = run_flash(in, capped_with_sinks(1));
    for (std::uint64_t seed : {2, 3}) {
        gpu_emulator::set_seed(seed);
        const auto [other_out, other_lse] = run_flash(in, capped_with_sinks(1));
        EXPECT_TRUE(same_bits(other_out, out)) << "seed " << seed;
        EXPECT_TRUE(same_bits(other_lse, lse)) << "seed " << seed;
    }
}

TEST_P(FlashForwardEmulatorTest, HasNoBankConflictsAndWholeSectors) {
    // Whole tiles: all rows are there.
    const FlashInputs in =
        make_flash_inputs({1, 256, 256, 2, 1, GetParam()}, DType::kFloat16, DataKind::kGaussian);
    gpu_emulator::reset_counters();
    run_flash(in);
    run_flash(in, capped_with_sinks(2));
    // Beside whole tiles there are 4 bytes a row of lse and 24 bytes a tile of telemetry.
    testing::expect_no_bank_conflicts_and_whole_sectors("flash_forward_kernel", 2, 50);
}

TEST(FlashAttentionEmulatorTest, PackedDocumentsMakeTheHostWaitInNeitherDirection) {
    const AttentionOptions options{{true, 0, {0, 7, 7, 40}}, 0.0};
    const FlashInputs in =
        make_flash_inputs({1, 40, 40, 2, 1, 64}, DType::kBFloat16, DataKind::kGaussian);
    const auto gpu = [](const Tensor& x) { return x.to(Device::kCuda); };
    const Tensor q = gpu(in.q), k = gpu(in.k), v = gpu(in.v), dout = gpu(in.dout);
    const Tensor out = gpu(in.q), lse = gpu(testing::poisoned({1, 2, 40}, DType::kFloat32));
    const Tensor dq = gpu(in.q), dk = gpu(in.k), dv = gpu(in.v);
    AttentionStats stats;
    gpu_emulator::reset_host_waits();
    flash_attention_forward(q, k, v, options, out, lse, &stats);
    flash_attention_backward(q, k, v, out, lse, dout, options, dq, dk, dv);
    std::string calls;
    for (const auto& [name, count] : gpu_emulator::host_wait_calls()) {
        calls += concat(name, " ", count, "; ");
    }
    EXPECT_EQ(gpu_emulator::host_waits(), 0u) << calls;
}

}  // namespace
}  // namespace evenkeel
