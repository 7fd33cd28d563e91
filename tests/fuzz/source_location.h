// std::source_location for compilers whose standard library leaves it out for want of one built-in function (clang
// before 16 with GCC's library). Included before every source of a build that needs it.
#pragma once

#include <cstdint>

namespace std {

class source_location {
  public:
    static constexpr source_location current(const char* file = __builtin_FILE(),
                                             const char* function = __builtin_FUNCTION(),
                                             uint_least32_t line = __builtin_LINE()) noexcept {
        source_location here;
        here.file_ = file, here.function_ = function, here.line_ = line;
        return here;
    }
    constexpr const char* file_name() const noexcept { return file_; }
    constexpr const char* function_name() const noexcept { return function_; }
    constexpr uint_least32_t line() const noexcept { return line_; }
    constexpr uint_least32_t column() const noexcept { return 0; }

  private:
    const char *file_ = "", *function_ = "";
    uint_least32_t line_ = 0;
};

}  // namespace std
