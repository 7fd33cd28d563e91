// Queries and keys together, on every device, with everything drawn at random: widths, rotary widths,
// layouts, heads, sizes, places in memory, positions, gains, data.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <tuple>

#include "tests/attention/qk_norm_rope_device.h"
#include "tests/support/data.h"

namespace evenkeel::testing {
namespace {

class Draw {
  public:
    explicit Draw(unsigned seed) : generator_(seed) {}
    std::int64_t between(std::int64_t lowest, std::int64_t highest) {
        const auto count = static_cast<std::uint64_t>(highest - lowest + 1);
        return lowest + static_cast<std::int64_t>(generator_() % count);
    }
    bool often(std::int64_t percent) { return between(1, 100) <= percent; }

  private:
    std::mt19937_64 generator_;
};

JointCase draw_case(Draw& draw) {
    constexpr std::int64_t kWidths[] = {64, 96, 128, 256};
    JointCase c;
    c.dim = kWidths[draw.between(0, 3)];
    c.batch = draw.between(1, 3);
    c.tokens = draw.between(1, 24);
    c.heads[0] = draw.between(1, 7);
    c.heads[1] = draw.often(75) ? draw.between(1, 5) : 0;
    if (draw.often(50)) c.gap[0] = draw.between(0, 3), c.gap[1] = 8 * draw.between(0, 9);
    const std::int64_t rotary = draw.often(30) ? c.dim : 2 * draw.between(0, c.dim / 2);
    c.rope.rotary_fraction = static_cast<double>(rotary) / static_cast<double>(c.dim);
    c.rope.layout = draw.often(50) ? RopeLayout::kHalfSplit : RopeLayout::kInterleaved;
    if (draw.often(50)) c.first = draw.between(0, 100'000);
    if (draw.often(50)) {
        for (std::int64_t i = 0; i < c.batch * c.tokens; ++i) {
            c.positions.push_back(
                static_cast<std::int32_t>(c.first + draw.between(0, c.tokens - 1)));
        }
    }
    c.options.norm = draw.often(85) ? kNorms[draw.between(0, 2)] : QkNormKind::kNone;
    c.options.eps = draw.often(70) ? 1e-6 : 1e-3;
    if (c.options.norm == QkNormKind::kNone) return c;
    c.options.gain_offset = draw.often(70) ? 0.0 : 1.0;
    for (int i = 0; i < c.parts(); ++i) {
        const auto kind = static_cast<GainKind>(draw.between(0, 2));
        c.gain[i] = make_gain(kind, c.heads[i], c.dim, static_cast<std::uint64_t>(3 + i));
    }
    return c;
}

using TypeAndSeed = std::tuple<DeviceType, int>;
class QkNormRopeFuzz : public ::testing::TestWithParam<TypeAndSeed> {};
std::string type_and_seed_name(const ::testing::TestParamInfo<TypeAndSeed>& info) {
    const auto& [type, seed] = info.param;
    return concat(name_of(type.device), "_", name_of(type.dtype), "_", seed);
}

INSTANTIATE_TEST_SUITE_P(,
                         QkNormRopeFuzz,
                         ::testing::Combine(::testing::ValuesIn(device_types()),
                                            ::testing::Range(1, 13)),
                         type_and_seed_name);

TEST_P(QkNormRopeFuzz, MatchesTheReference) {
    const auto& [type, seed] = GetParam();
    Draw draw(static_cast<unsigned>(seed));
    const JointCase c = draw_case(draw);
    const DataKind kind = kAllDataKinds[draw.often(60) ? 0 : draw.between(1, 4)];
    SCOPED_TRACE(concat("[", c.batch, ", ", c.tokens, ", ", c.heads[0], " + ", c.heads[1], ", ",
                        c.dim, "], rotary fraction ", c.rope.rotary_fraction, ", ",
                        c.rope.layout == RopeLayout::kHalfSplit ? "half split" : "interleaved",
                        ", first ", c.first, ", ", c.positions.size(), " positions, gaps ",
                        c.gap[0], " and ", c.gap[1], ", norm ", name_of(c.options.norm), ", ",
                        name_of(kind)));
    const Tensor x = packed_data(c, kind, type.dtype, 1);
    const Tensor dy = packed_data(c, kind, type.dtype, 2);
    expect_right(c, x, dy, run_joint(type.device, c, x, dy));
}

}  // namespace
}  // namespace evenkeel::testing
