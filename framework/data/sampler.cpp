#include "framework/data/sampler.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "framework/error.h"
#include "framework/rng.h"

namespace evenkeel {

Sampler::Sampler(std::int64_t num_sequences, std::uint64_t seed)
    : num_sequences_(num_sequences), seed_(seed) {
    EVENKEEL_CHECK(num_sequences > 0, "Sampler", "num_sequences: got ", num_sequences,
                   ", want 1 or more");
}

// A Feistel network permutes the numbers of 2h bits; walking its cycle until it comes back below n
// permutes those below n (Black and Rogaway 2002, "Ciphers with arbitrary finite domains", section 4).
std::int64_t Sampler::sequence(std::int64_t index) const {
    EVENKEEL_CHECK(index >= 0, "Sampler", "index: got ", index, ", want 0 or more");
    constexpr std::uint32_t kRounds = 8;
    const auto n = static_cast<std::uint64_t>(num_sequences_);
    const std::uint64_t epoch = static_cast<std::uint64_t>(index) / n;
    const int half_bits = std::max(1, (static_cast<int>(std::bit_width(n - 1)) + 1) / 2);
    const std::uint64_t mask = (1ull << half_bits) - 1;
    const std::uint64_t key = seed_ ^ purpose("sample order");

    std::uint64_t value = static_cast<std::uint64_t>(index) % n;
    do {
        std::uint64_t left = value >> half_bits, right = value & mask;
        for (std::uint32_t round = 0; round < kRounds; ++round) {
            const auto word = philox4x32(
                {static_cast<std::uint32_t>(right), round, static_cast<std::uint32_t>(epoch),
                 static_cast<std::uint32_t>(epoch >> 32)},
                {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)});
            left = std::exchange(right, (left ^ word[0]) & mask);
        }
        value = (left << half_bits) | right;
    } while (value >= n);
    return static_cast<std::int64_t>(value);
}

}  // namespace evenkeel
