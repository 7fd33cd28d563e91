#include "tests/fuzz/harness.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace evenkeel::fuzz {

void fail(const char* file, int line, const std::string& text) {
    std::fprintf(stderr, "%s:%d: does not hold: %s\n", file, line, text.c_str());
    std::abort();
}

void check_refusal(const Error& error, std::initializer_list<ErrorCode> codes) {
    constexpr std::size_t kLongest = 4096;
    const std::string_view text = error.what();
    const bool expected = std::find(codes.begin(), codes.end(), error.code()) != codes.end();
    EVENKEEL_FUZZ_CHECK(expected, ": code ", static_cast<int>(error.code()), ": ", text);
    EVENKEEL_FUZZ_CHECK(text.size() <= kLongest, ": ", text.size(), " bytes: ", text);
    const bool printable = std::none_of(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
    });
    EVENKEEL_FUZZ_CHECK(printable, ": ", text);
}

MemoryFile::MemoryFile() : descriptor_(::memfd_create("fuzz", MFD_CLOEXEC)) {
    EVENKEEL_FUZZ_CHECK(descriptor_ >= 0, ": no file in memory");
    path_ = concat("/proc/self/fd/", descriptor_);
}

MemoryFile::~MemoryFile() { ::close(descriptor_); }

void MemoryFile::set(std::string_view bytes) {
    const bool sized = ::ftruncate(descriptor_, static_cast<off_t>(bytes.size())) == 0;
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), 0);
    EVENKEEL_FUZZ_CHECK(sized && written == static_cast<ssize_t>(bytes.size()), ": no memory");
}

}  // namespace evenkeel::fuzz
