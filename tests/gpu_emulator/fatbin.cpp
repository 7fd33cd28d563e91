#include "tests/gpu_emulator/fatbin.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace gpu_emulator {
namespace {

constexpr std::uint32_t kWrapperMagic = 0x466243b1;
constexpr std::uint32_t kFatbinMagic = 0xba55ed50;

struct Wrapper {
    std::uint32_t magic, version;
    const void* fatbin;
    const void* file_name;
};

struct Header {
    std::uint32_t magic;
    std::uint16_t version, header_bytes;
    std::uint64_t bytes;  // of the entries that follow
};

struct EntryHeader {
    std::uint16_t kind, version;
    std::uint32_t header_bytes;
    std::uint64_t payload_bytes;
    std::uint32_t compressed_bytes, reserved;  // 0: not compressed
    std::uint16_t minor, major;
    std::uint32_t arch;
};

template <typename T>
T read_at(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

std::string_view without_padding(std::string_view text) {
    const std::size_t end = text.find('\0');
    return text.substr(0, end);
}

}  // namespace

bool is_fatbin(const void* data) {
    // Text may be shorter than a magic number, which has no zero bytes.
    const auto* text = static_cast<const char*>(data);
    return std::strncmp(text, reinterpret_cast<const char*>(&kWrapperMagic), 4) == 0 ||
           std::strncmp(text, reinterpret_cast<const char*>(&kFatbinMagic), 4) == 0;
}

std::vector<FatbinEntry> fatbin_entries(const void* data) {
    if (!is_fatbin(data)) throw std::runtime_error("not a fat binary: wrong magic number");
    const auto* at = static_cast<const std::byte*>(data);
    if (read_at<std::uint32_t>(at) == kWrapperMagic) {
        at = static_cast<const std::byte*>(read_at<Wrapper>(at).fatbin);
    }
    const auto header = read_at<Header>(at);
    if (header.magic != kFatbinMagic || header.version != 1) {
        throw std::runtime_error("a fat binary of an unknown version");
    }
    at += header.header_bytes;
    const std::byte* const end = at + header.bytes;
    std::vector<FatbinEntry> entries;
    while (at < end) {
        const auto entry = read_at<EntryHeader>(at);
        const auto left = static_cast<std::uint64_t>(end - at);
        if (entry.header_bytes < sizeof(EntryHeader) || entry.header_bytes > left ||
            entry.payload_bytes > left - entry.header_bytes) {
            throw std::runtime_error("a damaged fat binary: an entry reaches past its end");
        }
        if (entry.kind != 1 && entry.kind != 2) {
            throw std::runtime_error("a fat binary with an entry of unknown kind " +
                                     std::to_string(entry.kind));
        }
        if (entry.compressed_bytes != 0) {
            throw std::runtime_error(
                "a compressed fat binary: compile with nvcc --no-compress for the emulator");
        }
        std::string_view bytes(reinterpret_cast<const char*>(at + entry.header_bytes),
                               entry.payload_bytes);
        const bool is_ptx = entry.kind == 1;
        entries.push_back({is_ptx ? FatbinEntry::Kind::kPtx : FatbinEntry::Kind::kCubin,
                           static_cast<int>(entry.arch), is_ptx ? without_padding(bytes) : bytes});
        at += entry.header_bytes + entry.payload_bytes;
    }
    return entries;
}

std::string_view choose_ptx(const std::vector<FatbinEntry>& entries, int arch) {
    const FatbinEntry* best = nullptr;
    for (const FatbinEntry& entry : entries) {
        if (entry.kind != FatbinEntry::Kind::kPtx || entry.arch > arch) continue;
        if (best == nullptr || entry.arch > best->arch) best = &entry;
    }
    if (best == nullptr) {
        throw std::runtime_error("no PTX for compute capability " + std::to_string(arch / 10) +
                                 "." + std::to_string(arch % 10) + " or an older one");
    }
    return best->bytes;
}

}  // namespace gpu_emulator
