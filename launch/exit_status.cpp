#include "launch/exit_status.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace evenkeel {

void note_exit_status(int status) noexcept {
    const char* const path = std::getenv("EVENKEEL_STATUS_FILE");
    if (path == nullptr || *path == '\0') return;
    char host[128] = "", line[256];
    ::gethostname(host, sizeof host - 1);
    const int length = std::snprintf(line, sizeof line, "process %d on %s: exit status %d\n",
                                     static_cast<int>(::getpid()), host, status);
    const int file = ::open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0) return;
    // One write, so that lines of several ranks do not mix.
    const ssize_t written = ::write(file, line, static_cast<std::size_t>(length));
    static_cast<void>(written);
    ::close(file);
}

}  // namespace evenkeel
