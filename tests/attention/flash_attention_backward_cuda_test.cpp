// The backward pass on a GPU. In most tests the output and lse that it gets are the reference's,
// rounded, so that no fault of the forward kernel counts here.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention/flash_attention.h"
#include "tests/attention/flash_attention_cuda_cases.h"
#include "tests/attention/flash_attention_plain.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::DataKind;
using testing::expect_gradients_near_truth;
using testing::FlashCase;
using testing::FlashGradients;
using testing::FlashInputs;
using testing::FlashTruth;
using testing::gaussian;
using testing::make_flash_inputs;
using testing::near;
using testing::on;
using testing::on_cpu;
using testing::poisoned;
using testing::same_bits;
using testing::to_doubles;

const AttentionMask kCausal{};
const AttentionMask kBidirectional{false, 0, {}};

Tensor rounded(const std::vector<double>& values, const Shape& shape, DType dtype) {
    const Tensor x = Tensor::uninitialized(shape, DType::kFloat32);
    for (std::size_t i = 0; i < values.size(); ++i) {
        x.data<float>()[i] = static_cast<float>(values[i]);
    }
    return x.to(dtype);
}

// The results on the CPU. Gradients start as NaN, so that whatever is not written shows.
FlashGradients run_backward(const FlashInputs& in,
                            const Tensor& out,
                            const Tensor& lse,
                            AttentionOptions options) {
    const auto gpu = [](const Tensor& x) { return on(Device::kCuda, x); };
    FlashGradients r{gpu(poisoned(in.q.shape(), in.q.dtype())),
                     gpu(poisoned(in.k.shape(), in.q.dtype())),
                     gpu(poisoned(in.v.shape(), in.q.dtype()))};
    if (options.sink.defined()) {
        options.sink = gpu(options.sink);
        r.dsink = gpu(Tensor::zeros({in.shape.H}, DType::kFloat32));  // added to
    }
    flash_attention_backward(gpu(in.q), gpu(in.k), gpu(in.v), gpu(out), gpu(lse), gpu(in.dout),
                             options, r.dq, r.dk, r.dv, r.dsink);
    return {on_cpu(r.dq), on_cpu(r.dk), on_cpu(r.dv),
            r.dsink.defined() ? on_cpu(r.dsink) : Tensor{}};
}

FlashGradients run_backward(const FlashInputs& in,
                            const FlashTruth& truth,
                            const AttentionOptions& options) {
    const ReferenceShape& s = in.shape;
    return run_backward(in, rounded(truth.forward.out, in.q.shape(), in.q.dtype()),
                        rounded(truth.forward.lse, {s.B, s.H, s.T}, DType::kFloat32), options);
}

FlashGradients run_backward(const FlashInputs& in, const AttentionOptions& options) {
    return run_backward(in, testing::run_flash_reference(in, options), options);
}

void expect_same(const FlashGradients& got, const FlashGradients& want, const std::string& when) {
    EXPECT_TRUE(same_bits(got.dq, want.dq)) << "dq, " << when;
    EXPECT_TRUE(same_bits(got.dk, want.dk)) << "dk, " << when;
    EXPECT_TRUE(same_bits(got.dv, want.dv)) << "dv, " << when;
    if (got.dsink.defined()) EXPECT_TRUE(same_bits(got.dsink, want.dsink)) << "dsink, " << when;
}

void check(const FlashInputs& in, const AttentionOptions& options) {
    const FlashTruth truth = testing::run_flash_reference(in, options);
    expect_gradients_near_truth(run_backward(in, truth, options),
                                testing::run_plain_flash(in, options).gradients, truth);
}

void check(const ReferenceShape& shape, DType dtype, DataKind kind, const AttentionMask& mask) {
    check(make_flash_inputs(shape, dtype, kind), {mask, 0.0});
}

// ---- Against the reference

std::vector<FlashCase> all_cases() {
    if (testing::test_gpus().empty()) return {};
    std::vector<FlashCase> cases = testing::common_flash_cases();
    for (std::int64_t d : {64, 96, 128, 256}) {
        const std::string width = "head_dim_" + std::to_string(d);
        cases.push_back({width, {1, 150, 150, 2, 1, d}, kCausal});
        cases.push_back({width + "_ragged", {1, 70, 141, 1, 1, d}, kBidirectional});
    }
    for (std::int64_t t : {1, 31, 33, 64, 127, 128, 129, 257}) {
        const std::int64_t h = t < 100 ? 4 : 2;
        cases.push_back({"causal_" + std::to_string(t), {1, t, t, h, h / 2, 64}, kCausal});
    }
    for (std::int64_t t : {1, 33, 129, 257}) {
        cases.push_back(
            {"bidirectional_" + std::to_string(t), {1, t, t, 1, 1, 64}, kBidirectional});
    }
    cases.push_back({"groups_of_three", {2, 70, 70, 6, 2, 64}, kBidirectional});
    const std::int64_t endless = std::numeric_limits<std::int64_t>::max();
    cases.push_back({"window_endless", {1, 40, 40, 2, 1, 64}, {false, endless, {}}});
    cases.push_back(
        {"documents_bidirectional", {1, 200, 200, 1, 1, 128}, {false, 0, {0, 97, 200}}});
    return cases;
}

void PrintTo(DType dtype, std::ostream* out) { *out << name_of(dtype); }

class FlashBackwardCudaTest : public ::testing::TestWithParam<std::tuple<FlashCase, DType>> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FlashBackwardCudaTest);

TEST_P(FlashBackwardCudaTest, AgreesWithTheReference) {
    const auto& [c, dtype] = GetParam();
    check(c.shape, dtype, DataKind::kGaussian, c.mask);
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         FlashBackwardCudaTest,
                         ::testing::Combine(::testing::ValuesIn(all_cases()),
                                            ::testing::Values(DType::kBFloat16, DType::kFloat16)),
                         [](const auto& info) {
                             return std::get<0>(info.param).name + "_" +
                                    name_of(std::get<1>(info.param));
                         });
INSTANTIATE_TEST_SUITE_P(Fp32,
                         FlashBackwardCudaTest,
                         ::testing::Combine(::testing::ValuesIn(testing::fp32_flash_cases()),
                                            ::testing::Values(DType::kFloat32)),
                         [](const auto& info) { return std::get<0>(info.param).name; });

std::vector<DataKind> all_kinds() {
    if (testing::test_gpus().empty()) return {};
    return {std::begin(testing::kAllDataKinds), std::end(testing::kAllDataKinds)};
}

class FlashBackwardCudaDataTest : public ::testing::TestWithParam<std::tuple<DataKind, DType>> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FlashBackwardCudaDataTest);

TEST_P(FlashBackwardCudaDataTest, AgreesWithTheReferenceOnDataThatBreaksKernels) {
    const auto& [kind, dtype] = GetParam();
    if (dtype == DType::kFloat32) {
        check({1, 45, 45, 2, 1, 64}, dtype, kind, kCausal);
        check({1, 20, 20, 2, 2, 128}, dtype, kind, kBidirectional);
        return;
    }
    check({1, 150, 150, 4, 2, 64}, dtype, kind, kCausal);
    check({1, 65, 65, 4, 4, 128}, dtype, kind, kBidirectional);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    FlashBackwardCudaDataTest,
    ::testing::Combine(::testing::ValuesIn(all_kinds()),
                       ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16)),
    [](const auto& info) {
        return name_of(std::get<0>(info.param)) + "_" + name_of(std::get<1>(info.param));
    });

// ---- Softcap and sinks

class FlashBackwardCudaMethodTest
    : public ::testing::TestWithParam<std::tuple<testing::FlashMethod, FlashCase, DType>> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FlashBackwardCudaMethodTest);

TEST_P(FlashBackwardCudaMethodTest, AgreesWithTheReference) {
    const auto& [method, c, dtype] = GetParam();
    check(make_flash_inputs(c.shape, dtype, DataKind::kGaussian),
          testing::with_method(method, c.mask, c.shape.H));
}

INSTANTIATE_TEST_SUITE_P(Masks,
                         FlashBackwardCudaMethodTest,
                         ::testing::Combine(::testing::ValuesIn(testing::flash_methods()),
                                            ::testing::ValuesIn(testing::method_flash_cases()),
                                            ::testing::Values(DType::kBFloat16, DType::kFloat16)),
                         [](const auto& info) { return testing::name_of_method_case(info); });
INSTANTIATE_TEST_SUITE_P(HeadDim,
                         FlashBackwardCudaMethodTest,
                         ::testing::Combine(::testing::ValuesIn(testing::wide_flash_methods()),
                                            ::testing::ValuesIn(testing::width_flash_cases()),
                                            ::testing::Values(DType::kBFloat16, DType::kFloat16)),
                         [](const auto& info) { return testing::name_of_method_case(info); });
INSTANTIATE_TEST_SUITE_P(Fp32,
                         FlashBackwardCudaMethodTest,
                         ::testing::Combine(::testing::ValuesIn(testing::flash_methods()),
                                            ::testing::ValuesIn(testing::fp32_method_flash_cases()),
                                            ::testing::Values(DType::kFloat32)),
                         [](const auto& info) { return testing::name_of_method_case(info); });

TEST_P(FlashBackwardCudaDataTest, AgreesWithTheReferenceBehindSoftcapAndSinks) {
    const auto& [kind, dtype] = GetParam();
    const testing::FlashMethod method{"", 20.0, {2.0f, -1.0f}};
    const bool fp32 = dtype == DType::kFloat32;
    const std::int64_t t = fp32 ? 35 : 150, short_t = fp32 ? 20 : 65;
    check(make_flash_inputs({1, t, t, 4, 2, 64}, dtype, kind),
          testing::with_method(method, kCausal, 4));
    check(make_flash_inputs({1, short_t, short_t, 2, 2, 128}, dtype, kind),
          testing::with_method(method, kBidirectional, 2));
}

// ---- Properties

std::vector<DType> all_dtypes() {
    if (testing::test_gpus().empty()) return {};
    return {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
}

class FlashBackwardCudaTypeTest : public ::testing::TestWithParam<DType> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FlashBackwardCudaTypeTest);

INSTANTIATE_TEST_SUITE_P(Types,
                         FlashBackwardCudaTypeTest,
                         ::testing::ValuesIn(all_dtypes()),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(FlashBackwardCudaTypeTest, GivesTheSameBitsTwice) {
    const std::int64_t t = GetParam() == DType::kFloat32 ? 40 : 150;
    const FlashInputs in = make_flash_inputs({2, t, t, 4, 2, 64}, GetParam(), DataKind::kGaussian);
    const FlashTruth truth = testing::run_flash_reference(in, {});
    const FlashGradients once = run_backward(in, truth, {});
    expect_same(run_backward(in, truth, {}), once, "again");
}

TEST_P(FlashBackwardCudaTypeTest, SequenceDoesNotDependOnItsNeighboursInTheBatch) {
    const FlashInputs both =
        make_flash_inputs({2, 90, 90, 2, 1, 64}, GetParam(), DataKind::kGaussian);
    const FlashGradients of_both = run_backward(both, AttentionOptions{});
    const FlashInputs alone{both.q.slice(0, 1, 2),
                            both.k.slice(0, 1, 2),
                            both.v.slice(0, 1, 2),
                            both.dout.slice(0, 1, 2),
                            {1, 90, 90, 2, 1, 64}};
    expect_same(run_backward(alone, AttentionOptions{}),
                {of_both.dq.slice(0, 1, 2), of_both.dk.slice(0, 1, 2), of_both.dv.slice(0, 1, 2)},
                "alone");
}

TEST_P(FlashBackwardCudaTypeTest, ReadsAndWritesSlicesOfPackedTensors) {
    const std::int64_t B = 2, T = 37, H = 4, K = 2, D = 64;
    const Tensor qkv = gaussian({B, T, H + 2 * K, D}, GetParam(), 5);
    const FlashInputs in{qkv.slice(2, 0, H).clone(),
                         qkv.slice(2, H, H + K).clone(),
                         qkv.slice(2, H + K, H + 2 * K).clone(),
                         gaussian({B, T, H, D}, GetParam(), 6),
                         {B, T, T, H, K, D}};
    const FlashTruth truth = testing::run_flash_reference(in, {});
    const FlashGradients want = run_backward(in, truth, {});

    const Tensor packed = on(Device::kCuda, qkv);
    // One head more than there are, which nobody may touch.
    const Tensor gradients = on(Device::kCuda, poisoned({B, T, H + 2 * K + 1, D}, GetParam()));
    flash_attention_backward(
        packed.slice(2, 0, H), packed.slice(2, H, H + K), packed.slice(2, H + K, H + 2 * K),
        on(Device::kCuda, rounded(truth.forward.out, in.q.shape(), GetParam())),
        on(Device::kCuda, rounded(truth.forward.lse, {B, H, T}, DType::kFloat32)),
        on(Device::kCuda, in.dout), {}, gradients.slice(2, 0, H), gradients.slice(2, H, H + K),
        gradients.slice(2, H + K, H + 2 * K));
    const Tensor got = on_cpu(gradients);
    expect_same({got.slice(2, 0, H), got.slice(2, H, H + K), got.slice(2, H + K, H + 2 * K)}, want,
                "packed");
    EXPECT_TRUE(
        same_bits(got.slice(2, H + 2 * K, H + 2 * K + 1), poisoned({B, T, 1, D}, GetParam())))
        << "writes beside its slices";
    EXPECT_TRUE(same_bits(on_cpu(packed), qkv)) << "inputs must stay as they are";
}

TEST_P(FlashBackwardCudaTypeTest, AcceptsEmptyTensors) {
    for (const ReferenceShape& s :
         {ReferenceShape{0, 5, 5, 2, 1, 64}, ReferenceShape{2, 0, 0, 2, 1, 64}}) {
        run_backward(make_flash_inputs(s, GetParam(), DataKind::kZero), AttentionOptions{});
    }
    // Queries without a single key, and keys without a query.
    const FlashGradients no_keys = run_backward(
        make_flash_inputs({1, 3, 0, 2, 1, 64}, GetParam(), DataKind::kZero), AttentionOptions{});
    EXPECT_TRUE(near(no_keys.dq, std::vector<double>(384, 0.0), 0.0, 0.0));
    const FlashGradients no_queries = run_backward(
        make_flash_inputs({1, 0, 3, 2, 1, 64}, GetParam(), DataKind::kZero), AttentionOptions{});
    EXPECT_TRUE(near(no_queries.dk, std::vector<double>(192, 0.0), 0.0, 0.0));
    EXPECT_TRUE(near(no_queries.dv, std::vector<double>(192, 0.0), 0.0, 0.0));
}

TEST_P(FlashBackwardCudaTypeTest, RowsAndKeysThatNobodySeesGetNothing) {
    // Queries 0 .. 9 stand before the first key.
    const FlashGradients rows =
        run_backward(make_flash_inputs({1, 12, 2, 1, 1, 64}, GetParam(), DataKind::kGaussian),
                     AttentionOptions{});
    EXPECT_TRUE(near(rows.dq.slice(1, 0, 10), std::vector<double>(640, 0.0), 0.0, 0.0));
    // Keys 0 .. 184 lie behind every window.
    const FlashGradients keys =
        run_backward(make_flash_inputs({1, 5, 200, 1, 1, 64}, GetParam(), DataKind::kGaussian),
                     AttentionOptions{{true, 11, {}}, 0.0});
    EXPECT_TRUE(near(keys.dk.slice(1, 0, 185), std::vector<double>(185 * 64, 0.0), 0.0, 0.0));
    EXPECT_TRUE(near(keys.dv.slice(1, 0, 185), std::vector<double>(185 * 64, 0.0), 0.0, 0.0));
}

// Logits of 1e4 and more: an fp32 lse of 3e4 is off by up to 1e-3, and every probability with it.
TEST_P(FlashBackwardCudaTypeTest, StaysExactWhereLogitsAreHuge) {
    const ReferenceShape s{1, 100, 100, 2, 1, 64};
    FlashInputs in = make_flash_inputs(s, GetParam(), DataKind::kGaussian);
    // One channel that adds 256 * 1024 / 8 = 32768 to every logit.
    for (const auto& [x, value] : {std::pair{in.q, 256.0f}, std::pair{in.k, 1024.0f}}) {
        const Tensor wide = x.to(DType::kFloat32);
        for (std::int64_t i = 0; i < wide.numel(); i += 64) wide.data<float>()[i] = value;
        x.copy_from(wide);
    }
    check(in, AttentionOptions{});
    // Only some rows: the others keep what they have from lse, to the bit.
    const Tensor q = in.q.to(DType::kFloat32);
    for (std::int64_t i = 0; i < q.numel(); i += 128) q.data<float>()[i] = 0.0f;  // head 0
    in.q.copy_from(q);
    check(in, AttentionOptions{});
}

// Padded keys have a score of 0: with an lse far below that, e^(0 - lse) is infinite.
TEST_P(FlashBackwardCudaTypeTest, PaddedKeysDoNotCountWhereLogitsAreFarBelowZero) {
    FlashInputs in = make_flash_inputs({1, 37, 37, 2, 2, 64}, GetParam(), DataKind::kGaussian);
    for (const auto& [x, value] : {std::pair{in.q, 32.0f}, std::pair{in.k, -32.0f}}) {
        const Tensor wide = x.to(DType::kFloat32);
        for (std::int64_t i = 0; i < wide.numel(); i += 64) wide.data<float>()[i] = value;
        x.copy_from(wide);
    }
    check(in, {kBidirectional, 0.0});
    check(in, AttentionOptions{});
}

TEST_P(FlashBackwardCudaTypeTest, AgreesWithTheReferenceBehindTheForwardKernel) {
    for (DataKind kind : {DataKind::kGaussian, DataKind::kMassiveActivations}) {
        const std::int64_t t = GetParam() == DType::kFloat32 ? 36 : 140;
        const FlashInputs in = make_flash_inputs({1, t, t, 4, 2, 128}, GetParam(), kind);
        const auto gpu = [](const Tensor& x) { return on(Device::kCuda, x); };
        const Tensor out = gpu(poisoned(in.q.shape(), GetParam()));
        const Tensor lse = gpu(poisoned({1, 4, t}, DType::kFloat32));
        flash_attention_forward(gpu(in.q), gpu(in.k), gpu(in.v), {}, out, lse, nullptr);
        expect_gradients_near_truth(run_backward(in, out, lse, {}),
                                    testing::run_plain_flash(in, {}).gradients,
                                    testing::run_flash_reference(in, {}));
    }
}

TEST_P(FlashBackwardCudaTypeTest, RejectsGradientsThatItCannotWrite) {
    const Tensor q = Tensor::zeros({1, 4, 2, 64}, GetParam(), Device::kCuda);
    const Tensor lse = Tensor::zeros({1, 2, 4}, DType::kFloat32, Device::kCuda);
    const auto message = [&](const Tensor& dq, const Tensor& dk) -> std::string {
        try {
            flash_attention_backward(q, q, q, q, lse, q, {}, dq, dk, q.clone());
        } catch (const Error& error) {
            return error.what();
        }
        return "no error";
    };
    EXPECT_EQ(message(q.clone(), q.clone()), "no error");
    const std::string on_host = message(q.clone(), on_cpu(q));
    EXPECT_NE(on_host.find("dk: got device cpu, want cuda"), std::string::npos) << on_host;
    const Tensor wide = Tensor::zeros({1, 4, 2, 72}, GetParam(), Device::kCuda);
    const std::string misaligned = message(wide.slice(3, 1, 65), q.clone());
    EXPECT_NE(misaligned.find("dq: got an address"), std::string::npos) << misaligned;
}

TEST_P(FlashBackwardCudaTypeTest, AddsToTheGradientOfTheSink) {
    const FlashInputs in =
        make_flash_inputs({2, 70, 70, 4, 2, 64}, GetParam(), DataKind::kGaussian);
    AttentionOptions options = testing::with_method({"", 0.0, {0.5f, -1.0f}}, kCausal, 4);
    const FlashTruth truth = testing::run_flash_reference(in, options);
    const FlashGradients want = run_backward(in, truth, options);
    const auto gpu = [](const Tensor& x) { return on(Device::kCuda, x); };
    const Tensor out = gpu(rounded(truth.forward.out, in.q.shape(), in.q.dtype()));
    const Tensor lse = gpu(rounded(truth.forward.lse, {2, 4, 70}, DType::kFloat32));
    options.sink = gpu(options.sink);
    const Tensor dq = gpu(in.q), dk = gpu(in.k), dv = gpu(in.v);
    const Tensor dsink = gpu(Tensor::full({4}, 8.0f, DType::kFloat32));
    flash_attention_backward(gpu(in.q), gpu(in.k), gpu(in.v), out, lse, gpu(in.dout), options, dq,
                             dk, dv, dsink);
    std::vector<double> sum = to_doubles(want.dsink);
    for (double& x : sum) x += 8.0;
    EXPECT_TRUE(near(dsink, sum, 1e-6, 0.0));
    // Without it the other gradients are the same.
    flash_attention_backward(gpu(in.q), gpu(in.k), gpu(in.v), out, lse, gpu(in.dout), options, dq,
                             dk, dv);
    expect_same({on_cpu(dq), on_cpu(dk), on_cpu(dv)}, want, "without the sink's gradient");
}

TEST_P(FlashBackwardCudaTypeTest, TakesAnySoftmaxScale) {
    const FlashInputs in =
        make_flash_inputs({1, 70, 70, 2, 1, 64}, GetParam(), DataKind::kGaussian);
    check(in, {kCausal, 0.01});
    check(in, {kCausal, 1.5});
}

}  // namespace
}  // namespace evenkeel
