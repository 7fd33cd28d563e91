#include "framework/error.h"

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
    throw Error(code, concat("[", op, "] ", what));
}

}  // namespace evenkeel
