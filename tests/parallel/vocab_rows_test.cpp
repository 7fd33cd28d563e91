#include "parallel/vocab_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "framework/tensor.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class VocabRowsTest : public ::testing::TestWithParam<Isa> {
  protected:
    void SetUp() override {
        limit_isa(GetParam());
        if (current_isa() != GetParam()) GTEST_SKIP() << "this processor lacks it";
    }
    void TearDown() override { limit_isa(Isa::kAvx512); }
};

TEST_P(VocabRowsTest, MatchDoubleAtEveryLength) {
    for (DType type : {DType::kFloat32, DType::kBFloat16}) {
        for (std::int64_t count : {1, 2, 7, 15, 16, 17, 33, 257}) {
            const Tensor z = testing::gaussian({count}, type, 5, 8.0);
            const bool bf16 = type == DType::kBFloat16;
            const auto values = testing::to_doubles(z);
            const double max = *std::max_element(values.begin(), values.end());
            EXPECT_EQ(EVENKEEL_FOR_CURRENT_ISA(row_max)(bf16, z.raw(), count), max);
            double sum = 0;
            for (double value : values) sum += std::exp(value - max);
            const float got = EVENKEEL_FOR_CURRENT_ISA(row_sum_exp)(bf16, z.raw(),
                                                                    static_cast<float>(max), count);
            EXPECT_NEAR(got, sum, 1e-6 * sum) << count;

            const double log_sum_exp = max + std::log(sum);
            const std::int64_t target = count / 2;
            std::vector<double> want;
            for (std::int64_t i = 0; i < count; ++i) {
                want.push_back((std::exp(values[i] - log_sum_exp) - (i == target)) * 0.25);
            }
            // The rows' neighbours must stay as they are.
            const Tensor whole = Tensor::full({count + 2}, 3.0f, type);
            const Tensor dz = whole.slice(0, 1, count + 1);
            EVENKEEL_FOR_CURRENT_ISA(row_softmax_gradient)
            (bf16, z.raw(), static_cast<float>(log_sum_exp), target, 0.25f, dz.raw(), count);
            EXPECT_TRUE(testing::near(dz, want, bf16 ? 1.0 / 250 : 1e-5, 1e-7)) << count;
            EXPECT_EQ(testing::to_doubles(whole).front(), 3.0);
            EXPECT_EQ(testing::to_doubles(whole).back(), 3.0);
        }
    }
}

TEST_P(VocabRowsTest, MaximumIsNaNWhereverOneStands) {
    for (std::int64_t position = 0; position < 37; ++position) {
        const Tensor z = Tensor::full({37}, -2.0f, DType::kFloat32);
        z.data<float>()[position] = std::numeric_limits<float>::quiet_NaN();
        EXPECT_TRUE(std::isnan(EVENKEEL_FOR_CURRENT_ISA(row_max)(false, z.raw(), 37))) << position;
    }
}

TEST_P(VocabRowsTest, FarBelowTheMaximumCountsAsNothing) {
    const Tensor z = Tensor::full({20}, -1000.0f, DType::kFloat32);
    z.data<float>()[3] = 5.0f;
    z.data<float>()[4] = -kInfinity;
    EXPECT_EQ(EVENKEEL_FOR_CURRENT_ISA(row_sum_exp)(false, z.raw(), 5.0f, 20), 1.0f);
    EVENKEEL_FOR_CURRENT_ISA(row_softmax_gradient)(false, z.raw(), 5.0f, -1, 2.0f, z.raw(), 20);
    const Tensor want = Tensor::zeros({20}, DType::kFloat32);
    want.data<float>()[3] = 2.0f;
    EXPECT_TRUE(testing::near(z, want, 1e-6, 0.0));
    EXPECT_EQ(z.data<float>()[0], 0.0f);
}

INSTANTIATE_TEST_SUITE_P(Isas, VocabRowsTest, ::testing::ValuesIn(kAllIsas), [](const auto& test) {
    return std::string(name_of(test.param));
});

}  // namespace
}  // namespace evenkeel
