#include "framework/error.h"

namespace evenkeel {

int Error::exit_status() const {
    return code_ == ErrorCode::kConfig || code_ == ErrorCode::kInvalidArgument ? 2 : 1;
}

void throw_error(ErrorCode code, const char* op, const std::string& what) {
    throw Error(code, concat("[", op, "] ", what));
}

}  // namespace evenkeel
