#include "framework/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace evenkeel {
namespace {

float round_trip(float value) { return static_cast<float>(bfloat16(value)); }

TEST(BFloat16Test, EveryPatternSurvivesARoundTrip) {
    for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
        bfloat16 value;
        value.bits = static_cast<std::uint16_t>(bits);
        const auto wide = static_cast<float>(value);
        if (std::isnan(wide)) {
            EXPECT_TRUE(std::isnan(round_trip(wide))) << bits;
        } else {
            EXPECT_EQ(bfloat16(wide).bits, bits);
        }
    }
}

TEST(BFloat16Test, RoundsToNearestTiesToEven) {
    const float ulp = 0x1p-7f;  // of 1.0
    EXPECT_EQ(round_trip(1.0f + 0.49f * ulp), 1.0f);
    EXPECT_EQ(round_trip(1.0f + 0.51f * ulp), 1.0f + ulp);
    EXPECT_EQ(round_trip(1.0f + 0.5f * ulp), 1.0f);               // tie, down to even
    EXPECT_EQ(round_trip(1.0f + 1.5f * ulp), 1.0f + 2.0f * ulp);  // tie, up to even
    EXPECT_EQ(round_trip(-1.0f - 1.5f * ulp), -1.0f - 2.0f * ulp);
}

TEST(BFloat16Test, KeepsSpecialValues) {
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(round_trip(infinity), infinity);
    EXPECT_EQ(round_trip(-infinity), -infinity);
    EXPECT_TRUE(std::signbit(round_trip(-0.0f)));
    EXPECT_EQ(round_trip(std::numeric_limits<float>::max()), infinity);  // nearest beyond the range
    // A NaN whose payload is in the lower half alone must not turn into infinity.
    EXPECT_TRUE(std::isnan(round_trip(std::bit_cast<float>(0x7f800001u))));
    EXPECT_TRUE(std::isnan(round_trip(std::bit_cast<float>(0xffffffffu))));
}

TEST(DTypeTest, SizesAndNames) {
    EXPECT_EQ(size_of(DType::kFloat32), 4u);
    EXPECT_EQ(size_of(DType::kBFloat16), 2u);
    EXPECT_EQ(size_of(DType::kInt32), 4u);
    EXPECT_STREQ(name_of(DType::kBFloat16), "bf16");
}

}  // namespace
}  // namespace evenkeel
