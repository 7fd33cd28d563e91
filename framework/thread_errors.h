// An exception that leaves an OpenMP region ends the process without a word. What threads do in one goes through keep(),
// and behind the region rethrow() throws what was thrown first.
#pragma once

#include <exception>
#include <mutex>

namespace evenkeel {

class ThreadErrors {
  public:
    // Runs it. After another thread's error too: others may wait for what it does.
    template <typename Body>
    void keep(Body&& body) noexcept {
        try {
            body();
        } catch (...) {
            const std::lock_guard lock(mutex_);
            if (!first_) first_ = std::current_exception();
        }
    }
    void rethrow() const {
        if (first_) std::rethrow_exception(first_);
    }

  private:
    std::mutex mutex_;
    std::exception_ptr first_;
};

}  // namespace evenkeel
