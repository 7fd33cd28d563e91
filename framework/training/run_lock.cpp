#include "framework/training/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "framework/error.h"
#include "framework/log.h"

namespace evenkeel {
namespace {

// "process 123 on host", as the one that holds the lock wrote it.
std::string holder(int file) {
    char text[256];
    const ssize_t count = ::pread(file, text, sizeof text, 0);
    const std::string line(text, count > 0 ? static_cast<std::size_t>(count) : 0);
    return line.empty() ? "another process" : line.substr(0, line.find('\n'));
}

std::string self() {
    char host[128] = "";
    ::gethostname(host, sizeof host - 1);
    return concat("process ", ::getpid(), " on ", host, "\n");
}

}  // namespace

RunLock::RunLock(const std::string& directory, const char* op, const char* setting) {
    const std::string path = directory + "/lock";
    // Written to, because NFS locks for writing only what is open for it.
    file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    EVENKEEL_CHECK_CODE(file_ >= 0, ErrorCode::kIo, op, setting, ": cannot write ", path, ": ",
                        std::strerror(errno));
    int result = -1;
    do {
        result = ::flock(file_, LOCK_EX | LOCK_NB);
    } while (result != 0 && errno == EINTR);
    if (result != 0 && errno == EWOULDBLOCK) {
        const std::string other = holder(file_);
        ::close(file_);
        file_ = -1;
        throw_error(ErrorCode::kConfig, op,
                    concat(setting, ": got ", directory, ", which ", other,
                           " is writing to; want a directory of this run's own"));
    }
    if (result != 0) {
        log_warning(concat(path, ": no lock (", std::strerror(errno),
                           "); two runs in one directory would not be noticed"));
        return;
    }
    const std::string text = self();
    // For people to read; the lock does without it.
    if (::ftruncate(file_, 0) == 0) {
        const ssize_t written = ::pwrite(file_, text.data(), text.size(), 0);
        static_cast<void>(written);
    }
}

RunLock::~RunLock() {
    if (file_ >= 0) ::close(file_);
}

}  // namespace evenkeel
