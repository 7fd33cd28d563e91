// Files of a training run, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace evenkeel::testing {

// Some English-like text of at least `bytes` bytes, the same every time, written to the path.
void write_text(const std::string& path, std::size_t bytes, std::uint64_t seed = 1);

// Every regular file below one directory is below the other, with the same bytes.
::testing::AssertionResult same_files(const std::string& got, const std::string& want);

}  // namespace evenkeel::testing
