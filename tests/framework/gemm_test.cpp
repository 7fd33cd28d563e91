#include "framework/gemm.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <tuple>

#include "framework/convert.h"
#include "framework/gemm_cpu.h"
#include "framework/isa.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

using cpu::Bf16Path;
using testing::gaussian;
using testing::near;
using testing::same_bits;
using testing::to_doubles;

// Restores the automatic choice of arithmetic and the number of threads.
class GemmTest : public ::testing::Test {
  protected:
    void TearDown() override {
        cpu::set_bf16_path(Bf16Path::kAutomatic);
        omp_set_num_threads(threads_);
    }
    int threads_ = omp_get_max_threads();
};

struct Case {
    std::int64_t m, n, k;
    GemmOptions options;
    DType inputs = DType::kFloat32;
    DType output = DType::kFloat32;
    Bf16Path path = Bf16Path::kAutomatic;
    std::int64_t padding = 0;  // extra row stride of every operand
    bool skipped() const { return options.accumulate && output != DType::kFloat32; }
};

std::string describe(const Case& c) {
    return concat("M", c.m, " N", c.n, " K", c.k, c.options.transpose_a ? " a^T" : "",
                  c.options.transpose_b ? " b^T" : "", c.options.accumulate ? " +=" : "", " ",
                  name_of(c.inputs), " -> ", name_of(c.output), " path ", static_cast<int>(c.path),
                  " padding ", c.padding);
}

Tensor padded(
    std::int64_t rows, std::int64_t columns, DType type, std::uint64_t seed, std::int64_t padding) {
    return gaussian({rows, columns + padding}, type, seed).slice(1, 0, columns);
}

void expect_matches_double(const Case& c) {
    const GemmOptions& o = c.options;
    const Tensor a =
        padded(o.transpose_a ? c.k : c.m, o.transpose_a ? c.m : c.k, c.inputs, 1, c.padding);
    const Tensor b =
        padded(o.transpose_b ? c.n : c.k, o.transpose_b ? c.k : c.n, c.inputs, 2, c.padding);
    const Tensor result =
        o.accumulate ? padded(c.m, c.n, c.output, 3, c.padding)
                     : testing::poisoned({c.m, c.n + c.padding}, c.output).slice(1, 0, c.n);
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

TEST_F(GemmTest, MatchesDoubleForEveryTypeAndTranspose) {
    for (const auto& [m, n, k] :
         {std::tuple{1, 1, 1}, {1, 300, 64}, {33, 31, 257}, {257, 129, 40}}) {
        for (int bits = 0; bits < 8; ++bits) {
            const GemmOptions options{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0};
            for (DType output : {DType::kFloat32, DType::kBFloat16}) {
                for (std::int64_t padding : {0, 3}) {
                    Case c{m,      n, k, options, DType::kFloat32, output, Bf16Path::kAutomatic,
                           padding};
                    if (c.skipped()) continue;
                    expect_matches_double(c);
                    c.inputs = DType::kBFloat16;
                    for (Bf16Path path : {Bf16Path::kWiden, Bf16Path::kNative}) {
                        c.path = path;
                        expect_matches_double(c);
                    }
                }
            }
        }
    }
}

TEST_F(GemmTest, TilesOfAllSizesMatchDouble) {
    for (const auto& [m, n, k] : {std::tuple{700, 1100, 9}, {5, 2050, 17}, {2050, 5, 17}}) {
        expect_matches_double({m, n, k, {}, DType::kFloat32, DType::kFloat32});
        expect_matches_double({m, n, k, {true, true, true}, DType::kBFloat16, DType::kFloat32});
    }
}

TEST_F(GemmTest, BitsDoNotDependOnTheNumberOfThreads) {
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

TEST_F(GemmTest, PaddingBetweenRowsIsLeftAlone) {
    const Tensor whole = Tensor::full({9, 20}, 5.0f, DType::kFloat32);
    gemm(gaussian({9, 4}, DType::kFloat32, 1), gaussian({4, 13}, DType::kFloat32, 2),
         whole.slice(1, 0, 13));
    EXPECT_TRUE(same_bits(whole.slice(1, 13, 20), Tensor::full({9, 7}, 5.0f, DType::kFloat32)));
}

TEST_F(GemmTest, EmptyInnerDimensionGivesZerosOrKeepsTheSum) {
    const Tensor a = Tensor::zeros({3, 0}, DType::kBFloat16),
                 b = Tensor::zeros({0, 2}, DType::kBFloat16);
    const Tensor c = Tensor::full({3, 2}, 7.0f, DType::kFloat32);
    gemm(a, b, c, {.accumulate = true});
    EXPECT_TRUE(same_bits(c, Tensor::full({3, 2}, 7.0f, DType::kFloat32)));
    gemm(a, b, c);
    EXPECT_TRUE(same_bits(c, Tensor::zeros({3, 2}, DType::kFloat32)));
}

TEST_F(GemmTest, EmptyResultIsNoError) {
    gemm(Tensor::zeros({0, 5}, DType::kFloat32), Tensor::zeros({5, 4}, DType::kFloat32),
         Tensor::zeros({0, 4}, DType::kFloat32));
}

TEST_F(GemmTest, RejectsWhatDoesNotFit) {
    const Tensor a = Tensor::zeros({2, 3}, DType::kFloat32),
                 b = Tensor::zeros({3, 4}, DType::kFloat32);
    const Tensor c = Tensor::zeros({2, 4}, DType::kFloat32);
    EXPECT_THROW(gemm(a, b, c, {.transpose_b = true}), Error);
    EXPECT_THROW(gemm(a, b.to(DType::kBFloat16), c), Error);
    EXPECT_THROW(gemm(a, b, Tensor::zeros({2, 5}, DType::kFloat32)), Error);
    EXPECT_THROW(gemm(a, b, c.to(DType::kBFloat16), {.accumulate = true}), Error);
    EXPECT_THROW(gemm(a, b, Tensor::zeros({2, 4}, DType::kInt32)), Error);
    EXPECT_THROW(gemm(a.view({1, 2, 3}), b, c), Error);
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
