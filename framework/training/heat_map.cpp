#include "framework/training/heat_map.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "framework/error.h"

namespace evenkeel {
namespace {

// PNG's own checksum (ISO/IEC 15948, annex D): CRC-32 with the polynomial of IEEE 802.3.
std::uint32_t crc32(std::string_view bytes) {
    std::uint32_t crc = ~0u;
    for (const char c : bytes) {
        crc ^= static_cast<unsigned char>(c);
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0xedb88320u : 0u);
    }
    return ~crc;
}

// The checksum of zlib streams (RFC 1950, section 8.2).
std::uint32_t adler32(std::string_view bytes) {
    std::uint32_t a = 1, b = 0;
    for (const char c : bytes) {
        a = (a + static_cast<unsigned char>(c)) % 65521;
        b = (b + a) % 65521;
    }
    return b << 16 | a;
}

std::string big_endian(std::uint32_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
    return bytes;
}

std::string chunk(const char* type, const std::string& data) {
    const std::string body = type + data;
    return big_endian(static_cast<std::uint32_t>(data.size())) + body + big_endian(crc32(body));
}

// A zlib stream of blocks that are stored and not compressed (RFC 1951, section 3.2.4).
std::string stored(std::string_view data) {
    constexpr std::size_t kMostOfABlock = 65535;
    std::string stream = "\x78\x01";
    for (std::size_t at = 0; at == 0 || at < data.size(); at += kMostOfABlock) {
        const std::string_view block = data.substr(at, kMostOfABlock);
        const auto length = static_cast<std::uint16_t>(block.size());
        const auto inverse = static_cast<std::uint16_t>(~length);
        stream += static_cast<char>(at + kMostOfABlock >= data.size());  // the last one?
        for (const std::uint16_t number : {length, inverse}) {
            stream += static_cast<char>(number & 0xff);
            stream += static_cast<char>(number >> 8);
        }
        stream += block;
    }
    return stream + big_endian(adler32(data));
}

constexpr int kColors = 255;
constexpr char kNoNumber = static_cast<char>(kColors);  // the palette's last entry

// Even in lightness, and told apart by those who confuse red and green: straight lines between five colours.
std::string palette() {
    constexpr std::array<std::array<int, 3>, 5> kStops = {
        {{58, 12, 84}, {55, 88, 140}, {33, 145, 140}, {105, 201, 97}, {250, 230, 50}}};
    std::string bytes;
    for (int color = 0; color < kColors; ++color) {
        const double at = color * (kStops.size() - 1.0) / (kColors - 1);
        const auto stop = std::min(static_cast<std::size_t>(at), kStops.size() - 2);
        for (int part = 0; part < 3; ++part) {
            const double from = kStops[stop][part], to = kStops[stop + 1][part];
            const double value = from + (to - from) * (at - static_cast<double>(stop));
            bytes += static_cast<char>(std::lround(value));
        }
    }
    return bytes + std::string(3, static_cast<char>(190));
}

char color_of(float value, float low, float high) {
    if (!std::isfinite(value)) return kNoNumber;
    const double share = high > low ? (static_cast<double>(value) - low) / (high - low) : 0.0;
    return static_cast<char>(std::lround(std::clamp(share, 0.0, 1.0) * (kColors - 1)));
}

}  // namespace

std::string heat_map_png(const MetricTable& table, float low, float high) {
    EVENKEEL_CHECK(table.rows > 0 && table.columns > 0, "heat_map_png", table.name, ": got ",
                   table.rows, " x ", table.columns, " cells, want one or more");
    std::string lines;
    for (std::int64_t row = 0; row < table.rows; ++row) {
        lines += '\0';  // not filtered
        for (std::int64_t column = 0; column < table.columns; ++column) {
            lines += color_of(table.values[row * table.columns + column], low, high);
        }
    }
    const std::string header =
        big_endian(static_cast<std::uint32_t>(table.columns)) +
        big_endian(static_cast<std::uint32_t>(table.rows)) +
        std::string("\x08\x03\x00\x00\x00", 5);  // bytes that index a palette
    return std::string("\x89PNG\r\n\x1a\n") + chunk("IHDR", header) + chunk("PLTE", palette()) +
           chunk("IDAT", stored(lines)) + chunk("IEND", "");
}

}  // namespace evenkeel
