#include "framework/gemm.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <tuple>

#include "framework/convert.h"
#include "framework/gemm_cpu.h"
#include "framework/isa.h"
#include "framework/stream.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using cpu::Bf16Path;
using testing::gaussian;
using testing::near;
using testing::on;
using testing::same_bits;
using testing::to_doubles;

// Restores the CPU's automatic choice of arithmetic and the number of threads.
template <typename Base>
class GemmFixture : public Base {
  protected:
    void TearDown() override {
        cpu::set_bf16_path(Bf16Path::kAutomatic);
        omp_set_num_threads(threads_);
    }
    int threads_ = omp_get_max_threads();
};
class GemmCpuTest : public GemmFixture<::testing::Test> {};
class GemmTest : public GemmFixture<::testing::TestWithParam<Device>> {
  protected:
    Device device() const { return GetParam(); }
};

struct Case {
    std::int64_t m, n, k;
    GemmOptions options;
    DType inputs = DType::kFloat32;
    DType output = DType::kFloat32;
    Bf16Path path = Bf16Path::kAutomatic;
    std::int64_t padding = 0;  // extra row stride of every operand
    std::int64_t offset = 0;   // columns of the padding that lie before the matrix
    bool skipped() const { return options.accumulate && output != DType::kFloat32; }
};

std::string describe(const Case& c) {
    return concat("M", c.m, " N", c.n, " K", c.k, c.options.transpose_a ? " a^T" : "",
                  c.options.transpose_b ? " b^T" : "", c.options.accumulate ? " +=" : "", " ",
                  name_of(c.inputs), " -> ", name_of(c.output), " path ", static_cast<int>(c.path),
                  " padding ", c.padding, " offset ", c.offset);
}

// A matrix of columns in a wider one, on the device.
Tensor within(const Case& c, const Tensor& whole, Device device) {
    return on(device, whole).slice(1, c.offset, c.offset + whole.size(1) - c.padding);
}
Tensor data(const Case& c,
            std::int64_t rows,
            std::int64_t columns,
            DType type,
            std::uint64_t seed,
            Device device) {
    return within(c, gaussian({rows, columns + c.padding}, type, seed), device);
}

void expect_matches_double(const Case& c, Device device) {
    const GemmOptions& o = c.options;
    const Tensor a =
        data(c, o.transpose_a ? c.k : c.m, o.transpose_a ? c.m : c.k, c.inputs, 1, device);
    const Tensor b =
        data(c, o.transpose_b ? c.n : c.k, o.transpose_b ? c.k : c.n, c.inputs, 2, device);
    const Tensor result =
        o.accumulate ? data(c, c.m, c.n, c.output, 3, device)
                     : within(c, testing::poisoned({c.m, c.n + c.padding}, c.output), device);
    const auto va = to_doubles(a), vb = to_doubles(b);
    auto want = o.accumulate ? to_doubles(result) : std::vector<double>(c.m * c.n, 0.0);
    for (std::int64_t i = 0; i < c.m; ++i) {
        for (std::int64_t j = 0; j < c.n; ++j) {
            for (std::int64_t p = 0; p < c.k; ++p) {
                want[i * c.n + j] += va[o.transpose_a ? p * c.m + i : i * c.k + p] *
                                     vb[o.transpose_b ? j * c.k + p : p * c.n + j];
            }
        }
    }
    cpu::set_bf16_path(c.path);
    gemm(a, b, result, o);
    const double unit = c.output == DType::kFloat32 ? 2e-6 : 1.0 / 256;
    const double round_off = 2e-6 * std::sqrt(static_cast<double>(c.k) + 1);
    EXPECT_TRUE(near(result, want, unit, round_off)) << describe(c);
}

// The ways in which the device multiplies bf16.
std::vector<Bf16Path> paths_on(Device device) {
    if (device == Device::kCuda) return {Bf16Path::kAutomatic};
    return {Bf16Path::kWiden, Bf16Path::kNative};
}

TEST_P(GemmTest, MatchesDoubleForEveryTypeAndTranspose) {
    for (const auto& [m, n, k] :
         {std::tuple{1, 1, 1}, {1, 300, 64}, {33, 31, 257}, {257, 129, 40}}) {
        for (int bits = 0; bits < 8; ++bits) {
            const GemmOptions options{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
            for (DType output : {DType::kFloat32, DType::kBFloat16}) {
                for (std::int64_t padding : {0, 3}) {
                    Case c{m,      n, k, options, DType::kFloat32, output, Bf16Path::kAutomatic,
                           padding};
                    if (c.skipped()) continue;
                    expect_matches_double(c, device());
                    c.inputs = DType::kBFloat16;
                    for (Bf16Path path : paths_on(device())) {
                        c.path = path;
                        expect_matches_double(c, device());
                    }
                }
            }
        }
    }
}

TEST_P(GemmTest, TilesOfAllSizesMatchDouble) {
    for (const auto& [m, n, k] : {std::tuple{700, 1100, 9}, {5, 2050, 17}, {2050, 5, 17}}) {
        expect_matches_double({m, n, k, {}, DType::kFloat32, DType::kFloat32}, device());
        expect_matches_double({m, n, k, {true, true, true}, DType::kBFloat16, DType::kFloat32},
                              device());
    }
}

TEST_P(GemmTest, OperandsOfAnyAlignmentMatchDouble) {
    for (const std::int64_t offset : {1, 2, 4, 8}) {
        for (int bits = 0; bits < 4; ++bits) {
            Case c{40, 24, 56, {(bits & 1) != 0, (bits & 2) != 0, true}, DType::kBFloat16};
            c.padding = 8;
            c.offset = offset;
            expect_matches_double(c, device());
            c.inputs = DType::kFloat32;
            expect_matches_double(c, device());
        }
    }
}

TEST_P(GemmTest, RepeatsItsBits) {
    for (const DType type : {DType::kFloat32, DType::kBFloat16}) {
        const Tensor a = on(device(), gaussian({130, 70}, type, 1));
        const Tensor b = on(device(), gaussian({70, 90}, type, 2));
        const Tensor first = Tensor::zeros({130, 90}, type, device());
        const Tensor again = Tensor::zeros({130, 90}, type, device());
        gemm(a, b, first);
        gemm(a.slice(0, 0, 65), b, again.slice(0, 0, 65));
        gemm(a, b, again);
        EXPECT_TRUE(same_bits(again, first)) << name_of(type);
    }
}

// A plain implementation: fp32 sums in order, rounded once.
Tensor plain_product(const Tensor& a, const Tensor& b, DType dtype) {
    const auto va = to_doubles(a), vb = to_doubles(b);
    const std::int64_t m = a.size(0), k = a.size(1), n = b.size(1);
    const Tensor result = Tensor::uninitialized({m, n}, DType::kFloat32);
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t j = 0; j < n; ++j) {
            float sum = 0.0f;
            for (std::int64_t p = 0; p < k; ++p) {
                sum += static_cast<float>(va[i * k + p]) * static_cast<float>(vb[p * n + j]);
            }
            result.data<float>()[i * n + j] = sum;
        }
    }
    return result.to(dtype);
}

std::vector<double> double_product(const Tensor& a, const Tensor& b) {
    const auto va = to_doubles(a), vb = to_doubles(b);
    const std::int64_t m = a.size(0), k = a.size(1), n = b.size(1);
    std::vector<double> result(m * n, 0.0);
    for (std::int64_t i = 0; i < m; ++i) {
        for (std::int64_t p = 0; p < k; ++p) {
            for (std::int64_t j = 0; j < n; ++j) result[i * n + j] += va[i * k + p] * vb[p * n + j];
        }
    }
    return result;
}

TEST_P(GemmTest, ErrsLittleMoreThanAPlainProductOnAllKindsOfData) {
    for (const testing::DataKind kind : testing::kAllDataKinds) {
        for (const DType inputs : {DType::kFloat32, DType::kBFloat16}) {
            const Tensor a = testing::make_data(kind, {33, 300}, inputs, 1);
            const Tensor b = testing::make_data(kind, {300, 47}, inputs, 2);
            const auto want = double_product(a, b);
            for (const DType output : {DType::kFloat32, DType::kBFloat16}) {
                const Tensor c = on(device(), testing::poisoned({33, 47}, output));
                gemm(on(device(), a), on(device(), b), c);
                EXPECT_TRUE(
                    testing::within_error_of_plain(c, plain_product(a, b, output), want, 2.0))
                    << name_of(kind) << ", " << name_of(inputs) << " -> " << name_of(output);
            }
        }
    }
}

TEST_P(GemmTest, PaddingBetweenRowsIsLeftAlone) {
    const Tensor whole = Tensor::full({9, 20}, 5.0f, DType::kFloat32, device());
    gemm(on(device(), gaussian({9, 4}, DType::kFloat32, 1)),
         on(device(), gaussian({4, 13}, DType::kFloat32, 2)), whole.slice(1, 0, 13));
    EXPECT_TRUE(same_bits(whole.slice(1, 13, 20), Tensor::full({9, 7}, 5.0f, DType::kFloat32)));
}

TEST_P(GemmTest, EmptyInnerDimensionGivesZerosOrKeepsTheSum) {
    const Tensor a = Tensor::zeros({3, 0}, DType::kBFloat16, device()),
                 b = Tensor::zeros({0, 2}, DType::kBFloat16, device());
    const Tensor c = Tensor::full({3, 2}, 7.0f, DType::kFloat32, device());
    gemm(a, b, c, {.accumulate = true});
    EXPECT_TRUE(same_bits(c, Tensor::full({3, 2}, 7.0f, DType::kFloat32)));
    gemm(a, b, c);
    EXPECT_TRUE(same_bits(c, Tensor::zeros({3, 2}, DType::kFloat32)));
}

TEST_P(GemmTest, EmptyResultIsNoError) {
    gemm(Tensor::zeros({0, 5}, DType::kFloat32, device()),
         Tensor::zeros({5, 4}, DType::kFloat32, device()),
         Tensor::zeros({0, 4}, DType::kFloat32, device()));
}

TEST_P(GemmTest, RejectsWhatDoesNotFit) {
    const auto zeros = [&](const Shape& shape, DType dtype = DType::kFloat32) {
        return Tensor::zeros(shape, dtype, device());
    };
    const Tensor a = zeros({2, 3}), b = zeros({3, 4}), c = zeros({2, 4});
    EXPECT_THROW(gemm(a, b, c, {.transpose_b = true}), Error);
    EXPECT_THROW(gemm(a, b.to(DType::kBFloat16), c), Error);
    EXPECT_THROW(gemm(a, b, zeros({2, 5})), Error);
    EXPECT_THROW(gemm(a, b, c.to(DType::kBFloat16), {.accumulate = true}), Error);
    EXPECT_THROW(gemm(a, b, zeros({2, 4}, DType::kInt32)), Error);
    EXPECT_THROW(gemm(a.view({1, 2, 3}), b, c), Error);
}

INSTANTIATE_TEST_SUITE_P(,
                         GemmTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

class GemmGpuTest : public ::testing::TestWithParam<Device> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(GemmGpuTest);

TEST_P(GemmGpuTest, RejectsOperandsOnAnotherDevice) {
    const Tensor a = Tensor::zeros({4, 4}, DType::kFloat32), gpu = on(GetParam(), a);
    EXPECT_THROW(gemm(a, gpu, gpu), Error);
    EXPECT_THROW(gemm(gpu, a, gpu), Error);
    EXPECT_THROW(gemm(gpu, gpu, a), Error);
}

TEST_P(GemmGpuTest, EveryStreamMultiplies) {
    const Tensor a = on(GetParam(), gaussian({65, 33}, DType::kBFloat16, 1));
    const Tensor b = on(GetParam(), gaussian({33, 40}, DType::kBFloat16, 2));
    const Tensor want = Tensor::zeros({65, 40}, DType::kFloat32, GetParam());
    gemm(a, b, want);
    Stream::current().synchronize();
    for (int i = 0; i < 3; ++i) {
        const Stream stream;
        const StreamScope scope(stream);
        const Tensor c = Tensor::zeros({65, 40}, DType::kFloat32, GetParam());
        gemm(a, b, c);
        stream.synchronize();
        EXPECT_TRUE(same_bits(c, want)) << "stream " << i;
    }
}

INSTANTIATE_TEST_SUITE_P(,
                         GemmGpuTest,
                         ::testing::ValuesIn(testing::test_gpus()),
                         testing::device_name);

TEST_F(GemmCpuTest, BitsDoNotDependOnTheNumberOfThreads) {
    // The products of a small transformer's layer, C = 512: forward, input gradient, weight gradient,
    // and one row at a time as in generation.
    const std::vector<Case> cases = {{1024, 768, 512, {false, true, false}},
                                     {1024, 512, 1408, {false, true, false}},
                                     {1024, 512, 768, {}},
                                     {768, 512, 1024, {true, false, true}},
                                     {512, 257, 1023, {true, false, true}},
                                     {1, 1536, 512, {false, true, false}},
                                     {31, 257, 2048, {false, true, false}}};
    for (Case c : cases) {
        for (int variant = 0; variant < 3; ++variant) {
            c.inputs = variant == 0 ? DType::kFloat32 : DType::kBFloat16;
            c.path = variant == 1 ? Bf16Path::kWiden : Bf16Path::kNative;
            cpu::set_bf16_path(c.path);
            const GemmOptions& o = c.options;
            const Tensor a =
                gaussian(o.transpose_a ? Shape{c.k, c.m} : Shape{c.m, c.k}, c.inputs, 1);
            const Tensor b =
                gaussian(o.transpose_b ? Shape{c.n, c.k} : Shape{c.k, c.n}, c.inputs, 2);
            std::vector<Tensor> results;
            for (int threads : {1, 2, 3, 7}) {
                omp_set_num_threads(threads);
                results.push_back(Tensor::full({c.m, c.n}, 0.5f, DType::kFloat32));
                gemm(a, b, results.back(), o);
                EXPECT_TRUE(same_bits(results.back(), results.front()))
                    << describe(c) << ", " << threads << " threads";
            }
            EXPECT_EQ(omp_get_max_threads(), 7) << "the caller's number of threads was changed";
        }
    }
}

TEST(ConvertTest, NarrowGivesTheBitsOfTheScalarConversion) {
    std::vector<float> values = {0.0f, -0.0f, 1.0f, INFINITY, -INFINITY, NAN, 3.4e38f, 1e-45f};
    for (std::uint32_t high : {0x3f80u, 0x3f81u, 0xc2f7u, 0x7f7fu}) {
        for (std::uint32_t low : {0x0000u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
            values.push_back(std::bit_cast<float>(high << 16 | low));
        }
    }
    values.push_back(std::bit_cast<float>(0x7f800001u));  // a NaN whose upper half looks infinite
    // So many times over that every value passes through the vectors and through what is left of them.
    const std::size_t distinct = values.size();
    for (std::size_t i = 0; i < 4 * distinct; ++i) values.push_back(values[i % distinct]);
    const auto count = static_cast<std::int64_t>(values.size());
    for (Isa isa : kAllIsas) {
        limit_isa(isa);
        std::vector<bfloat16> got(values.size());
        narrow(values.data(), got.data(), count);
        std::vector<float> back(values.size());
        widen(got.data(), back.data(), count);
        for (std::size_t i = 0; i < values.size(); ++i) {
            EXPECT_EQ(got[i].bits, bfloat16(values[i]).bits) << values[i] << ", " << name_of(isa);
            EXPECT_EQ(std::bit_cast<std::uint32_t>(back[i]), std::uint32_t{got[i].bits} << 16);
        }
    }
    limit_isa(Isa::kAvx512);
}

}  // namespace
}  // namespace evenkeel
