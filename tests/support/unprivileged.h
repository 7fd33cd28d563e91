// Drops root's rights for a scope: root may read and write everything, so tests of refused access need to
// be somebody else.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace evenkeel::testing {

class Unprivileged {
  public:
    // Takes the directory along.
    explicit Unprivileged(const std::string& directory) : user_(::geteuid()) {
        constexpr uid_t kNobody = 65534;
        holds_ = user_ != 0 ||
                 (::chown(directory.c_str(), kNobody, ::getegid()) == 0 && ::seteuid(kNobody) == 0);
    }
    ~Unprivileged() {
        if (::seteuid(user_) != 0) std::abort();
    }
    Unprivileged(const Unprivileged&) = delete;
    Unprivileged& operator=(const Unprivileged&) = delete;

    bool holds() const { return holds_; }

  private:
    uid_t user_;
    bool holds_ = false;
};

}  // namespace evenkeel::testing
