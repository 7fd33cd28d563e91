#include "parallel/bias.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>

#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::near;
using testing::on;
using testing::on_cpu;
using testing::same_bits;
using testing::to_doubles;

constexpr DType kFp32 = DType::kFloat32;
constexpr DType kBf16 = DType::kBFloat16;

constexpr DType kTypes[] = {kFp32, kBf16};

struct Shapes {
    std::int64_t rows, outputs;
};
// Whole chunks of 16 bytes and not, more than one run of rows, more than one tile of columns.
constexpr Shapes kShapes[] = {{1, 1}, {3, 8}, {131, 264}, {130, 70}, {300, 24}, {2, 520}};

class BiasTest : public ::testing::TestWithParam<Device> {
  protected:
    Device device() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(,
                         BiasTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

// The sum in fp32, rounded once.
TEST_P(BiasTest, IsAddedToEveryRow) {
    for (const DType type : kTypes) {
        for (const auto [rows, outputs] : kShapes) {
            SCOPED_TRACE(concat(name_of(type), " [", rows, ", ", outputs, "]"));
            const Tensor before = gaussian({rows, outputs}, type, 1);
            const Tensor bias = gaussian({outputs}, kFp32, 2);
            const Tensor want = Tensor::uninitialized(before.shape(), kFp32);
            const auto x = to_doubles(before), b = to_doubles(bias);
            for (std::size_t i = 0; i < x.size(); ++i) {
                want.data<float>()[i] =
                    static_cast<float>(x[i]) + static_cast<float>(b[i % b.size()]);
            }
            const Tensor got = on(device(), before).clone();
            add_bias(got, on(device(), bias));
            EXPECT_TRUE(same_bits(on_cpu(got), want.to(type)));
        }
    }
}

// Columns 16 to 80 of a wider tensor, in sequences; what stands beside them stays as it was.
TEST_P(BiasTest, IsAddedToAPartOfWiderRows) {
    for (const DType type : kTypes) {
        for (const std::int64_t begin : {16, 13}) {
            const Tensor before = gaussian({2, 5, 100}, type, 1);
            const Tensor all = on(device(), before).clone();
            const Tensor bias = gaussian({64}, kFp32, 2);
            add_bias(all.slice(2, begin, begin + 64), on(device(), bias));
            const auto got = to_doubles(all), x = to_doubles(before), b = to_doubles(bias);
            for (std::size_t i = 0; i < got.size(); ++i) {
                const auto column = static_cast<std::int64_t>(i % 100) - begin;
                const bool inside = column >= 0 && column < 64;
                const double want = inside ? x[i] + b[static_cast<std::size_t>(column)] : x[i];
                ASSERT_NEAR(got[i], want, inside ? 0.01 * std::abs(want) + 1e-6 : 0.0)
                    << name_of(type) << ", column " << column << " of element " << i;
            }
        }
    }
}

TEST_P(BiasTest, GradientIsTheSumOfColumns) {
    for (const DType type : kTypes) {
        for (const auto [rows, outputs] : kShapes) {
            SCOPED_TRACE(concat(name_of(type), " [", rows, ", ", outputs, "]"));
            const Tensor wide = gaussian({rows, outputs + 8}, type, 3);
            const Tensor first = gaussian({outputs}, kFp32, 4);
            const Tensor grad = on(device(), first).clone();
            for (const Tensor& dy :
                 {gaussian({rows, outputs}, type, 5), wide.slice(1, 8, 8 + outputs)}) {
                auto want = to_doubles(on_cpu(grad));
                const auto values = to_doubles(dy);
                for (std::size_t i = 0; i < values.size(); ++i) want[i % want.size()] += values[i];
                const Tensor parent = dy.is_contiguous() ? on(device(), dy) : on(device(), wide);
                add_bias_gradient(dy.is_contiguous() ? parent : parent.slice(1, 8, 8 + outputs),
                                  grad);
                EXPECT_TRUE(near(on_cpu(grad), want, 1e-6, 1e-6 * std::sqrt(double(rows))));
            }
        }
    }
}

TEST_P(BiasTest, OneElementReachesOnlyItsOwnOutput) {
    const Tensor x = on(device(), gaussian({40, 72}, kBf16, 1));
    const Tensor before = on_cpu(x).clone();
    const Tensor bias = Tensor::zeros({72}, kFp32);
    bias.data<float>()[29] = 1.0f;
    add_bias(x, on(device(), bias));
    const auto got = to_doubles(x), was = to_doubles(before);
    const Tensor dy = Tensor::zeros({40, 72}, kBf16);
    for (std::int64_t row = 0; row < 40; ++row) {
        dy.slice(0, row, row + 1).slice(1, 41, 42).fill(0.5f);
        for (std::int64_t column = 0; column < 72; ++column) {
            const auto i = static_cast<std::size_t>(row * 72 + column);
            EXPECT_EQ(got[i] != was[i], column == 29) << "row " << row << ", column " << column;
        }
    }
    const Tensor grad = on(device(), Tensor::zeros({72}, kFp32));
    add_bias_gradient(on(device(), dy), grad);
    const auto sums = to_doubles(grad);
    for (std::size_t column = 0; column < 72; ++column) {
        EXPECT_EQ(sums[column], column == 41 ? 20.0 : 0.0) << column;
    }
}

// A thousand ones that each would vanish beside 2^24 in fp32.
TEST_P(BiasTest, LongSumsKeepSmallTerms) {
    const Tensor dy = Tensor::full({1024, 8}, 1.0f, kBf16);
    const Tensor grad = on(device(), Tensor::full({8}, 16777216.0f, kFp32));
    add_bias_gradient(on(device(), dy), grad);
    EXPECT_EQ(on_cpu(grad).data<float>()[7], 16777216.0f + 1024.0f);
}

TEST_P(BiasTest, NoRowsChangeNothing) {
    const Tensor grad = on(device(), Tensor::full({8}, 3.0f, kFp32));
    const Tensor none = on(device(), Tensor::zeros({0, 4, 8}, kBf16));
    add_bias(none, grad);
    add_bias_gradient(none, grad);
    EXPECT_EQ(on_cpu(grad).data<float>()[0], 3.0f);
}

TEST_P(BiasTest, WrongShapesAndTypesAreRefused) {
    const auto zeros = [&](const Shape& shape, DType type) {
        return on(device(), Tensor::zeros(shape, type));
    };
    const Tensor x = zeros({4, 8}, kBf16);
    for (const auto op : {add_bias, add_bias_gradient}) {
        EXPECT_THROW(op(x, zeros({4}, kFp32)), Error);
        EXPECT_THROW(op(x, zeros({8}, kBf16)), Error);
        EXPECT_THROW(op(zeros({8}, kBf16), zeros({8}, kFp32)), Error);
        EXPECT_THROW(op(Tensor(), zeros({8}, kFp32)), Error);
        EXPECT_THROW(op(zeros({4, 8}, DType::kInt32), zeros({8}, kFp32)), Error);
    }
}

TEST(BiasOnTheCpu, GradientDoesNotDependOnTheNumberOfThreads) {
    const Tensor dy = gaussian({1000, 90}, kFp32, 1);
    const int before = omp_get_max_threads();
    std::vector<Tensor> results;
    for (const int threads : {1, 2, 5}) {
        omp_set_num_threads(threads);
        results.push_back(gaussian({90}, kFp32, 2));
        add_bias_gradient(dy, results.back());
    }
    omp_set_num_threads(before);
    EXPECT_TRUE(same_bits(results[1], results[0]));
    EXPECT_TRUE(same_bits(results[2], results[0]));
}

}  // namespace
}  // namespace evenkeel
