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

// What the bits of a finite half stand for, by the definition of IEEE binary16.
double value_of_half(std::uint32_t bits) {
    const int exponent = static_cast<int>(bits >> 10) & 0x1f;
    const double fraction = bits & 0x3ffu;
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024.0 + fraction, exponent - 25);
    return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

float16 half_of(std::uint32_t bits) {
    float16 half;
    half.bits = static_cast<std::uint16_t>(bits);
    return half;
}

TEST(Float16Test, EveryPatternHasItsValueAndSurvivesARoundTrip) {
    for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
        const auto wide = static_cast<float>(half_of(bits));
        EXPECT_EQ(std::signbit(wide), bits >> 15 != 0) << bits;
        if ((bits & 0x7c00u) != 0x7c00u) {
            ASSERT_EQ(static_cast<double>(wide), value_of_half(bits)) << bits;
        } else if ((bits & 0x3ffu) == 0) {
            ASSERT_TRUE(std::isinf(wide)) << bits;
        } else {
            ASSERT_TRUE(std::isnan(wide)) << bits;
            ASSERT_TRUE(std::isnan(static_cast<float>(float16(wide)))) << bits;
            continue;
        }
        ASSERT_EQ(float16(wide).bits, bits);
    }
}

TEST(Float16Test, RoundsToNearestTiesToEvenBetweenAnyNeighbours) {
    // 65536 would follow the largest half: what lies nearer to it, or as near, is infinity.
    for (std::uint32_t below = 0; below < 0x7c00u; ++below) {
        const std::uint32_t above = below + 1;
        const double high = above == 0x7c00u ? 65536.0 : value_of_half(above);
        const auto middle = static_cast<float>((value_of_half(below) + high) / 2.0);  // exact
        const std::uint32_t even = below % 2 == 0 ? below : above;
        for (const std::uint32_t sign : {0x0000u, 0x8000u}) {
            const float s = sign == 0 ? 1.0f : -1.0f;
            ASSERT_EQ(float16(s * middle).bits, even | sign) << middle;
            ASSERT_EQ(float16(s * std::nextafter(middle, 0.0f)).bits, below | sign) << middle;
            ASSERT_EQ(float16(s * std::nextafter(middle, 1e6f)).bits, above | sign) << middle;
        }
    }
}

TEST(Float16Test, NeverMovesAgainstItsArgument) {
    // Every exponent and fractions all over it, in rising order.
    std::uint32_t last = 0;
    for (std::uint32_t bits = 0; bits <= 0x7f800000u; bits += 997) {
        const std::uint32_t half = float16(std::bit_cast<float>(bits)).bits;
        ASSERT_GE(half, last) << bits;
        ASSERT_LE(half, 0x7c00u) << bits;
        last = half;
    }
    EXPECT_EQ(float16(std::numeric_limits<float>::max()).bits, 0x7c00u);
    EXPECT_EQ(float16(-std::numeric_limits<float>::max()).bits, 0xfc00u);
    EXPECT_EQ(float16(std::numeric_limits<float>::denorm_min()).bits, 0u);
    EXPECT_EQ(float16(-std::numeric_limits<float>::denorm_min()).bits, 0x8000u);
}

TEST(Float16Test, KeepsNaNsWhosePayloadIsCutOff) {
    EXPECT_TRUE(std::isnan(static_cast<float>(float16(std::bit_cast<float>(0x7f800001u)))));
    EXPECT_TRUE(std::isnan(static_cast<float>(float16(std::bit_cast<float>(0xffffffffu)))));
}

TEST(DTypeTest, SizesAndNames) {
    EXPECT_EQ(size_of(DType::kFloat32), 4u);
    EXPECT_EQ(size_of(DType::kBFloat16), 2u);
    EXPECT_EQ(size_of(DType::kFloat16), 2u);
    EXPECT_EQ(size_of(DType::kInt32), 4u);
    EXPECT_STREQ(name_of(DType::kFloat16), "fp16");
    EXPECT_STREQ(name_of(DType::kBFloat16), "bf16");
}

}  // namespace
}  // namespace evenkeel
