#include "framework/rng.h"

#include <cmath>
#include <numbers>

namespace evenkeel {
namespace {

constexpr std::uint64_t join(std::uint32_t low, std::uint32_t high) {
    return (static_cast<std::uint64_t>(high) << 32) | low;
}

// In (0, 1], so that its logarithm is finite.
double open_unit(std::uint64_t bits) { return (static_cast<double>(bits >> 11) + 1.0) * 0x1p-53; }

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t a = 0xD2511F53ull * counter[0];
        const std::uint64_t b = 0xCD9E8D57ull * counter[2];
        counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0],
                   static_cast<std::uint32_t>(b),
                   static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1],
                   static_cast<std::uint32_t>(a)};
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    return counter;
}

std::array<std::uint32_t, 4> CounterRng::block(std::uint64_t index) const {
    return philox4x32(
        {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32),
         static_cast<std::uint32_t>(purpose_), static_cast<std::uint32_t>(purpose_ >> 32)},
        {static_cast<std::uint32_t>(seed_), static_cast<std::uint32_t>(seed_ >> 32)});
}

std::uint64_t CounterRng::bits(std::uint64_t index) const {
    const auto word = block(index);
    return join(word[0], word[1]);
}

double CounterRng::uniform(std::uint64_t index) const {
    return static_cast<double>(bits(index) >> 11) * 0x1p-53;
}

double CounterRng::normal(std::uint64_t index) const {
    const auto word = block(index);
    const double radius = std::sqrt(-2.0 * std::log(open_unit(join(word[0], word[1]))));
    return radius * std::cos(2.0 * std::numbers::pi * open_unit(join(word[2], word[3])));
}

std::uint64_t CounterRng::below(std::uint64_t index, std::uint64_t bound) const {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits(index)) * bound) >> 64);
}

}  // namespace evenkeel
