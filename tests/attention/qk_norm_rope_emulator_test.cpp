// What only the emulator can show of QK-norm and RoPE: any order of threads gives the same bits,
// and memory is moved in whole sectors.
#include <string>

#include "tests/attention/qk_norm_rope_device.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel::testing {
namespace {

constexpr DType kBf16 = DType::kBFloat16, kFp32 = DType::kFloat32;

JointCase joint_case(std::int64_t tokens, std::int64_t queries, std::int64_t keys) {
    JointCase c;
    c.dim = 128;
    c.tokens = tokens;
    c.heads[0] = queries, c.heads[1] = keys;
    return c;
}

TEST(QkNormRopeEmulated, OrderOfThreadsDoesNotMatter) {
    JointCase c = joint_case(70, 3, 2);
    c.gain[0] = gaussian({3, 128}, kFp32, 3);
    c.gain[1] = gaussian({128}, kFp32, 4);
    const Tensor x = gaussian({1, 70, c.width()}, kBf16, 1);
    const Tensor dy = gaussian({1, 70, c.width()}, kBf16, 2);
    c.options.norm = QkNormKind::kLayerNorm;  // everything of the others and more
    gpu_emulator::set_seed(0);
    const JointResult want = run_joint(Device::kCuda, c, x, dy);
    for (const std::uint64_t seed : {1, 2, 3}) {
        gpu_emulator::set_seed(seed);
        const JointResult got = run_joint(Device::kCuda, c, x, dy);
        EXPECT_TRUE(same_bits(got.y, want.y)) << "seed " << seed;
        EXPECT_TRUE(same_bits(got.dx, want.dx)) << "seed " << seed;
        for (int i = 0; i < 2; ++i) {
            EXPECT_TRUE(same_bits(got.rstd[i], want.rstd[i])) << "seed " << seed;
            EXPECT_TRUE(same_bits(got.dgain[i], want.dgain[i])) << "seed " << seed;
        }
    }
    EXPECT_EQ(gpu_emulator::report_count(), 0u);
}

// Sectors of 32 bytes and bytes that the one kernel with this in its name asked for.
gpu_emulator::Counters counters_of(const std::string& name) {
    for (const auto& [kernel, counters] : gpu_emulator::counters()) {
        if (kernel.find(name) != std::string::npos) return counters;
    }
    ADD_FAILURE() << "no launch of " << name;
    return {};
}

// Copying alone, in both directions: exactly the bytes, in whole sectors. T, and the heads that
// share a warp, are such that every group of lanes has work.
TEST(QkNormRopeEmulated, RowsMoveInWholeSectorsOnce) {
    for (const std::int64_t dim : {64, 96, 128, 256}) {
        for (const DType dtype : {kBf16, DType::kFloat16}) {
            for (const RopeLayout layout : {RopeLayout::kHalfSplit, RopeLayout::kInterleaved}) {
                SCOPED_TRACE(
                    concat("head width ", dim, ", ", name_of(dtype), ", ",
                           layout == RopeLayout::kHalfSplit ? "half-split" : "interleaved"));
                JointCase c = joint_case(16, 8, 4);
                c.dim = dim;
                c.options.norm = QkNormKind::kNone;
                c.rope.layout = layout;
                c.rope.rotary_fraction = 0.0;
                const Tensor x = gaussian({1, 16, c.width()}, dtype, 1);
                gpu_emulator::reset_counters();
                run_joint(Device::kCuda, c, x, x);
                const std::uint64_t bytes = 2 * 16 * 12 * static_cast<std::uint64_t>(dim) * 2;
                for (const char* kernel :
                     {"qk_norm_rope_forward_kernel", "qk_norm_rope_backward_kernel"}) {
                    const gpu_emulator::Counters counters = counters_of(kernel);
                    EXPECT_EQ(counters.global_bytes, bytes) << kernel;
                    EXPECT_EQ(counters.global_sectors, bytes / 32) << kernel;
                }
            }
        }
    }
}

// With the norm, rstd goes along; with the rotation, the table. What they add is small.
TEST(QkNormRopeEmulated, StatisticAndAnglesAddLittle) {
    for (const QkNormKind norm : kNorms) {
        SCOPED_TRACE(name_of(norm));
        JointCase c = joint_case(16, 8, 4);
        c.options.norm = norm;
        const Tensor x = gaussian({1, 16, c.width()}, kBf16, 1);
        gpu_emulator::reset_counters();
        run_joint(Device::kCuda, c, x, x);
        // For the 4 rows of a warp: a sector of rstd; cos and sin, 8 sectors each, by two loads each.
        const std::uint64_t quads = 16 * 12 / 4, row = 4 * 128 * 2 / 32;
        EXPECT_EQ(counters_of("qk_norm_rope_forward_kernel").global_sectors,
                  quads * (2 * row + 1 + 4 * 8));
        EXPECT_EQ(counters_of("qk_norm_rope_backward_kernel").global_sectors,
                  quads * (3 * row + 1 + 4 * 8));
        EXPECT_EQ(counters_of("qk_norm_rope_backward_kernel").shared_requests, 0u);
    }
}

}  // namespace
}  // namespace evenkeel::testing
