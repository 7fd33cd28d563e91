#include "framework/storage/mapped_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "framework/error.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel {
namespace {

using testing::TemporaryDirectory;

std::string text_of(std::span<const std::byte> bytes) {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string fault(const std::function<void()>& f) {
    try {
        f();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo);
        return error.what();
    }
    return "";
}

TEST(MappedFileTest, BytesAreThoseOfTheFile) {
    const TemporaryDirectory directory;
    const MappedFile file(directory.write("a", "0123456789"));
    EXPECT_EQ(file.size(), 10u);
    EXPECT_EQ(text_of(file.all()), "0123456789");
    EXPECT_EQ(text_of(file.bytes(3, 4)), "3456");
    EXPECT_EQ(text_of(file.bytes(10, 0)), "");
    file.release(2, 5);
    EXPECT_EQ(text_of(file.bytes(0, 10)), "0123456789");
}

TEST(MappedFileTest, MovesLeaveOneOwner) {
    const TemporaryDirectory directory;
    MappedFile a(directory.write("a", "first")), b(directory.write("b", "second"));
    a = std::move(b);
    EXPECT_EQ(text_of(a.all()), "second");
    const MappedFile c = std::move(a);
    EXPECT_EQ(text_of(c.all()), "second");
    EXPECT_EQ(c.path(), directory.file("b"));
}

TEST(MappedFileTest, AnEmptyFileHasNoBytes) {
    const TemporaryDirectory directory;
    const MappedFile file(directory.write("a", ""));
    EXPECT_EQ(file.size(), 0u);
    EXPECT_TRUE(file.all().empty());
    file.release(0, 0);
}

TEST(MappedFileTest, FaultsNameTheFile) {
    const TemporaryDirectory directory;
    const std::string path = directory.write("a", "0123456789");
    const auto has = [](const std::string& text, const std::string& part) {
        EXPECT_NE(text.find(part), std::string::npos) << text;
    };
    has(fault([&] { MappedFile(directory.file("none")); }),
        directory.file("none") + ": cannot open");
    has(fault([&] { MappedFile(directory.path()); }), directory.path() + ": got no regular file");
    const MappedFile file(path);
    has(fault([&] { file.bytes(8, 3); }), path + ": got 10 bytes, want 3 from byte 8");
    has(fault([&] { file.bytes(~0ull, 2); }), path + ": got 10 bytes");
    has(fault([&] { file.bytes(2, ~0ull); }), path + ": got 10 bytes");
    std::filesystem::resize_file(path, 5);
    EXPECT_EQ(text_of(file.bytes(0, 5)), "01234");
    has(fault([&] { file.bytes(4, 2); }), path + ": got 5 bytes, where there were 10");
}

}  // namespace
}  // namespace evenkeel
