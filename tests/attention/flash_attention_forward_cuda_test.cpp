// The forward pass of flash attention on a GPU.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attention/flash_attention.h"
#include "tests/attention/flash_forward_runs.h"
#include "tests/support/compare.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::check_flash_forward;
using testing::DataKind;
using testing::FlashCase;
using testing::make_flash_inputs;
using testing::on;

const AttentionMask kCausal{};
const AttentionMask kBidirectional{false, 0, {}};

std::vector<FlashCase> all_cases() {
    if (testing::test_gpus().empty()) return {};
    std::vector<FlashCase> cases = testing::common_flash_cases();
    for (std::int64_t d : {64, 96, 128, 256}) {
        const std::string width = "head_dim_" + std::to_string(d);
        cases.push_back({width, {1, 150, 150, 2, 1, d}, kCausal});
        cases.push_back({width + "_ragged", {1, 70, 201, 1, 1, d}, kBidirectional});
    }
    // Tiles are 128 (or 64) queries by 64 (or 128) keys. Many heads where there are few positions,
    // for errors that are not a matter of luck.
    for (std::int64_t t : {1, 2, 31, 33, 64, 127, 128, 129, 257}) {
        const std::string size = std::to_string(t);
        const std::int64_t b = t > 100 ? 1 : t > 10 ? 2 : 16;
        cases.push_back({"causal_" + size, {b, t, t, 4, 2, 64}, kCausal});
        cases.push_back({"bidirectional_" + size, {b, t, t, 2, 2, 64}, kBidirectional});
        cases.push_back({"narrow_keys_causal_" + size, {b, t, t, 2, 1, 128}, kCausal});
    }
    cases.push_back({"groups_of_three", {2, 70, 70, 6, 2, 96}, kBidirectional});
    cases.push_back({"fewer_queries", {1, 140, 330, 1, 1, 64}, kCausal});
    cases.push_back({"many_more_queries_than_keys", {1, 300, 20, 2, 1, 128}, kCausal});
    cases.push_back({"window_200", {1, 450, 450, 1, 1, 128}, {true, 200, {}}});
    const std::int64_t endless = std::numeric_limits<std::int64_t>::max();
    cases.push_back({"window_endless", {1, 40, 40, 2, 1, 64}, {true, endless, {}}});
    cases.push_back({"window_endless_two_sided", {1, 5, 40, 1, 1, 64}, {false, endless, {}}});
    cases.push_back({"documents_whole_blocks", {1, 450, 450, 1, 1, 128}, {true, 0, {0, 40, 450}}});
    cases.push_back(
        {"documents_bidirectional", {1, 300, 300, 1, 1, 128}, {false, 0, {0, 97, 97, 300}}});
    cases.push_back({"scale_1", {1, 140, 140, 2, 1, 64}, kCausal, 1.0});
    cases.push_back({"small_scale", {1, 140, 140, 2, 1, 64}, kCausal, 1e-3});
    return cases;
}

class FlashForwardCudaTest : public ::testing::TestWithParam<std::tuple<FlashCase, DType>> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FlashForwardCudaTest);

TEST_P(FlashForwardCudaTest, AgreesWithTheReference) {
    const auto& [c, dtype] = GetParam();
    check_flash_forward(make_flash_inputs(c.shape, dtype, DataKind::kGaussian), {c.mask, c.scale});
}

INSTANTIATE_TEST_SUITE_P(Shapes,
                         FlashForwardCudaTest,
                         ::testing::Combine(::testing::ValuesIn(all_cases()),
                                            ::testing::Values(DType::kBFloat16, DType::kFloat16)),
                         [](const auto& info) {
                             return std::get<0>(info.param).name + "_" +
                                    name_of(std::get<1>(info.param));
                         });
INSTANTIATE_TEST_SUITE_P(Fp32,
                         FlashForwardCudaTest,
                         ::testing::Combine(::testing::ValuesIn(testing::fp32_flash_cases()),
                                            ::testing::Values(DType::kFloat32)),
                         [](const auto& info) { return std::get<0>(info.param).name; });

class FlashForwardCudaDataTest
    : public ::testing::TestWithParam<std::tuple<DataKind, DType, Device>> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FlashForwardCudaDataTest);

TEST_P(FlashForwardCudaDataTest, AgreesWithTheReferenceOnDataThatBreaksKernels) {
    const auto& [kind, dtype, device] = GetParam();
    const std::int64_t t = dtype == DType::kFloat32 ? 60 : 290;  // whole tiles and a part
    check_flash_forward(make_flash_inputs({1, t, t, 2, 1, 64}, dtype, kind), {kCausal, 0.0});
    check_flash_forward(make_flash_inputs({1, 65, 130, 4, 4, 128}, dtype, kind),
                        {kBidirectional, 0.0});
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    FlashForwardCudaDataTest,
    ::testing::Combine(::testing::ValuesIn(testing::kAllDataKinds),
                       ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                       ::testing::ValuesIn(testing::test_gpus())),
    [](const auto& info) {
        return name_of(std::get<0>(info.param)) + "_" + name_of(std::get<1>(info.param));
    });

// ---- Softcap and sinks

class FlashForwardCudaMethodTest
    : public ::testing::TestWithParam<std::tuple<testing::FlashMethod, FlashCase, DType>> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FlashForwardCudaMethodTest);

TEST_P(FlashForwardCudaMethodTest, AgreesWithTheReference) {
    const auto& [method, c, dtype] = GetParam();
    check_flash_forward(make_flash_inputs(c.shape, dtype, DataKind::kGaussian),
                        testing::with_method(method, c.mask, c.shape.H));
}

INSTANTIATE_TEST_SUITE_P(Masks,
                         FlashForwardCudaMethodTest,
                         ::testing::Combine(::testing::ValuesIn(testing::flash_methods()),
                                            ::testing::ValuesIn(testing::method_flash_cases()),
                                            ::testing::Values(DType::kBFloat16, DType::kFloat16)),
                         [](const auto& info) { return testing::name_of_method_case(info); });
INSTANTIATE_TEST_SUITE_P(HeadDim,
                         FlashForwardCudaMethodTest,
                         ::testing::Combine(::testing::ValuesIn(testing::wide_flash_methods()),
                                            ::testing::ValuesIn(testing::width_flash_cases()),
                                            ::testing::Values(DType::kBFloat16, DType::kFloat16)),
                         [](const auto& info) { return testing::name_of_method_case(info); });
INSTANTIATE_TEST_SUITE_P(Fp32,
                         FlashForwardCudaMethodTest,
                         ::testing::Combine(::testing::ValuesIn(testing::flash_methods()),
                                            ::testing::ValuesIn(testing::fp32_method_flash_cases()),
                                            ::testing::Values(DType::kFloat32)),
                         [](const auto& info) { return testing::name_of_method_case(info); });

TEST_P(FlashForwardCudaDataTest, AgreesWithTheReferenceBehindSoftcapAndSinks) {
    const auto& [kind, dtype, device] = GetParam();
    const testing::FlashMethod method{"", 20.0, {2.0f, -1.0f}};
    const std::int64_t t = dtype == DType::kFloat32 ? 40 : 150;
    check_flash_forward(make_flash_inputs({1, t, t, 2, 1, 64}, dtype, kind),
                        testing::with_method(method, kCausal, 2));
    check_flash_forward(make_flash_inputs({1, 65, 130, 2, 2, 128}, dtype, kind),
                        testing::with_method(method, kBidirectional, 2));
}

}  // namespace
}  // namespace evenkeel
