#include "framework/log.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "framework/error.h"

namespace evenkeel {
namespace {

constexpr const char* kEraseLine = "\r\x1b[K";

std::atomic<int> log_rank{0};
std::atomic<int> log_size{1};

std::mutex mutex;
bool progress_is_open = false;  // the cursor stands behind a progress line

// One write per message, so that lines of several ranks do not mix.
void write_all(const std::string& text) {
    std::size_t done = 0;
    while (done < text.size()) {
        const ssize_t count = ::write(STDERR_FILENO, text.data() + done, text.size() - done);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return;  // nobody reads; a message is not worth ending for
        done += static_cast<std::size_t>(count);
    }
}

void write_line(const char* level, const std::string& message) {
    const int size = log_size.load();
    const std::string rank = size > 1 ? concat("rank ", log_rank.load(), ": ") : "";
    const std::lock_guard lock(mutex);
    write_all(concat(progress_is_open ? kEraseLine : "", rank, level, message, "\n"));
    progress_is_open = false;
}

// Open MPI hands its processes pseudo-terminals or pipes whatever it writes to itself; where it writes
// to is what the reader sees.
bool launcher_writes_to_terminal() {
    char target[256];
    const std::string link = concat("/proc/", ::getppid(), "/fd/", STDERR_FILENO);
    const ssize_t length = ::readlink(link.c_str(), target, sizeof(target) - 1);
    if (length <= 0) return false;
    target[length] = '\0';
    return std::strncmp(target, "/dev/pts/", 9) == 0 || std::strncmp(target, "/dev/tty", 8) == 0;
}

}  // namespace

void set_log_rank(int rank, int size) {
    log_rank = rank;
    log_size = size;
}

bool log_to_terminal() {
    const char* type = std::getenv("TERM");
    if (type == nullptr || std::strcmp(type, "dumb") == 0) return false;
    if (std::getenv("OMPI_COMM_WORLD_RANK") != nullptr) return launcher_writes_to_terminal();
    return ::isatty(STDERR_FILENO) == 1;
}

void log_info(const std::string& message) {
    if (log_rank.load() != 0) return;
    const std::lock_guard lock(mutex);
    write_all(concat(progress_is_open ? kEraseLine : "", message, "\n"));
    progress_is_open = false;
}

void log_warning(const std::string& message) { write_line("warning: ", message); }
void log_error(const std::string& message) { write_line("error: ", message); }

void log_progress(const std::string& message, bool last) {
    if (log_rank.load() != 0) return;
    const bool rewrite = log_to_terminal();
    const std::lock_guard lock(mutex);
    write_all(concat(rewrite ? kEraseLine : "", message, rewrite && !last ? "" : "\n"));
    progress_is_open = rewrite && !last;
}

}  // namespace evenkeel
