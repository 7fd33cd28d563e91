#include "framework/storage/hash.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace evenkeel {
namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87u;
constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4Fu;
constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9u;
constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63u;
constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5u;

static_assert(std::endian::native == std::endian::little, "the hash reads little-endian words");

template <typename Word>
std::uint64_t load(const unsigned char* from) {
    Word word;
    std::memcpy(&word, from, sizeof word);
    return word;
}

std::uint64_t mixed(std::uint64_t lane, std::uint64_t word) {
    return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

void add_stripe(std::array<std::uint64_t, 4>& lanes, const unsigned char* from) {
    for (std::size_t i = 0; i < 4; ++i) {
        lanes[i] = mixed(lanes[i], load<std::uint64_t>(from + 8 * i));
    }
}

}  // namespace

Hasher::Hasher() : lanes_{kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1} {}

void Hasher::add(const void* data, std::size_t bytes) {
    if (bytes == 0) return;
    const auto* from = static_cast<const unsigned char*>(data);
    const std::size_t kept = length_ % rest_.size();
    length_ += bytes;
    if (kept > 0) {
        const std::size_t taken = std::min(bytes, rest_.size() - kept);
        std::memcpy(rest_.data() + kept, from, taken);
        from += taken;
        bytes -= taken;
        if (kept + taken < rest_.size()) return;
        add_stripe(lanes_, rest_.data());
    }
    std::array<std::uint64_t, 4> lanes = lanes_;  // in registers
    for (; bytes >= rest_.size(); from += rest_.size(), bytes -= rest_.size()) {
        add_stripe(lanes, from);
    }
    lanes_ = lanes;
    std::memcpy(rest_.data(), from, bytes);
}

std::uint64_t Hasher::value() const {
    std::uint64_t hash = kPrime5;
    if (length_ >= rest_.size()) {
        hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) +
               std::rotl(lanes_[3], 18);
        for (const std::uint64_t lane : lanes_) hash = (hash ^ mixed(0, lane)) * kPrime1 + kPrime4;
    }
    hash += length_;
    const unsigned char* from = rest_.data();
    std::size_t left = length_ % rest_.size();
    for (; left >= 8; from += 8, left -= 8) {
        hash = std::rotl(hash ^ mixed(0, load<std::uint64_t>(from)), 27) * kPrime1 + kPrime4;
    }
    for (; left >= 4; from += 4, left -= 4) {
        hash = std::rotl(hash ^ load<std::uint32_t>(from) * kPrime1, 23) * kPrime2 + kPrime3;
    }
    for (; left > 0; ++from, --left) hash = std::rotl(hash ^ *from * kPrime5, 11) * kPrime1;
    hash = (hash ^ hash >> 33) * kPrime2;
    hash = (hash ^ hash >> 29) * kPrime3;
    return hash ^ hash >> 32;
}

std::uint64_t hash_of(std::string_view text) {
    Hasher hasher;
    hasher.add(text.data(), text.size());
    return hasher.value();
}

std::string hash_text(std::uint64_t hash) {
    constexpr const char* kDigits = "0123456789abcdef";
    std::string text(16, '0');
    for (std::size_t i = 16; i-- > 0; hash >>= 4) text[i] = kDigits[hash & 15];
    return text;
}

std::optional<std::uint64_t> parse_hash(std::string_view text) {
    if (text.size() != 16) return std::nullopt;
    std::uint64_t hash = 0;
    for (const char c : text) {
        const bool is_digit = '0' <= c && c <= '9';
        if (!is_digit && !('a' <= c && c <= 'f')) return std::nullopt;
        hash = hash << 4 | static_cast<std::uint64_t>(is_digit ? c - '0' : c - 'a' + 10);
    }
    return hash;
}

}  // namespace evenkeel
