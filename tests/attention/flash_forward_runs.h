// A forward pass of flash attention on a GPU, and what tests of it share.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "attention/flash_attention.h"
#include "tests/attention/flash_attention_cuda_cases.h"
#include "tests/attention/flash_attention_methods.h"
#include "tests/attention/flash_attention_plain.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

namespace evenkeel::testing {

struct ForwardResults {
    Tensor out, lse;  // on the CPU
    AttentionStats stats;
};

// Outputs start as NaN, so that whatever is not written shows.
inline ForwardResults run_flash(const FlashInputs& in,
                                AttentionOptions options,
                                bool with_telemetry = true) {
    const auto gpu = [](const Tensor& x) { return on(Device::kCuda, x); };
    const Tensor out = gpu(poisoned(in.q.shape(), in.q.dtype()));
    const Tensor lse = gpu(poisoned({in.shape.B, in.shape.H, in.shape.T}, DType::kFloat32));
    if (options.sink.defined()) options.sink = gpu(options.sink);
    AttentionStats stats;
    flash_attention_forward(gpu(in.q), gpu(in.k), gpu(in.v), options, out, lse,
                            with_telemetry ? &stats : nullptr);
    if (!with_telemetry) return {on_cpu(out), on_cpu(lse), {}};
    return {on_cpu(out),
            on_cpu(lse),
            {on_cpu(stats.max_logit), on_cpu(stats.max_logit_uncapped), on_cpu(stats.entropy),
             on_cpu(stats.entropy_share), on_cpu(stats.saturation)}};
}

inline void expect_same(const ForwardResults& got,
                        const ForwardResults& want,
                        const std::string& when) {
    EXPECT_TRUE(same_bits(got.out, want.out)) << "out, " << when;
    EXPECT_TRUE(same_bits(got.lse, want.lse)) << "lse, " << when;
    EXPECT_TRUE(same_bits(got.stats.max_logit, want.stats.max_logit)) << "max_logit, " << when;
    EXPECT_TRUE(same_bits(got.stats.max_logit_uncapped, want.stats.max_logit_uncapped))
        << "max_logit_uncapped, " << when;
    EXPECT_TRUE(same_bits(got.stats.entropy, want.stats.entropy)) << "entropy, " << when;
    EXPECT_TRUE(same_bits(got.stats.entropy_share, want.stats.entropy_share))
        << "entropy_share, " << when;
    EXPECT_TRUE(same_bits(got.stats.saturation, want.stats.saturation)) << "saturation, " << when;
}

inline void check_flash_forward(const FlashInputs& in, const AttentionOptions& options) {
    const ForwardResults r = run_flash(in, options);
    const ReferenceResult truth = run_flash_reference(in, options).forward;
    expect_forward_near_truth(r.out, r.lse, &r.stats, run_plain_flash(in, options), truth);
    expect_telemetry_near_truth(r.stats, truth);
}

}  // namespace evenkeel::testing
