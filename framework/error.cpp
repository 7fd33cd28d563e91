#include "framework/error.h"

#include <algorithm>

namespace evenkeel {

int Error::exit_status() const {
    switch (code_) {
        case ErrorCode::kConfig:
        case ErrorCode::kInvalidArgument:
            return 2;
        case ErrorCode::kAlarm:
            return 5;
        default:
            return 1;
    }
}

void throw_error(ErrorCode code, const char* op, const std::string& what) {
    std::string message = concat("[", op, "] ", what);
    // Names from files may hold what a terminal would obey; ends of lines and tabs are the messages' own.
    const auto is_control = [](char c) {
        return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
    };
    std::replace_if(message.begin(), message.end(), is_control, '?');
    throw Error(code, message);
}

}  // namespace evenkeel
