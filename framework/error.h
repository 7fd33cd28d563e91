// One error type for the whole project. A message reads "[op] what: got X, want Y"; libraries throw,
// only a program's main decides how the process ends.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace evenkeel {

enum class ErrorCode {
    kInvalidArgument,  // a shape, type or value that the caller can correct
    kConfig,           // a configuration file, flag or combination of settings
    kIo,               // a file or directory
    kMpi,              // a message-passing failure or a wait that ran out of time
    kCuda,
    kNccl,
    kNotBuilt,   // the feature exists, this build lacks it
    kNonFinite,  // NaN or infinity in a loss or gradient
    kAlarm,      // an alarm has ended a run, after a checkpoint
    kInternal,   // a broken invariant of ours
};

class Error : public std::runtime_error {
  public:
    Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
    ErrorCode code() const { return code_; }
    // Exit status of a program that ends because of this error: 2 for usage and configuration, 5 for an alarm,
    // else 1.
    int exit_status() const;

  private:
    ErrorCode code_;
};

// Joins its arguments as an output stream would.
template <typename... Args>
std::string concat(const Args&... args) {
    std::ostringstream out;
    (out << ... << args);
    return out.str();
}

[[noreturn]] void throw_error(ErrorCode code, const char* op, const std::string& what);

}  // namespace evenkeel

// Throws Error(code) with "[op] ..." unless the condition holds. Always on, release builds included.
#define EVENKEEL_CHECK_CODE(condition, code, op, ...)                           \
    do {                                                                        \
        if (!(condition)) [[unlikely]]                                          \
            ::evenkeel::throw_error(code, op, ::evenkeel::concat(__VA_ARGS__)); \
    } while (false)
#define EVENKEEL_CHECK(condition, op, ...) \
    EVENKEEL_CHECK_CODE(condition, ::evenkeel::ErrorCode::kInvalidArgument, op, __VA_ARGS__)
