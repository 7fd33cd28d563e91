#include "framework/storage/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "framework/error.h"

namespace evenkeel {
namespace {

[[noreturn]] void fail(const std::string& path, const char* action) {
    const int number = errno;
    throw SystemError(concat("[file] ", path, ": cannot ", action, ": ", std::strerror(number)),
                      number);
}

}  // namespace

File::File(const std::string& path, int flags) : path_(path) {
    do {
        descriptor_ = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) fail(path, (flags & O_CREAT) != 0 ? "create" : "open");
}

File File::open_for_reading(const std::string& path) { return File(path, O_RDONLY); }
File File::create(const std::string& path) { return File(path, O_WRONLY | O_CREAT | O_TRUNC); }
File File::append(const std::string& path) { return File(path, O_WRONLY | O_CREAT | O_APPEND); }

File::~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

File& File::operator=(File&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(path_, other.path_);
    return *this;
}

std::uint64_t File::size() const {
    struct stat status;
    if (::fstat(descriptor_, &status) != 0) fail(path_, "examine");
    return static_cast<std::uint64_t>(status.st_size);
}

void File::write(const void* data, std::size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t count = ::write(descriptor_, from, bytes);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) fail(path_, "write");
        from += count;
        bytes -= static_cast<std::size_t>(count);
    }
}

void File::append_whole(const void* data, std::size_t bytes) {
    const off_t end = ::lseek(descriptor_, 0, SEEK_END);
    try {
        write(data, bytes);
    } catch (const Error&) {
        const bool is_cut = end >= 0 && ::ftruncate(descriptor_, end) == 0;
        if (is_cut) ::lseek(descriptor_, end, SEEK_SET);
        throw;
    }
}

void File::read_at(void* data, std::size_t bytes, std::uint64_t offset) const {
    char* to = static_cast<char*>(data);
    while (bytes > 0) {
        const ssize_t count = ::pread(descriptor_, to, bytes, static_cast<off_t>(offset));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) fail(path_, "read");
        EVENKEEL_CHECK_CODE(count > 0, ErrorCode::kIo, "file", path_, ": ends at byte ", offset,
                            ", want ", bytes, " more");
        to += count;
        offset += static_cast<std::uint64_t>(count);
        bytes -= static_cast<std::size_t>(count);
    }
}

std::string File::read_rest(std::uint64_t limit) {
    constexpr std::size_t kPiece = 1 << 20;
    std::string text;
    while (text.size() < limit) {
        const std::size_t have = text.size();
        const auto want = static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, limit - have));
        text.resize(have + want);
        const ssize_t count = ::read(descriptor_, text.data() + have, want);
        if (count < 0 && errno != EINTR) fail(path_, "read");
        text.resize(have + static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
        if (count == 0) break;
    }
    return text;
}

void File::sync() const {
    if (::fsync(descriptor_) != 0) fail(path_, "flush");
}

void File::close() {
    const int descriptor = std::exchange(descriptor_, -1);
    if (descriptor >= 0 && ::close(descriptor) != 0 && errno != EINTR) fail(path_, "close");
}

void sync_directory(const std::string& path) { File::open_for_reading(path).sync(); }

std::string parent_directory(const std::string& path) {
    const std::string parent = std::filesystem::path(path).parent_path().string();
    return parent.empty() ? "." : parent;
}

}  // namespace evenkeel
