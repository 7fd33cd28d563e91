#include "framework/optimizer/gradient_norm_rows.h"

#include <gtest/gtest.h>

#include "framework/tensor.h"
#include "tests/support/compare.h"
#include "tests/support/data.h"

namespace evenkeel {
namespace {

TEST(GradientNormRowsTest, SumOfSquaresIsExactToDouble) {
    for (const Isa isa : kAllIsas) {
        limit_isa(isa);
        for (std::int64_t count : {0, 1, 7, 31, 32, 33, 1000}) {
            const Tensor x = testing::gaussian({count}, DType::kFloat32, 3, 1e15);
            double want = 0;
            for (double value : testing::to_doubles(x)) want += value * value;
            const double got = EVENKEEL_FOR_CURRENT_ISA(row_sum_of_squares)(x.data<float>(), count);
            EXPECT_NEAR(got, want, 1e-14 * want) << name_of(isa) << ", " << count;
        }
    }
    limit_isa(Isa::kAvx512);
}

}  // namespace
}  // namespace evenkeel
