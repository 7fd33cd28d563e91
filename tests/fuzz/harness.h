// What the targets share. A target takes any bytes; whatever it does with them but to return is a finding: a crash, a
// report of a sanitizer, an exception that is no Error, a broken EVENKEEL_FUZZ_CHECK, too much time or memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "framework/error.h"

// libFuzzer's entry point, one in each target.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace evenkeel::fuzz {

// Prints the text and aborts.
[[noreturn]] void fail(const char* file, int line, const std::string& text);

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
    return {reinterpret_cast<const char*>(data), size};
}

// A refusal must be of one of these kinds, and its message fit for a terminal: short, on lines of text.
void check_refusal(const Error& error, std::initializer_list<ErrorCode> codes);

// What `parse` returns, or nothing (false for a `parse` without a result) where it refuses.
template <typename Parse>
auto accepted(std::initializer_list<ErrorCode> codes, Parse&& parse) {
    using Result = decltype(parse());
    if constexpr (std::is_void_v<Result>) {
        try {
            parse();
            return true;
        } catch (const Error& error) {
            check_refusal(error, codes);
            return false;
        }
    } else {
        try {
            return std::optional<Result>(parse());
        } catch (const Error& error) {
            check_refusal(error, codes);
            return std::optional<Result>();
        }
    }
}

// A file in memory that has a path, for parsers that open what they read.
class MemoryFile {
  public:
    MemoryFile();
    ~MemoryFile();
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;

    const std::string& path() const { return path_; }
    void set(std::string_view bytes);

  private:
    int descriptor_;
    std::string path_;
};

}  // namespace evenkeel::fuzz

#define EVENKEEL_FUZZ_CHECK(condition, ...)                                                    \
    do {                                                                                       \
        if (!(condition)) [[unlikely]]                                                         \
            ::evenkeel::fuzz::fail(__FILE__, __LINE__,                                         \
                                   ::evenkeel::concat(#condition __VA_OPT__(, ) __VA_ARGS__)); \
    } while (false)
