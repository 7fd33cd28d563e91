// A file descriptor that closes itself, and whose every failure is kIo with the path and the system's
// reason ("No space left on device"); a SystemError where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "framework/error.h"

namespace evenkeel {

// What the system refused: not what a file holds.
class SystemError : public Error {
  public:
    SystemError(const std::string& message, int number)
        : Error(ErrorCode::kIo, message), number_(number) {}
    int number() const { return number_; }  // errno

  private:
    int number_;
};

class File {
  public:
    File() = default;
    static File open_for_reading(const std::string& path);
    static File create(const std::string& path);  // or truncates
    static File append(const std::string& path);  // or creates
    ~File();
    File(File&& other) noexcept;
    File& operator=(File&& other) noexcept;

    bool is_open() const { return descriptor_ >= 0; }
    const std::string& path() const { return path_; }
    std::uint64_t size() const;
    int descriptor() const { return descriptor_; }  // -1: not open

    void write(const void* data, std::size_t bytes);
    // All of it behind the file's end, or nothing: what a failed attempt has written is cut off again.
    void append_whole(const void* data, std::size_t bytes);
    // Exactly that many bytes from that offset; callable from several threads.
    void read_at(void* data, std::size_t bytes, std::uint64_t offset) const;
    // What is left from the current position; at most `limit` bytes.
    std::string read_rest(std::uint64_t limit = ~0ull);

    void sync() const;  // to the disk
    void close();       // reports what the destructor must swallow

  private:
    File(const std::string& path, int flags);
    int descriptor_ = -1;
    std::string path_;
};

// Makes renames and new names in a directory durable.
void sync_directory(const std::string& path);
// Directory part of a path, "." when there is none.
std::string parent_directory(const std::string& path);

}  // namespace evenkeel
