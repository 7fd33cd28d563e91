// What memory is being made for, told when it runs out.
#pragma once

#include <string>
#include <string_view>

#include "framework/error.h"

namespace evenkeel {

// Names what the calling thread makes memory for, until the end of the scope; the innermost scope counts. Two
// parts, so that a layer need not join its name and what it does ("layers.3.feed_forward", " (forward)"). Both
// must live as long as the scope.
class MemoryScope {
  public:
    explicit MemoryScope(std::string_view name, std::string_view detail = {})
        : name_(name), detail_(detail), outer_(innermost_) {
        innermost_ = this;
    }
    ~MemoryScope() { innermost_ = outer_; }
    MemoryScope(const MemoryScope&) = delete;
    MemoryScope& operator=(const MemoryScope&) = delete;

    // "" outside of all scopes.
    static std::string current();

  private:
    std::string_view name_, detail_;
    const MemoryScope* outer_;
    static thread_local const MemoryScope* innermost_;
};

// Thrown where a device's memory runs out: kInternal on the CPU, kCuda on a GPU.
class OutOfMemory : public Error {
  public:
    using Error::Error;
};

// Throws it: "[Buffer] out of memory: no room for N bytes for layers.3.feed_forward (forward) beside ...".
[[noreturn]] void throw_out_of_memory(
    ErrorCode code, const char* what, std::size_t bytes, std::size_t held, const std::string& rest);

}  // namespace evenkeel
