// Tensors on a GPU whose rows lie further apart than 32 bits can count. Only the rows themselves
// are touched, so the emulator needs no memory for what lies between.
#include <gtest/gtest.h>

#include <vector>

#include "attention/flash_attention.h"
#include "attention/qk_norm_rope.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::on;
using testing::on_cpu;
using testing::poisoned;
using testing::same_bits;

constexpr std::int64_t kTokens = 3, kDim = 64;
const Shape kShape{1, kTokens, 1, kDim};

class FarStridesCudaTest : public ::testing::TestWithParam<Device> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FarStridesCudaTest);
INSTANTIATE_TEST_SUITE_P(,
                         FarStridesCudaTest,
                         ::testing::ValuesIn(testing::test_gpus()),
                         testing::device_name);

// The three rows of a tensor, 2^30 elements and a little apart, in memory of its own: the last one
// starts beyond 2^31.
Tensor far_apart(Device device, const Tensor& rows) {
    const std::int64_t stride = (std::int64_t{1} << 30) + 128;
    const Tensor all = Tensor::uninitialized({1, kTokens, 1, stride}, rows.dtype(), device);
    const Tensor view = all.slice(3, 0, kDim);
    view.copy_from(on(device, rows));
    return view;
}

TEST_P(FarStridesCudaTest, AttentionReachesThem) {
    const auto there = [](const Tensor& tensor) { return on(GetParam(), tensor); };
    const Tensor q = there(gaussian(kShape, DType::kBFloat16, 1)),
                 k = there(gaussian(kShape, DType::kBFloat16, 2)),
                 v = there(gaussian(kShape, DType::kBFloat16, 3));
    const Tensor want = there(poisoned(kShape, DType::kBFloat16)),
                 lse = there(poisoned({1, 1, kTokens}, DType::kFloat32));
    flash_attention_forward(q, k, v, {}, want, lse, nullptr);
    // One at a time: each takes 6 GiB on a real GPU.
    for (int which = 0; which < 4; ++which) {
        const Tensor out = which == 3
                               ? far_apart(GetParam(), there(poisoned(kShape, DType::kBFloat16)))
                               : there(poisoned(kShape, DType::kBFloat16));
        flash_attention_forward(which == 0 ? far_apart(GetParam(), q) : q,
                                which == 1 ? far_apart(GetParam(), k) : k,
                                which == 2 ? far_apart(GetParam(), v) : v, {}, out, lse, nullptr);
        EXPECT_TRUE(same_bits(on_cpu(out), on_cpu(want))) << "far apart: argument " << which;
    }
}

TEST_P(FarStridesCudaTest, AttentionsGradientsReachThem) {
    const auto there = [](const Tensor& tensor) { return on(GetParam(), tensor); };
    const auto poison = [&] { return there(poisoned(kShape, DType::kBFloat16)); };
    Tensor inputs[5];  // q, k, v, dout, out
    for (std::uint64_t i = 0; i < 4; ++i)
        inputs[i] = there(gaussian(kShape, DType::kBFloat16, i + 1));
    inputs[4] = poison();
    const Tensor lse = there(poisoned({1, 1, kTokens}, DType::kFloat32));
    flash_attention_forward(inputs[0], inputs[1], inputs[2], {}, inputs[4], lse, nullptr);
    // Arguments 0 .. 4 are inputs, 5 .. 7 gradients; 8: none is far.
    const auto gradients = [&](int which) {
        Tensor x[5], d[3];
        for (int i = 0; i < 5; ++i)
            x[i] = i == which ? far_apart(GetParam(), inputs[i]) : inputs[i];
        for (int i = 0; i < 3; ++i)
            d[i] = i + 5 == which ? far_apart(GetParam(), poison()) : poison();
        flash_attention_backward(x[0], x[1], x[2], x[4], lse, x[3], {}, d[0], d[1], d[2]);
        return std::vector<Tensor>{on_cpu(d[0]), on_cpu(d[1]), on_cpu(d[2])};
    };
    const std::vector<Tensor> want = gradients(8);
    for (int which = 0; which < 8; ++which) {
        const std::vector<Tensor> got = gradients(which);
        for (std::size_t i = 0; i < want.size(); ++i)
            EXPECT_TRUE(same_bits(got[i], want[i]))
                << "far apart: argument " << which << ", gradient " << i;
    }
}

TEST_P(FarStridesCudaTest, NormAndRotationReachThem) {
    const auto there = [](const Tensor& tensor) { return on(GetParam(), tensor); };
    const Tensor x = there(gaussian(kShape, DType::kBFloat16, 1)),
                 dy = there(gaussian(kShape, DType::kBFloat16, 2));
    const Tensor gain = there(gaussian({1, kDim}, DType::kFloat32, 3));
    RopeConfig config;
    config.rotary_fraction = 0.0;
    const RopeTable rope = make_rope_table(config, kDim, 0, kTokens);
    const auto results = [&](const Tensor& x_in, const Tensor& dy_in, const Tensor& y,
                             const Tensor& dx) {
        const Tensor rstd = there(poisoned({1, kTokens, 1}, DType::kFloat32));
        const Tensor dgain = there(Tensor::zeros({1, kDim}, DType::kFloat32));
        qk_norm_rope_forward(x_in, gain, rope, {}, {}, y, rstd);
        qk_norm_rope_backward(dy_in, x_in, gain, rstd, rope, {}, {}, dx, dgain);
        return std::vector<Tensor>{on_cpu(y), on_cpu(dx), on_cpu(dgain)};
    };
    const auto poison = [&] { return there(poisoned(kShape, DType::kBFloat16)); };
    const std::vector<Tensor> want = results(x, dy, poison(), poison());
    for (int which = 0; which < 4; ++which) {
        const std::vector<Tensor> got = results(
            which == 0 ? far_apart(GetParam(), x) : x, which == 1 ? far_apart(GetParam(), dy) : dy,
            which == 2 ? far_apart(GetParam(), poison()) : poison(),
            which == 3 ? far_apart(GetParam(), poison()) : poison());
        for (std::size_t i = 0; i < want.size(); ++i)
            EXPECT_TRUE(same_bits(got[i], want[i]))
                << "far apart: argument " << which << ", result " << i;
    }
}

}  // namespace
}  // namespace evenkeel
