// XXH64, the 64-bit hash of the xxHash family with seed 0, over bytes that come in pieces: what `xxhsum -H64` prints.
// It finds damage (a chance of 2^-64 of missing it), not forgery, and costs little beside writing the bytes.
// Definition: github.com/Cyan4973/xxHash, doc/xxhash_spec.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace evenkeel {

class Hasher {
  public:
    Hasher();
    void add(const void* data, std::size_t bytes);
    std::uint64_t value() const;  // of all that has been added
    std::uint64_t bytes() const { return length_; }

  private:
    std::array<std::uint64_t, 4> lanes_;
    std::array<unsigned char, 32> rest_;  // what does not fill a stripe yet
    std::uint64_t length_ = 0;
};

std::uint64_t hash_of(std::string_view text);
// 16 hexadecimal digits in lower case.
std::string hash_text(std::uint64_t hash);
// The reverse; nothing for any other text.
std::optional<std::uint64_t> parse_hash(std::string_view text);

}  // namespace evenkeel
