// Safetensors files written byte by byte, for the tests of their reader.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>

#include "framework/error.h"
#include "framework/storage/safetensors.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel::testing {

inline std::string little_endian(std::uint64_t value) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &value, 8);
    return bytes;
}

inline std::string file_of(const std::string& header, std::size_t data_bytes) {
    return little_endian(header.size()) + header + std::string(data_bytes, '\x01');
}

inline std::string entry(const std::string& name,
                         const std::string& dtype,
                         const std::string& shape,
                         const std::string& offsets) {
    return concat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[", shape,
                  "],\"data_offsets\":[", offsets, "]}");
}

// A folder of its own, with one file in it.
class SafetensorsTest : public ::testing::Test {
  protected:
    std::string write(const std::string& bytes) const {
        const std::string path = directory_.file("file.safetensors");
        std::remove(path.c_str());  // truncating it would make some file systems flush
        std::ofstream(path, std::ios::binary) << bytes;
        return path;
    }
    // "" when the file is accepted.
    std::string fault(const std::string& bytes) const {
        const std::string path = write(bytes);
        try {
            const SafetensorsReader reader(path);
        } catch (const Error& e) {
            EXPECT_EQ(e.code(), ErrorCode::kIo) << e.what();
            EXPECT_NE(std::string(e.what()).find(path), std::string::npos) << e.what();
            return e.what();
        }
        return "";
    }
    std::string header_fault(const std::string& header, std::size_t data_bytes) const {
        return fault(file_of(header, data_bytes));
    }
    TemporaryDirectory directory_;
};

#define EXPECT_FAULT(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

}  // namespace evenkeel::testing
