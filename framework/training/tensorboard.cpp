#include "framework/training/tensorboard.h"

#include <array>
#include <bit>

namespace evenkeel {
namespace {

constexpr std::array<std::uint32_t, 256> make_crc_table() {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
        std::uint32_t crc = i;
        for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1u) != 0 ? 0x82f63b78u : 0u);
        table[i] = crc;
    }
    return table;
}
constexpr std::array<std::uint32_t, 256> kCrcTable = make_crc_table();

std::uint32_t masked_crc(std::string_view bytes) {
    return std::rotr(crc32c(bytes), 15) + 0xa282ead8u;
}

template <typename Integer>
std::string little_endian(Integer value) {
    std::string bytes;
    for (std::size_t i = 0; i < sizeof(value); ++i) bytes += static_cast<char>(value >> (8 * i));
    return bytes;
}

// ---- Protocol buffers: a field is its number and wire type, then its value. ------------------------

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

std::string varint(std::uint64_t value) {
    std::string bytes;
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    return bytes + static_cast<char>(value);
}

std::string tag(int number, WireType type) {
    return varint(static_cast<std::uint64_t>(number) << 3 | static_cast<std::uint64_t>(type));
}

std::string field(int number, std::int64_t value) {
    return tag(number, kVarint) + varint(static_cast<std::uint64_t>(value));
}
std::string field(int number, double value) {
    return tag(number, kFixed64) + little_endian(std::bit_cast<std::uint64_t>(value));
}
std::string field(int number, float value) {
    return tag(number, kFixed32) + little_endian(std::bit_cast<std::uint32_t>(value));
}
std::string field(int number, const std::string& bytes) {
    return tag(number, kBytes) + varint(bytes.size()) + bytes;
}

// message Event
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
// message SessionLog
constexpr int kStatus = 1;
constexpr std::int64_t kStart = 1;
// message Summary, message Summary.Value
constexpr int kValue = 1;
constexpr int kTag = 1, kSimpleValue = 2, kImage = 4;
// message Summary.Image
constexpr int kHeight = 1, kWidth = 2, kColorspace = 3, kEncodedImage = 4;
constexpr std::int64_t kRgb = 3;

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
    std::uint32_t crc = ~0u;
    for (char c : bytes)
        crc = kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xffu] ^ (crc >> 8);
    return ~crc;
}

std::string tfrecord(std::string_view payload) {
    const std::string length = little_endian(static_cast<std::uint64_t>(payload.size()));
    std::string record = length + little_endian(masked_crc(length));
    record += payload;
    return record + little_endian(masked_crc(payload));
}

std::string version_event(double wall_time) {
    return field(kWallTime, wall_time) + field(kFileVersion, std::string("brain.Event:2"));
}

std::string restart_event(double wall_time, std::int64_t step) {
    return field(kWallTime, wall_time) + field(kStep, step) +
           field(kSessionLog, field(kStatus, kStart));
}

std::string scalars_event(double wall_time,
                          std::int64_t step,
                          const std::vector<std::pair<std::string, float>>& scalars) {
    std::string summary;
    for (const auto& [name, value] : scalars) {
        summary += field(kValue, field(kTag, name) + field(kSimpleValue, value));
    }
    return field(kWallTime, wall_time) + field(kStep, step) + field(kSummary, summary);
}

std::string images_event(double wall_time, std::int64_t step, const std::vector<PngImage>& images) {
    std::string summary;
    for (const PngImage& image : images) {
        const std::string pixels = field(kHeight, image.height) + field(kWidth, image.width) +
                                   field(kColorspace, kRgb) + field(kEncodedImage, image.png);
        summary += field(kValue, field(kTag, image.name) + field(kImage, pixels));
    }
    return field(kWallTime, wall_time) + field(kStep, step) + field(kSummary, summary);
}

}  // namespace evenkeel
