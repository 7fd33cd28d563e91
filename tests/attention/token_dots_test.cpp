#include "attention/token_dots.h"

#include <cmath>
#include <string>

#include "tests/attention/qk_norm_rope_device.h"
#include "tests/support/compare.h"

namespace evenkeel::testing {
namespace {

constexpr DType kFp32 = DType::kFloat32;

// Of each token, and the sum of magnitudes, which bounds the rounding.
struct Dots {
    std::vector<double> sum, magnitude;
};
Dots dots(const Tensor& x, const Tensor& y) {
    const std::vector<double> a = to_doubles(x), b = to_doubles(y);
    const auto tokens = static_cast<std::size_t>(x.size(0) * x.size(1));
    Dots result{std::vector<double>(tokens), std::vector<double>(tokens)};
    for (std::size_t i = 0; i < a.size(); ++i) {
        result.sum[i / (a.size() / tokens)] += a[i] * b[i];
        result.magnitude[i / (a.size() / tokens)] += std::abs(a[i] * b[i]);
    }
    return result;
}

class TokenDots : public ::testing::TestWithParam<DeviceType> {
  protected:
    Device device() const { return GetParam().device; }
    DType dtype() const { return GetParam().dtype; }
    void expect_right(const Tensor& x, const Tensor& y) {
        const Tensor out = on(device(), poisoned({x.size(0), x.size(1)}, kFp32));
        token_dots(x, y, out);
        const Dots want = dots(on_cpu(x), on_cpu(y));
        const std::vector<double> got = to_doubles(on_cpu(out));
        for (std::size_t i = 0; i < got.size(); ++i) {
            EXPECT_NEAR(got[i], want.sum[i], 1e-6 * want.magnitude[i]) << "token " << i;
        }
    }
};

INSTANTIATE_TEST_SUITE_P(,
                         TokenDots,
                         ::testing::ValuesIn([] {
                             std::vector<DeviceType> types = device_types();
                             types.push_back({Device::kCpu, kFp32});
                             return types;
                         }()),
                         device_type_name);

TEST_P(TokenDots, SumsAsWorkedOutByHand) {
    // Two heads whose channels are 3 and 0.5, 1 and -2 in the other: D (3 * 1 - 0.5 * 2) = 2 D.
    const Tensor x = Tensor::uninitialized({1, 1, 2, 64}, kFp32), y = x.clone();
    for (std::int64_t i = 0; i < 128; ++i) {
        x.data<float>()[i] = i < 64 ? 3.0f : 0.5f;
        y.data<float>()[i] = i < 64 ? 1.0f : -2.0f;
    }
    const Tensor out = on(device(), poisoned({1, 1}, kFp32));
    token_dots(on(device(), x.to(dtype())), on(device(), y.to(dtype())), out);
    EXPECT_TRUE(near(on_cpu(out), {128.0}, 0.0, 0.0));
}

TEST_P(TokenDots, MatchesDoubleOnAllDataAndSizes) {
    for (const DataKind kind : kAllDataKinds) {
        for (const Shape& shape : {Shape{2, 5, 3, 64}, Shape{1, 3, 1, 96}, Shape{1, 2, 33, 128}}) {
            SCOPED_TRACE(concat(name_of(kind), " ", to_string(shape)));
            const Tensor x = on(device(), make_data(kind, shape, dtype(), 1));
            expect_right(x, on(device(), make_data(kind, shape, dtype(), 2)));
            expect_right(x, x);
        }
    }
}

TEST_P(TokenDots, ReadsSlicesOfPackedRowsWhereTheyLie) {
    const Tensor packed = on(device(), gaussian({2, 7, 6, 64}, dtype(), 1));
    const Tensor other = on(device(), gaussian({2, 9, 5, 64}, dtype(), 2));
    expect_right(packed.slice(2, 1, 4), other.slice(1, 2, 9).slice(2, 2, 5));
}

TEST_P(TokenDots, WhatIsWrongIsSaidInOneSentence) {
    const auto message = [](const auto& call) -> std::string {
        try {
            call();
        } catch (const Error& error) {
            return error.what();
        }
        return "no error";
    };
    const Tensor x = on(device(), gaussian({2, 3, 2, 64}, dtype(), 1));
    const Tensor out = on(device(), poisoned({2, 3}, kFp32));
    EXPECT_NE(message([&] { token_dots(x, x.slice(2, 0, 1), out); }).find("y"), std::string::npos);
    EXPECT_NE(message([&] { token_dots(x, x, out.view({6})); }).find("out"), std::string::npos);
    EXPECT_NE(message([&] { token_dots(out, out, out); }).find("want [B, T, N, D]"),
              std::string::npos);
    const Tensor nothing = x.slice(0, 0, 0);  // is no work
    token_dots(nothing, nothing, out.slice(0, 0, 0));
}

}  // namespace
}  // namespace evenkeel::testing
