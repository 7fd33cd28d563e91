#include "tests/gpu_emulator/fatbin.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace gpu_emulator {
namespace {

using Kind = FatbinEntry::Kind;

template <typename T>
void append(std::string& bytes, T value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes.append(raw, sizeof value);
}

// An entry as nvcc lays it out: a 64-byte header, then the payload, padded to 8 bytes.
std::string entry(std::uint16_t kind,
                  std::uint32_t arch,
                  std::string payload,
                  std::uint32_t compressed_bytes = 0) {
    payload.resize((payload.size() + 8) / 8 * 8);
    std::string bytes;
    append<std::uint16_t>(bytes, kind);
    append<std::uint16_t>(bytes, 0x101);
    append<std::uint32_t>(bytes, 64);
    append<std::uint64_t>(bytes, payload.size());
    append<std::uint32_t>(bytes, compressed_bytes);
    append<std::uint32_t>(bytes, 0);
    append<std::uint32_t>(bytes, 9 << 16);
    append<std::uint32_t>(bytes, arch);
    bytes.resize(64);
    return bytes + payload;
}

std::string fatbin(const std::string& entries) {
    std::string bytes;
    append<std::uint32_t>(bytes, 0xba55ed50);
    append<std::uint16_t>(bytes, 1);
    append<std::uint16_t>(bytes, 16);
    append<std::uint64_t>(bytes, entries.size());
    return bytes + entries;
}

TEST(Fatbin, ListsEntriesBehindTheWrapper) {
    const std::string data = fatbin(entry(1, 80, "\n\n.version 9.0") +
                                    entry(2, 80,
                                          "\x7f"
                                          "ELF") +
                                    entry(1, 90, "newer"));
    std::string wrapper;
    append<std::uint32_t>(wrapper, 0x466243b1);
    append<std::uint32_t>(wrapper, 1);
    append<const void*>(wrapper, data.data());
    append<const void*>(wrapper, nullptr);
    ASSERT_TRUE(is_fatbin(wrapper.data()));
    const auto entries = fatbin_entries(wrapper.data());
    ASSERT_EQ(entries.size(), 3u);
    EXPECT_EQ(entries[0].kind, Kind::kPtx);
    EXPECT_EQ(entries[0].arch, 80);
    EXPECT_EQ(entries[0].bytes, "\n\n.version 9.0");
    EXPECT_EQ(entries[1].kind, Kind::kCubin);
    EXPECT_EQ(entries[1].bytes.size(), 8u);
    EXPECT_EQ(entries[2].arch, 90);
}

TEST(Fatbin, TakesTheNewestPtxThatIsNotNewerThanTheDevice) {
    const std::string data = fatbin(entry(2, 80, "cubin") + entry(1, 75, "old") +
                                    entry(1, 90, "new") + entry(1, 80, "80"));
    const auto entries = fatbin_entries(data.data());
    EXPECT_EQ(choose_ptx(entries, 80), "80");
    EXPECT_EQ(choose_ptx(entries, 86), "80");
    EXPECT_EQ(choose_ptx(entries, 90), "new");
    EXPECT_EQ(choose_ptx(entries, 75), "old");
    EXPECT_THROW(choose_ptx(entries, 70), std::runtime_error);
}

void expect_refused(const std::string& data, const std::string& reason) {
    try {
        fatbin_entries(data.data());
        ADD_FAILURE() << "not refused, want a message with \"" << reason << '"';
    } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    }
}

TEST(Fatbin, RefusesWhatItCannotRead) {
    expect_refused(fatbin(entry(1, 80, "squeezed", 5)), "--no-compress");
    expect_refused(fatbin(entry(7, 80, "what")), "unknown kind 7");
    expect_refused(".version 9.0", "wrong magic");
    EXPECT_FALSE(is_fatbin(""));
    EXPECT_FALSE(is_fatbin(".version 9.0"));
}

TEST(Fatbin, RefusesAnEntryThatReachesPastTheEnd) {
    std::string data = fatbin(entry(1, 80, "text"));
    const std::uint64_t bytes = 1000;
    std::memcpy(data.data() + 16 + 8, &bytes, sizeof bytes);
    expect_refused(data, "past its end");
}

}  // namespace
}  // namespace gpu_emulator
