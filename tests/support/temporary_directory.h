// A directory of a test's own, gone with its contents at the end of its scope.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "framework/error.h"

namespace evenkeel::testing {

class TemporaryDirectory {
  public:
    TemporaryDirectory() : path_(::testing::TempDir() + "evenkeel_XXXXXX") {
        EVENKEEL_CHECK_CODE(::mkdtemp(path_.data()) != nullptr, ErrorCode::kIo, "test",
                            "cannot make ", path_);
    }
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

    const std::string& path() const { return path_; }
    std::string file(const std::string& name) const { return path_ + "/" + name; }
    // Returns the file's path.
    std::string write(const std::string& name, const std::string& contents) const {
        std::ofstream(file(name), std::ios::binary) << contents;
        return file(name);
    }

  private:
    std::string path_;
};

}  // namespace evenkeel::testing
