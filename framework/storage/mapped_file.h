// A file that is read where the system keeps it: what is looked at is brought in page by page, and a file of any
// size opens at once. Failures are kIo and name the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "framework/storage/file.h"

namespace evenkeel {

class MappedFile {
  public:
    MappedFile() = default;
    // Throws also for what is no regular file. The file may be empty.
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(MappedFile&& other) noexcept;
    MappedFile& operator=(MappedFile&& other) noexcept;

    const std::string& path() const { return file_.path(); }
    std::uint64_t size() const { return size_; }  // when it was opened

    // The bytes [offset, offset + bytes), to be read before the next release. Throws when the file has become
    // shorter than that since it was opened: reading what is gone would end the process.
    std::span<const std::byte> bytes(std::uint64_t offset, std::uint64_t bytes) const;
    std::span<const std::byte> all() const { return bytes(0, size_); }
    // Gives the pages of these bytes back, so that a walk through a long file doesn't make the process grow. They
    // may be read again. From any thread, also while others read: they find the same bytes.
    void release(std::uint64_t offset, std::uint64_t bytes) const;
    // Whether reads come in order, or from anywhere, as at first: the system then reads nothing ahead.
    void expect_in_order(bool in_order) const;

  private:
    void unmap();
    File file_;
    std::uint64_t size_ = 0;
    std::byte* data_ = nullptr;
};

}  // namespace evenkeel
