// What QK-norm and RoPE say about arguments that they cannot take.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "attention/qk_norm_rope.h"
#include "tests/attention/qk_norm_rope_device.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::on;
using testing::poisoned;

constexpr DType kFp32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBFloat16;
constexpr DType kFp16 = DType::kFloat16;

template <typename F>
std::string error_of(F&& call) {
    try {
        call();
    } catch (const Error& error) {
        return error.what();
    }
    return "no error";
}

TEST(QkNormRopeChecks, RejectWhatItCannotDo) {
    const RopeTable table = make_rope_table({}, 64, 0, 4);
    const Tensor x = gaussian({1, 4, 2, 64}, kFp32, 1), y = poisoned(x.shape(), kFp32);
    const Tensor rstd = Tensor::zeros({1, 4, 2}, kFp32), gain = gaussian({2, 64}, kFp32, 2);
    RopeConfig no_rotation;
    no_rotation.rotary_fraction = 0.0;
    for (const std::int64_t dim : {1, 24, 48, 65, 512}) {
        const Shape shape{1, 4, 2, dim};
        EXPECT_NE(error_of([&] {
                      qk_norm_rope_forward(gaussian(shape, kFp32, 1), {},
                                           make_rope_table(no_rotation, dim, 0, 4), {}, {},
                                           poisoned(shape, kFp32), rstd);
                  }).find(concat("got ", dim, ", want one of 32, 64, 80, 96, 128, 192, 256")),
                  std::string::npos);
    }
    // The type of the result is the type of the input, whatever the gain's.
    EXPECT_NE(error_of([&] {
                  qk_norm_rope_forward(x, gain, table, {}, {}, poisoned(x.shape(), kBf16), rstd);
              }).find("y: got bf16, want fp32"),
              std::string::npos);
    EXPECT_NE(error_of([&] { qk_norm_rope_forward(x, gain, table, {}, {}, x, rstd); }).find("y: "),
              std::string::npos);
    EXPECT_NE(error_of([&] {
                  qk_norm_rope_forward(x, gaussian({3, 64}, kFp32, 2), table, {}, {}, y, rstd);
              }).find("gain: got shape [3, 64], want [2, 64]"),
              std::string::npos);
    QkNormRopeOptions plain;
    plain.norm = QkNormKind::kNone;
    EXPECT_NE(error_of([&] {
                  qk_norm_rope_forward(x, gain, table, {}, plain, y, rstd);
              }).find("gain: got one without norm"),
              std::string::npos);
    EXPECT_NE(error_of([&] {
                  qk_norm_rope_backward(x, x, gain, rstd, table, {}, {}, y, {});
              }).find("dgain: got none for a gain"),
              std::string::npos);
    EXPECT_NE(error_of([&] {
                  qk_norm_rope_forward(x, gain, make_rope_table({}, 128, 0, 4), {}, {}, y, rstd);
              }).find("rotary_dim: got 128"),
              std::string::npos);
}

TEST(QkNormRopeChecks, NumbersThatAreNotFiniteAreRefused) {
    const RopeTable table = make_rope_table({}, 64, 0, 4);
    const Tensor x = gaussian({1, 4, 2, 64}, kFp32, 1), y = poisoned(x.shape(), kFp32);
    const Tensor rstd = Tensor::zeros({1, 4, 2}, kFp32), gain = gaussian({2, 64}, kFp32, 2);
    const auto expect = [&](const QkNormRopeOptions& options, const std::string& part) {
        const std::string forward =
            error_of([&] { qk_norm_rope_forward(x, gain, table, {}, options, y, rstd); });
        EXPECT_NE(forward.find(part), std::string::npos) << forward;
        const std::string backward = error_of(
            [&] { qk_norm_rope_backward(x, x, gain, rstd, table, {}, options, y, gain.clone()); });
        EXPECT_NE(backward.find(part), std::string::npos) << backward;
    };
    for (const double bad : {double(NAN), double(INFINITY), -1e-6}) {
        QkNormRopeOptions options;
        options.eps = bad;
        expect(options, concat("eps: got ", bad));
    }
    for (const double bad : {double(NAN), double(INFINITY), -double(INFINITY)}) {
        QkNormRopeOptions options;
        options.gain_offset = bad;
        expect(options, concat("gain_offset: got ", bad));
    }
}

TEST(QkNormRopeChecks, ResultsHaveMemoryOfTheirOwn) {
    const RopeTable table = make_rope_table({}, 64, 0, 4);
    const Tensor packed = gaussian({1, 5, 4, 64}, kFp32, 1);
    const auto rows = [&](std::int64_t token, std::int64_t head) {
        return packed.slice(1, token, token + 4).slice(2, head, head + 1);
    };
    const Tensor apart = gaussian({1, 4, 1, 64}, kFp32, 2),
                 rstd = Tensor::full({1, 4, 1}, 1, kFp32);
    QkNormRopeOptions plain;
    plain.norm = QkNormKind::kNone;
    const auto forward = [&](const Tensor& x, const Tensor& y, const QkNormRopeOptions& options) {
        return error_of([&] { qk_norm_rope_forward(x, {}, table, {}, options, y, rstd); });
    };
    EXPECT_EQ(forward(rows(0, 0), rows(0, 1), {}), "no error");
    EXPECT_EQ(forward(rows(0, 0), rows(0, 0), plain), "no error");
    for (const QkNormRopeOptions& options : {QkNormRopeOptions(), plain}) {
        EXPECT_EQ(forward(rows(0, 0), rows(1, 0), options),
                  "[qk_norm_rope_forward] y: got a part of the memory of x, want other memory");
    }
    const auto backward = [&](const Tensor& dy, const Tensor& x, const Tensor& dx) {
        return error_of([&] { qk_norm_rope_backward(dy, x, {}, rstd, table, {}, {}, dx, {}); });
    };
    EXPECT_EQ(backward(rows(0, 0), apart, rows(0, 0)), "no error");
    EXPECT_EQ(backward(rows(0, 0), apart, rows(1, 0)),
              "[qk_norm_rope_backward] dx: got a part of the memory of dy, want other memory");
    EXPECT_EQ(backward(apart, rows(1, 0), rows(0, 0)),
              "[qk_norm_rope_backward] dx: got a part of the memory of x, want other memory");

    const auto both = [&](const Tensor& first, const Tensor& second) {
        const QkNormRopePart parts[] = {{rows(0, 0), {}, first, rstd},
                                        {rows(0, 1), {}, second, rstd.clone()}};
        return error_of([&] { qk_norm_rope_forward(parts, table, {}, {}); });
    };
    EXPECT_EQ(both(rows(0, 2), rows(0, 3)), "no error");
    for (const Tensor& second : {rows(0, 0), rows(0, 2)}) {
        EXPECT_NE(both(rows(0, 2), second).find("got memory of "), std::string::npos);
    }
    const auto both_back = [&](const Tensor& first, const Tensor& second) {
        const QkNormRopeGradientPart parts[] = {{rows(0, 0), apart, {}, rstd, first, {}},
                                                {rows(0, 1), apart.clone(), {}, rstd, second, {}}};
        return error_of([&] { qk_norm_rope_backward(parts, table, {}, {}); });
    };
    EXPECT_EQ(both_back(rows(0, 0), rows(0, 1)), "no error");
    for (const Tensor& second : {rows(0, 0), rows(0, 2), apart}) {
        EXPECT_NE(both_back(rows(0, 2), second).find("got memory of "), std::string::npos);
    }
}

TEST(QkNormRopeChecks, PartsOfOneCallGoTogether) {
    const RopeTable table = make_rope_table({}, 64, 0, 4);
    const auto part = [](const Shape& shape, DType dtype) {
        return QkNormRopePart{gaussian(shape, dtype, 1),
                              {},
                              poisoned(shape, dtype),
                              Tensor::zeros({shape[0], shape[1], shape[2]}, kFp32)};
    };
    const auto error_with = [&](const QkNormRopePart& second) {
        const QkNormRopePart parts[] = {part({1, 4, 2, 64}, kFp32), second};
        return error_of([&] { qk_norm_rope_forward(parts, table, {}, {}); });
    };
    EXPECT_EQ(error_with(part({1, 4, 1, 64}, kFp32)), "no error");
    EXPECT_NE(
        error_with(part({1, 3, 1, 64}, kFp32))
            .find("x of part 1: got [1, 3, 1, 64], want the tokens and width of [1, 4, 2, 64]"),
        std::string::npos);
    EXPECT_NE(error_with(part({1, 4, 1, 64}, kBf16)).find("x of part 1: got bf16, want fp32"),
              std::string::npos);
    QkNormRopePart other = part({1, 4, 1, 64}, kFp32);
    other.y = poisoned({1, 4, 1, 64}, kBf16);
    EXPECT_NE(error_with(other).find("y of part 1: got bf16, want fp32"), std::string::npos);
    EXPECT_NE(error_of([&] {
                  qk_norm_rope_forward(std::span<const QkNormRopePart>(), table, {}, {});
              }).find("parts: got 0, want 1 or 2"),
              std::string::npos);
}

TEST(QkNormRopeChecks, TypesDependOnTheDevice) {
    const RopeTable table = make_rope_table({}, 64, 0, 4);
    const Shape shape{1, 4, 2, 64};
    EXPECT_NE(error_of([&] {
                  qk_norm_rope_forward(gaussian(shape, kFp16, 1), {}, table, {}, {},
                                       poisoned(shape, kFp16), Tensor::zeros({1, 4, 2}, kFp32));
              }).find("x: got fp16, want fp32 or bf16 on cpu"),
              std::string::npos);
}

// Every message that only tensors on CUDA can give.
class QkNormRopeCudaChecks : public ::testing::TestWithParam<Device> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(QkNormRopeCudaChecks);
INSTANTIATE_TEST_SUITE_P(,
                         QkNormRopeCudaChecks,
                         ::testing::ValuesIn(testing::test_gpus()),
                         testing::device_name);

TEST_P(QkNormRopeCudaChecks, NameTheTensorAndWhatIsWanted) {
    const Device cuda = GetParam();
    const Shape shape{2, 4, 2, 64};
    const RopeTable table = on(cuda, make_rope_table({}, 64, 0, 4));
    const Tensor x = on(cuda, gaussian(shape, kBf16, 1)), y = on(cuda, poisoned(shape, kBf16));
    const Tensor rstd = on(cuda, Tensor::zeros({2, 4, 2}, kFp32));
    const auto expect_error = [&](const std::string& want, const Tensor& bad_x, const Tensor& gain,
                                  const RopeTable& bad_table, const Tensor& positions,
                                  const Tensor& bad_y, const Tensor& bad_rstd) {
        const std::string got = error_of(
            [&] { qk_norm_rope_forward(bad_x, gain, bad_table, positions, {}, bad_y, bad_rstd); });
        EXPECT_NE(got.find(want), std::string::npos) << "got " << got << ", want " << want;
    };
    const Tensor integers = Tensor::zeros(shape, DType::kInt32, cuda);
    expect_error("x: got int32, want fp32, bf16 or fp16 on cuda", integers, {}, table, {}, y, rstd);
    const Tensor narrow = on(cuda, gaussian({2, 4, 2, 80}, kBf16, 1));
    expect_error("head width: got 80, want one of 64, 96, 128, 256", narrow, {}, table, {}, narrow,
                 rstd);
    expect_error("y: got cpu, want cuda", x, {}, table, {}, poisoned(shape, kBf16), rstd);
    expect_error("rstd: got cpu, want cuda", x, {}, table, {}, y, Tensor::zeros({2, 4, 2}, kFp32));
    expect_error("gain: got cpu, want cuda", x, gaussian({64}, kFp32, 1), table, {}, y, rstd);
    expect_error("cos: got cpu, want cuda", x, {}, make_rope_table({}, 64, 0, 4), {}, y, rstd);
    expect_error("positions: got cpu, want cuda", x, {}, table,
                 Tensor::uninitialized({2, 4}, DType::kInt32), y, rstd);

    // 130 channels a token: neighbours stand 4 bytes off a multiple of 16.
    const auto sliced = [&](std::int64_t width, std::int64_t begin) {
        return on(cuda, gaussian({2, 4, width}, kBf16, 1)).slice(2, begin, begin + 128).view(shape);
    };
    expect_error("x: got stride 130 between tokens, want a multiple of 8", sliced(130, 0), {},
                 table, {}, y, rstd);
    expect_error("y: got an address 2 bytes past a multiple of 16, want a multiple of 16", x, {},
                 table, {}, sliced(136, 1), rstd);
    expect_error("no error", sliced(136, 8), {}, table, {}, sliced(144, 16), rstd);
}

// The host does not read positions there: a row beyond the table shows as NaN, and nothing is read out of bounds.
TEST_P(QkNormRopeCudaChecks, RowsBeyondTheTableBecomeNan) {
    for (const double fraction : {1.0, 0.5, 0.3125}) {  // 20 of 64 channels: the slow path
        testing::JointCase c;
        c.tokens = 5;
        c.heads[0] = 2;
        c.rope.rotary_fraction = fraction;
        c.first = 10;
        c.positions = {10, 9, 14, 15, -2'000'000'000};
        const Tensor x = gaussian({1, 5, c.width()}, kBf16, 1);
        const Tensor dy = gaussian({1, 5, c.width()}, kBf16, 2);
        const testing::JointResult got = testing::run_joint(GetParam(), c, x, dy);
        for (const Tensor& result : {got.y, got.dx}) {
            for (int i = 0; i < 2; ++i) {
                const Tensor rows = c.part(result, i);
                for (std::int64_t t = 0; t < 5; ++t) {
                    const bool inside = t == 0 || t == 2;
                    for (const double value : testing::to_doubles(rows.slice(1, t, t + 1))) {
                        EXPECT_EQ(std::isnan(value), !inside) << "token " << t;
                    }
                }
            }
        }
    }
}

}  // namespace
}  // namespace evenkeel
