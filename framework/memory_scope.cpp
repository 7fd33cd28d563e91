#include "framework/memory_scope.h"

namespace evenkeel {

thread_local const MemoryScope* MemoryScope::innermost_ = nullptr;

std::string MemoryScope::current() {
    return innermost_ == nullptr ? "" : concat(innermost_->name_, innermost_->detail_);
}

void throw_out_of_memory(ErrorCode code,
                         const char* what,
                         std::size_t bytes,
                         std::size_t held,
                         const std::string& rest) {
    const std::string purpose = MemoryScope::current();
    throw OutOfMemory(code, concat("[Buffer] ", what, ": no room for ", bytes, " bytes",
                                   purpose.empty() ? "" : " for ", purpose, " beside the ", held,
                                   " already held", rest));
}

}  // namespace evenkeel
