#include "framework/storage/json_depth.h"

#include "framework/error.h"

namespace evenkeel {

bool is_nested_deeper(std::string_view json, int depth) {
    int at = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < json.size(); ++i) {
        const char c = json[i];
        if (c == '"') {
            in_string = !in_string;
        } else if (in_string) {
            if (c == '\\') ++i;  // what follows ends no string
        } else if (c == '[' || c == '{') {
            if (++at > depth) return true;
        } else if (c == ']' || c == '}') {
            --at;
        }
    }
    return false;
}

void check_json_depth(const char* op, std::string_view json, const std::string& origin) {
    EVENKEEL_CHECK_CODE(!is_nested_deeper(json), ErrorCode::kIo, op, origin,
                        ": got objects and lists nested more than ", kMaxJsonDepth, " deep");
}

}  // namespace evenkeel
