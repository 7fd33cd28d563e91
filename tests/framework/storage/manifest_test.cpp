// Manifests: what they promise of hostile text, and that each way of damaging a directory has a name.
#include "framework/storage/manifest.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "framework/error.h"
#include "framework/storage/checkpoint.h"
#include "framework/storage/hash.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel {
namespace {

namespace fs = std::filesystem;
using testing::TemporaryDirectory;

Manifest example() {
    Manifest manifest;
    manifest.step = 20;
    manifest.after = "step_00000010";
    manifest.layout = R"({"tensor_parallel":2,"data_parallel":1})";
    manifest.files = {{"hugging_face/config.json", 3, 0},
                      {"model.safetensors", 1234567890123, 0xfedcba9876543210},
                      {"trainer.json", 0, 1}};
    return manifest;
}

std::string refusal(const std::string& text) {
    try {
        parse_manifest(text, "DIR/manifest.json");
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kIo) << error.what();
        EXPECT_NE(std::string(error.what()).find("DIR/manifest.json"), std::string::npos)
            << error.what();
        return error.what();
    }
    return "";
}

// A text with a right hash of its own, whatever it says.
std::string sealed(const std::string& body) {
    return body + ",\n  \"xxh64\": \"" + hash_text(hash_of(body)) + "\"\n}\n";
}

TEST(ManifestTest, ComesBackAsItWasWritten) {
    EXPECT_EQ(parse_manifest(to_text(example()), "x"), example());
    EXPECT_EQ(parse_manifest(to_text(Manifest()), "x"), Manifest());
    EXPECT_EQ(parse_manifest_files(to_text(example().files), "x"), example().files);
    EXPECT_EQ(to_text(example()), to_text(example()));
}

TEST(ManifestTest, EveryFlippedBitAndEveryCutIsRefused) {
    const std::string text = to_text(example());
    for (std::size_t i = 0; i < text.size(); ++i) {
        for (int bit = 0; bit < 8; ++bit) {
            std::string bad = text;
            bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
            EXPECT_NE(refusal(bad), "") << "byte " << i << ", bit " << bit;
        }
        EXPECT_NE(refusal(text.substr(0, i)), "") << i << " bytes";
    }
    EXPECT_NE(refusal(text + "\n"), "");
    EXPECT_NE(refusal(" " + text), "");
    EXPECT_NE(refusal(std::string((64 << 20) + 1, ' ')).find("more than"), std::string::npos);
}

// The text of a manifest with one part put in the place of another, and a right hash of its own.
std::string forged(const std::string& part, const std::string& other) {
    Manifest manifest;
    manifest.step = 2;
    manifest.files = {{"a", 1, 0}};
    std::string text = to_text(manifest);
    text.resize(text.find(",\n  \"xxh64\": \""));
    const std::size_t at = text.find(part);
    EXPECT_NE(at, std::string::npos) << part << " is not in " << text;
    return sealed(text.replace(at, part.size(), other));
}

TEST(ManifestTest, NamesLeadNowhereButIntoTheDirectory) {
    const auto with_name = [](const std::string& name) {
        return refusal(forged("\"a\"", "\"" + name + "\""));
    };
    EXPECT_EQ(with_name("a/b.c"), "");
    EXPECT_EQ(with_name("..a"), "");
    for (const char* name : {"", "/etc/passwd", "../a", "a/../../b", "a/..", ".", "./a", "a//b",
                             "a/", "a\\\\b", "a\\u0000b", "a\\nb", "manifest.json"}) {
        EXPECT_NE(with_name(name).find("name that leads elsewhere"), std::string::npos) << name;
    }
    EXPECT_NE(with_name(std::string(2000, 'x')), "");
}

TEST(ManifestTest, OtherThingsThanManifestsAreRefused) {
    EXPECT_EQ(refusal(forged("\"step\": 2", "\"step\": 3")), "");
    EXPECT_NE(refusal(forged("\"format\": 1", "\"format\": 2")).find("newer version"),
              std::string::npos);
    for (const char* step : {"-2", "2.5", "1e3", "18446744073709551615", "\"2\"", "null", "02"}) {
        EXPECT_NE(refusal(forged("\"step\": 2", std::string("\"step\": ") + step)), "") << step;
    }
    for (const char* layout : {"[]", "1", "{", "{\"x\": 1, \"x\": 2}", "{ }"}) {
        EXPECT_NE(refusal(forged("\"layout\": {}", std::string("\"layout\": ") + layout)), "")
            << layout;
    }
    const std::string entry =
        "\"a\": {\n      \"size\": 1,\n      \"xxh64\": \"0000000000000000\"\n    }";
    for (const std::string& other : {std::string("\"a\": 1"), std::string("\"a\": {\"size\": 1}"),
                                     entry + "," + entry, "\"b\": {}, " + entry}) {
        EXPECT_NE(refusal(forged(entry, other)), "") << other;
    }
    EXPECT_NE(refusal(forged("\"size\": 1", "\"size\": -1")), "");
    EXPECT_NE(refusal(forged("\"size\": 1", "\"size\": 1, \"more\": 1")), "");
    EXPECT_NE(refusal(forged("\"step\": 2", "\"step\": 2, \"more\": 1")), "");
    for (const std::string& bad : {sealed("[1"), sealed("{\"format\":1"), sealed("{"), sealed(""),
                                   sealed("{\"x\":" + std::string(200000, '[')), std::string()}) {
        EXPECT_NE(refusal(bad), "") << bad.substr(0, 200);
    }
}

class DirectoryTest : public ::testing::Test {
  protected:
    DirectoryTest() {
        directory_.write("model.safetensors", std::string(3'000'000, 'm'));
        directory_.write("optimizer.safetensors", "optimizer");
        directory_.write("trainer.json", R"({"checkpoint_format": 2})");
        fs::create_directory(directory_.file("hugging_face"));
        directory_.write("hugging_face/config.json", "{}");
        Manifest manifest;
        manifest.step = 7;
        write_manifest(directory_.path(), manifest);
    }
    std::string faults(Check check = Check::kContents, int rank = 0, int ranks = 1) const {
        return to_text("", find_faults(directory_.path(), check, rank, ranks).faults);
    }
    TemporaryDirectory directory_;
};

TEST_F(DirectoryTest, WhatWasWrittenHasNoFaults) {
    EXPECT_TRUE(find_faults(directory_.path(), Check::kContents).faults.empty()) << faults();
    const auto manifest = read_manifest(directory_.path());
    ASSERT_TRUE(manifest.has_value());
    EXPECT_EQ(manifest->step, 7);
    ASSERT_EQ(manifest->files.size(), 4u);
    EXPECT_EQ(manifest->files[0].name, "hugging_face/config.json");
    EXPECT_EQ(manifest->files[1].size, 3'000'000u);
    EXPECT_EQ(manifest->files[1].hash, hash_of(std::string(3'000'000, 'm')));
}

TEST_F(DirectoryTest, FaultsHaveNames) {
    const auto named = [&](const std::string& text) {
        EXPECT_NE(faults().find(text), std::string::npos) << faults() << "\nwant " << text;
    };
    fs::resize_file(directory_.file("model.safetensors"), 2'999'999);
    named("model.safetensors: got 2999999 bytes, want 3000000");
    fs::remove(directory_.file("optimizer.safetensors"));
    named("optimizer.safetensors: is missing");
    directory_.write("hugging_face/config.json", "[]");
    named("hugging_face/config.json: got hash ");
    directory_.write("hugging_face/more.json", "");
    named("hugging_face/more.json: is not in manifest.json");
    directory_.write(".nfs0001", "");
    EXPECT_EQ(faults().find(".nfs"), std::string::npos) << faults();
    fs::create_symlink("model.safetensors", directory_.file("link"));
    named("link: is no regular file");
    fs::remove(directory_.file("link"));
    directory_.write("manifest.json", "{}");
    named("manifest.json");
    fs::remove(directory_.file("manifest.json"));
    named("manifest.json: is missing");
}

TEST_F(DirectoryTest, SizesAloneAreQuickAndRanksDivideTheWork) {
    directory_.write("optimizer.safetensors", "optimizes");
    EXPECT_TRUE(find_faults(directory_.path(), Check::kSizes).faults.empty());
    std::size_t found = 0;
    for (int rank = 0; rank < 3; ++rank) {
        found += find_faults(directory_.path(), Check::kContents, rank, 3).faults.size();
    }
    EXPECT_EQ(found, 1u) << "exactly one of the ranks reads each file";
}

TEST(ShareTest, RanksHashAboutAsManyBytesEach) {
    // As one writer of eight ranks leaves them: two large files, and small ones.
    const std::vector<ManifestFile> of_one = {
        {"a.json", 100, 0}, {"model", 40'000'000, 0}, {"optimizer", 80'000'000, 0}, {"z", 10, 0}};
    const std::vector<int> two = share_of_files(of_one, 2);
    EXPECT_NE(two[1], two[2]);
    EXPECT_EQ(two[0], two[1]) << "small ones go to the rank that has less";
    EXPECT_EQ(share_of_files(of_one, 1), (std::vector<int>{0, 0, 0, 0}));
    // As four writers leave them, ascending by name, for two ranks: every second file would be 4 x 20 to 4 x 10.
    std::vector<ManifestFile> of_four;
    for (int i = 0; i < 4; ++i) {
        of_four.push_back({"a" + std::to_string(i), 10'000'000, 0});
        of_four.push_back({"b" + std::to_string(i), 20'000'000, 0});
    }
    std::uint64_t bytes[2] = {};
    const std::vector<int> share = share_of_files(of_four, 2);
    for (std::size_t i = 0; i < share.size(); ++i) bytes[share[i]] += of_four[i].size;
    EXPECT_EQ(bytes[0], 60'000'000u);
    EXPECT_EQ(bytes[1], 60'000'000u);
    EXPECT_TRUE(share_of_files({}, 3).empty());
}

TEST_F(DirectoryTest, EarlierVersionsHadNoManifest) {
    directory_.write("trainer.json", "{}");
    fs::remove(directory_.file("manifest.json"));
    const CheckpointFaults found = find_faults(directory_.path(), Check::kContents);
    EXPECT_FALSE(found.has_manifest);
    EXPECT_TRUE(found.faults.empty());
}

TEST_F(DirectoryTest, KnownFilesAreNotReadAgainButMustBeThere) {
    write_manifest(directory_.path(), Manifest(), {{"optimizer.safetensors", 9, 5}});
    EXPECT_NE(faults().find("optimizer.safetensors: got hash "), std::string::npos) << faults();
    EXPECT_THROW(write_manifest(directory_.path(), Manifest(), {{"gone", 9, 5}}), Error);
}

}  // namespace
}  // namespace evenkeel
