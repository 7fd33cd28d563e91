// The cross-entropy of a rank by itself, at all kinds of widths; over several ranks:
// tests/distributed/vocab_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <memory>

#include "parallel/vocab.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"
#include "tests/support/devices.h"

namespace evenkeel {
namespace {

using testing::gaussian;
using testing::poisoned;
using testing::to_doubles;
using testing::within_error_of_plain;

constexpr DType kFp32 = DType::kFloat32, kBf16 = DType::kBFloat16;
constexpr double kScale = 0.5;

// Mean loss, log-sum-exps and gradient by definition, in double or in float.
template <typename Real>
struct Formulas {
    double loss = 0;
    std::vector<Real> log_sum_exp, gradient;

    Formulas(const std::vector<double>& z, const Tensor& targets) {
        const std::int32_t* ids = targets.data<std::int32_t>();
        const std::size_t rows = static_cast<std::size_t>(targets.numel()), width = z.size() / rows;
        int counted = 0;
        for (std::size_t i = 0; i < rows; ++i) counted += ids[i] >= 0;
        for (std::size_t i = 0; i < rows; ++i) {
            const double* row = z.data() + i * width;
            Real max = -std::numeric_limits<Real>::infinity(), sum = 0;
            for (std::size_t v = 0; v < width; ++v) max = std::max(max, static_cast<Real>(row[v]));
            for (std::size_t v = 0; v < width; ++v)
                sum += std::exp(static_cast<Real>(row[v]) - max);
            log_sum_exp.push_back(max + std::log(sum));
            for (std::size_t v = 0; v < width; ++v) {
                const Real p = std::exp(static_cast<Real>(row[v]) - log_sum_exp.back());
                const Real one = static_cast<int>(v) == ids[i] ? Real(1) : Real(0);
                gradient.push_back(ids[i] < 0 ? Real(0)
                                              : (p - one) * static_cast<Real>(kScale) /
                                                    static_cast<Real>(counted));
            }
            if (ids[i] >= 0) {
                loss += static_cast<double>(log_sum_exp.back() - static_cast<Real>(row[ids[i]])) /
                        counted;
            }
        }
    }
};

Tensor targets_of(std::int64_t count, std::int64_t vocab_size) {
    const Tensor targets = Tensor::uninitialized({1, count}, DType::kInt32);
    for (std::int64_t i = 0; i < count; ++i) {
        targets.data<std::int32_t>()[i] =
            i == 2 ? -1 : static_cast<std::int32_t>((i * 37 + 5) % vocab_size);
    }
    return targets;
}

class CrossEntropyTest : public ::testing::TestWithParam<Device> {
  protected:
    Tensor there(const Tensor& tensor) const { return testing::on(GetParam(), tensor); }

    void expect_the_definition(const Tensor& logits, const Tensor& targets) {
        const Formulas<double> want(to_doubles(logits), targets);
        const Formulas<float> plain(to_doubles(logits), targets);
        const auto tensor_of = [](const std::vector<float>& values, const Tensor& like) {
            const Tensor tensor = Tensor::uninitialized(like.shape(), kFp32);
            std::copy(values.begin(), values.end(), tensor.data<float>());
            return tensor.to(like.dtype());
        };
        const Tensor z = there(logits), ids = there(targets);
        CrossEntropySaved saved;
        EXPECT_NEAR(mean_cross_entropy(grid_, z, z.size(2), ids, saved), want.loss,
                    2e-6 * std::abs(want.loss) + 1e-6);
        EXPECT_TRUE(within_error_of_plain(saved.log_sum_exp,
                                          tensor_of(plain.log_sum_exp, saved.log_sum_exp),
                                          want.log_sum_exp, 2.0));
        const Tensor gradient = there(poisoned(logits.shape(), logits.dtype()));
        cross_entropy_backward(grid_, z, z.size(2), ids, saved, kScale, gradient);
        EXPECT_TRUE(
            within_error_of_plain(gradient, tensor_of(plain.gradient, logits), want.gradient, 3.0));
        cross_entropy_backward(grid_, z, z.size(2), ids, saved, kScale, z);
        EXPECT_TRUE(testing::same_bits(z, gradient)) << "in place";
    }

    std::unique_ptr<Communicator> world_ = make_single_communicator();
    ProcessGrid grid_{*world_, ParallelConfig{}, GetParam()};
};
INSTANTIATE_TEST_SUITE_P(,
                         CrossEntropyTest,
                         ::testing::ValuesIn(testing::test_devices()),
                         testing::device_name);

TEST_P(CrossEntropyTest, MatchesTheDefinitionAtEveryWidth) {
    for (const DType dtype : {kFp32, kBf16}) {
        for (const std::int64_t width : {1, 3, 31, 33, 64, 257, 4104, 9001}) {
            SCOPED_TRACE(concat(evenkeel::name_of(dtype), " width ", width));
            expect_the_definition(gaussian({1, 4, width}, dtype, 1, 3.0), targets_of(4, width));
        }
    }
}

TEST_P(CrossEntropyTest, MatchesTheDefinitionOnEveryKindOfData) {
    for (const DType dtype : {kFp32, kBf16}) {
        for (const testing::DataKind kind : testing::kAllDataKinds) {
            for (const std::int64_t width : {40, 333}) {
                SCOPED_TRACE(concat(evenkeel::name_of(dtype), " width ", width, " ",
                                    testing::name_of(kind)));
                expect_the_definition(testing::make_data(kind, {1, 9, width}, dtype, 2),
                                      targets_of(9, width));
            }
        }
    }
}

// More rows than one block of the loss's sum.
TEST_P(CrossEntropyTest, AddsUpManyRows) {
    expect_the_definition(gaussian({1, 700, 16}, kFp32, 1), targets_of(700, 16));
}

// Tokens of a padded vocabulary are held at minus infinity.
TEST_P(CrossEntropyTest, MinusInfinityIsProbabilityZero) {
    for (const std::int64_t width : {24, 1001}) {
        const Tensor logits = gaussian({1, 3, width}, kFp32, 1);
        logits.slice(2, width - 20, width).fill(-INFINITY);
        logits.slice(2, 0, 1).fill(-INFINITY);
        const Tensor targets = Tensor::full({1, 3}, 2.0f, DType::kInt32);
        expect_the_definition(logits, targets);
    }
}

TEST_P(CrossEntropyTest, NotANumberAnywhereIsSeen) {
    for (const std::int64_t at : {0, 7, 8, 500, 1000}) {
        const Tensor logits = gaussian({1, 3, 1001}, kBf16, 1);
        logits.slice(1, 1, 2).slice(2, at, at + 1).fill(NAN);
        CrossEntropySaved saved;
        EXPECT_TRUE(
            std::isnan(mean_cross_entropy(grid_, there(logits), logits.size(2),
                                          there(Tensor::full({1, 3}, 2.0f, DType::kInt32)), saved)))
            << at;
        EXPECT_TRUE(std::isnan(to_doubles(saved.log_sum_exp)[1])) << at;
        EXPECT_FALSE(std::isnan(to_doubles(saved.log_sum_exp)[2])) << at;
    }
}

}  // namespace
}  // namespace evenkeel
