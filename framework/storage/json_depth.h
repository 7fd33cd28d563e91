// How deep JSON text is nested, before it is parsed: values are copied, compared and written by functions that call
// themselves once a level, so that text of a hundred thousand brackets would take all of the stack.
#pragma once

#include <string>
#include <string_view>

namespace evenkeel {

// Far more than any file of this project has.
inline constexpr int kMaxJsonDepth = 64;

// Whether objects and lists stand more than `depth` deep in one another. Takes any text; of what is JSON the answer
// is exact.
bool is_nested_deeper(std::string_view json, int depth = kMaxJsonDepth);
// Throws kIo, naming `origin`, for text that is.
void check_json_depth(const char* op, std::string_view json, const std::string& origin);

}  // namespace evenkeel
