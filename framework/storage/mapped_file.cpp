#include "framework/storage/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "framework/error.h"

namespace evenkeel {

MappedFile::MappedFile(const std::string& path) {
    std::error_code error;
    const auto status = std::filesystem::status(path, error);
    // Opening a pipe would wait for who writes it.
    EVENKEEL_CHECK_CODE(
        !std::filesystem::exists(status) || std::filesystem::is_regular_file(status),
        ErrorCode::kIo, "mapped file", path, ": got no regular file, want one");
    file_ = File::open_for_reading(path);
    size_ = file_.size();
    if (size_ == 0) return;  // which can't be mapped
    void* const data = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file_.descriptor(), 0);
    EVENKEEL_CHECK_CODE(data != MAP_FAILED, ErrorCode::kIo, "mapped file", path, ": cannot map ",
                        size_, " bytes: ", std::strerror(errno));
    data_ = static_cast<std::byte*>(data);
    expect_in_order(false);
}

MappedFile::~MappedFile() { unmap(); }

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
    std::swap(file_, other.file_);
    std::swap(size_, other.size_);
    std::swap(data_, other.data_);
    return *this;
}

void MappedFile::unmap() {
    if (data_ != nullptr) ::munmap(data_, size_);
    data_ = nullptr;
}

std::span<const std::byte> MappedFile::bytes(std::uint64_t offset, std::uint64_t bytes) const {
    EVENKEEL_CHECK_CODE(offset <= size_ && bytes <= size_ - offset, ErrorCode::kIo, "mapped file",
                        path(), ": got ", size_, " bytes, want ", bytes, " from byte ", offset);
    if (bytes == 0) return {};
    const std::uint64_t now = file_.size();
    EVENKEEL_CHECK_CODE(offset + bytes <= now, ErrorCode::kIo, "mapped file", path(), ": got ", now,
                        " bytes, where there were ", size_, " when it was opened");
    return {data_ + offset, bytes};
}

void MappedFile::release(std::uint64_t offset, std::uint64_t bytes) const {
    const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    const std::uint64_t begin = offset / page * page;
    const std::uint64_t end = std::min(offset + bytes, size_);
    if (begin < end) ::madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

void MappedFile::expect_in_order(bool in_order) const {
    if (data_ != nullptr) ::madvise(data_, size_, in_order ? MADV_SEQUENTIAL : MADV_RANDOM);
}

}  // namespace evenkeel
