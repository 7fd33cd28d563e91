// The text files of a directory, the same ones for training on it and for making files of tokens of it.
#pragma once

#include <string>
#include <vector>

namespace evenkeel {

// Regular files of the directory, not of those in it, in name order. Links are left out: they mostly name a file beside
// them a second time. Throws kIo, as `op`, for a directory that cannot be listed.
std::vector<std::string> regular_files(const std::string& directory, const char* op);

// No text has a NUL byte; files of tokens, archives and indexes have.
bool is_text(const std::string& bytes);
// Of a file, read as far as its first NUL. Throws kIo, as `op`, for one that cannot be read.
bool is_text_file(const std::string& path, const char* op);

// Says how many files of the directory were not read.
void tell_left_out(const std::string& directory, std::size_t files);

}  // namespace evenkeel
