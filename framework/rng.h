// Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as
// 1, 2, 3", section 3). A number is a pure function of (seed, purpose, index), so initialisation and
// data order do not depend on how many ranks or threads draw them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace evenkeel {

// A key for a named use of random numbers (FNV-1a).
constexpr std::uint64_t purpose(std::string_view name) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return hash;
}

// One Philox4x32-10 block.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

class CounterRng {
  public:
    CounterRng(std::uint64_t seed, std::uint64_t purpose) : seed_(seed), purpose_(purpose) {}
    std::uint64_t bits(std::uint64_t index) const;
    double uniform(std::uint64_t index) const;  // in [0, 1), 53 bits
    double normal(std::uint64_t index) const;   // mean 0, variance 1, by Box and Muller
    // Uniform in [0, bound), without modulo bias to 2^-64.
    std::uint64_t below(std::uint64_t index, std::uint64_t bound) const;

  private:
    std::array<std::uint32_t, 4> block(std::uint64_t index) const;
    std::uint64_t seed_;
    std::uint64_t purpose_;
};

}  // namespace evenkeel
