// How files of tokens store an id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace evenkeel {

enum class TokenType { kUint8, kInt8, kUint16, kInt16, kInt32, kUint32, kInt64 };

constexpr std::uint64_t size_of(TokenType type) {
    switch (type) {
        case TokenType::kUint8:
        case TokenType::kInt8:
            return 1;
        case TokenType::kUint16:
        case TokenType::kInt16:
            return 2;
        case TokenType::kInt32:
        case TokenType::kUint32:
            return 4;
        case TokenType::kInt64:
            return 8;
    }
    return 0;
}

constexpr const char* name_of(TokenType type) {
    constexpr const char* kNames[] = {"u8", "i8", "u16", "i16", "i32", "u32", "i64"};
    return kNames[static_cast<int>(type)];
}

// A little-endian number at any address.
template <typename T>
T load_unaligned(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// Calls f.operator()<integer type>().
template <typename F>
void for_token_type(TokenType type, F&& f) {
    switch (type) {
        case TokenType::kUint8:
            return f.template operator()<std::uint8_t>();
        case TokenType::kInt8:
            return f.template operator()<std::int8_t>();
        case TokenType::kUint16:
            return f.template operator()<std::uint16_t>();
        case TokenType::kInt16:
            return f.template operator()<std::int16_t>();
        case TokenType::kInt32:
            return f.template operator()<std::int32_t>();
        case TokenType::kUint32:
            return f.template operator()<std::uint32_t>();
        case TokenType::kInt64:
            return f.template operator()<std::int64_t>();
    }
}

}  // namespace evenkeel
