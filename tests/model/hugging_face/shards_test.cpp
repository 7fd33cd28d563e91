// Index and shards that disagree, and other hostile folders.
#include "model/hugging_face/shards.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/model/hugging_face/test_folder.h"

namespace evenkeel::hugging_face {
namespace {

namespace fs = std::filesystem;
using testing::replaced;
using testing::TestFolder;
using testing::thrown;

constexpr const char* kIndex = "model.safetensors.index.json";

void expect_refused(const TestFolder& folder, const std::string& reason) {
    const std::string message = thrown([&] { Shards shards(folder.path()); });
    EXPECT_NE(message.find(reason), std::string::npos) << "got: " << message;
    EXPECT_NE(message.find(folder.path()), std::string::npos) << "names no file: " << message;
}

TEST(HuggingFaceShards, OneFileAndSeveralAreTheSameSetOfTensors) {
    const TestFolder one, several;
    one.write_single();
    several.write_shards(3);
    const Shards a(one.path()), b(several.path());
    EXPECT_EQ(a.files().size(), 1u);
    EXPECT_EQ(b.files().size(), 3u);
    EXPECT_EQ(a.bytes(), b.bytes());
    EXPECT_EQ(a.num_tensors(), one.tensors.size());
    for (const std::string& name : a.names()) EXPECT_EQ(a.info(name).shape, b.info(name).shape);
    EXPECT_THROW(a.info("none"), Error);
}

TEST(HuggingFaceShards, AnIndexMayNameTheSingleFileAndLeaveOutTheSize) {
    const TestFolder folder;
    folder.write_single();
    std::string map;
    for (const auto& [name, tensor] : folder.tensors) {
        map += concat(map.empty() ? "" : ",", "\"", name, "\": \"model.safetensors\"");
    }
    folder.files.write(kIndex, "{\"weight_map\": {" + map + "}}");
    EXPECT_EQ(Shards(folder.path()).num_tensors(), folder.tensors.size());
}

TEST(HuggingFaceShards, RefusesNamesThatLeadOutOfTheFolder) {
    for (const char* name :
         {"../model-00001-of-00002.safetensors", "/etc/passwd", "a/b.safetensors", "..", "",
          ".hidden.safetensors", "model-00001-of-00002.bin", "a\\\\b.safetensors",
          "a\\u0000.safetensors"}) {
        const TestFolder folder;
        const std::string index = folder.write_shards(2);
        folder.files.write(kIndex, replaced(index, TestFolder::shard_name(0, 2), name));
        expect_refused(folder, "want the plain name of a .safetensors file");
    }
}

TEST(HuggingFaceShards, RefusesAMissingShard) {
    const TestFolder folder;
    folder.write_shards(2);
    fs::remove(folder.files.file(TestFolder::shard_name(1, 2)));
    expect_refused(folder, "is missing, and the index names it");
}

TEST(HuggingFaceShards, RefusesAShardThatIsNoFile) {
    const TestFolder folder;
    folder.write_shards(2);
    const std::string shard = folder.files.file(TestFolder::shard_name(1, 2));
    fs::remove(shard);
    fs::create_directory(shard);
    expect_refused(folder, "want a file");
    fs::remove(shard);
    ASSERT_EQ(::mkfifo(shard.c_str(), 0600), 0);  // opening it would wait for ever
    expect_refused(folder, "want a file");
}

TEST(HuggingFaceShards, FollowsLinksAsInTheHubsCache) {
    const TestFolder folder, blobs;
    folder.write_shards(2);
    const std::string shard = folder.files.file(TestFolder::shard_name(1, 2));
    fs::rename(shard, blobs.files.file("blob"));
    fs::create_symlink(blobs.files.file("blob"), shard);
    EXPECT_EQ(Shards(folder.path()).num_tensors(), folder.tensors.size());
}

TEST(HuggingFaceShards, NamesALinkThatLeadsToItself) {
    for (const char* name : {"model.safetensors", kIndex}) {
        const TestFolder folder;
        fs::create_symlink(name, folder.files.file(name));
        expect_refused(folder, std::string(name) + ": cannot look at it: ");
    }
}

TEST(HuggingFaceShards, RefusesATensorThatIsInAnotherFileThanTheIndexSays) {
    const TestFolder folder;
    const std::string index = folder.write_shards(2);
    const std::string name = "\"model.embed_tokens.weight\": \"";
    folder.files.write(kIndex, replaced(index, name + TestFolder::shard_name(0, 2),
                                        name + TestFolder::shard_name(1, 2)));
    expect_refused(folder, "but it is in");
}

TEST(HuggingFaceShards, RefusesATensorThatIsNowhereOrNotInTheIndex) {
    const TestFolder folder;
    const std::string index = folder.write_shards(2);
    folder.files.write(kIndex, replaced(index, "model.embed_tokens.weight", "model.other"));
    expect_refused(folder, "\"model.other\" is not in");
    folder.files.write(
        kIndex,
        replaced(index,
                 "\"model.embed_tokens.weight\": \"" + TestFolder::shard_name(0, 2) + "\",\n", ""));
    expect_refused(folder, "which the index does not name");
}

TEST(HuggingFaceShards, RefusesATensorInTwoFiles) {
    TestFolder folder;
    folder.write_shards(2);
    const TestFolder::Tensors twice = {
        {"lm_head.weight", folder.tensor("lm_head.weight")},
        {"model.embed_tokens.weight", folder.tensor("model.embed_tokens.weight")}};
    write_safetensors(folder.files.file(TestFolder::shard_name(1, 2)), twice);
    expect_refused(folder, "holds too");
}

TEST(HuggingFaceShards, ASizeIsTheTensorsOrTheFilesAndNothingElse) {
    const TestFolder folder;
    const std::string index = folder.write_shards(2);
    const std::uint64_t bytes = Shards(folder.path()).bytes();
    const auto with_size = [&](const std::string& size) {
        folder.files.write(kIndex, replaced(index, concat(bytes), size));
    };
    std::uint64_t file_bytes = 0;
    for (std::size_t i = 0; i < 2; ++i) {
        file_bytes += fs::file_size(folder.files.file(TestFolder::shard_name(i, 2)));
    }
    with_size(concat(file_bytes));
    EXPECT_NO_THROW(Shards(folder.path()));
    with_size(concat(bytes + 4));
    expect_refused(folder, concat("total_size: got ", bytes + 4, ", want ", bytes));
    with_size("18446744073709551615");
    expect_refused(folder, "total_size: got 18446744073709551615");
}

TEST(HuggingFaceShards, RefusesAnIndexBesideAModelThatItDoesNotName) {
    const TestFolder folder;
    folder.write_shards(2);
    folder.write_single();
    expect_refused(folder, "holds both");
}

TEST(HuggingFaceShards, OtherFilesDoNotCount) {
    const TestFolder folder;
    folder.write_shards(2);
    folder.files.write("consolidated.safetensors", "not read");
    folder.files.write("pytorch_model.bin", "not read");
    EXPECT_NO_THROW(Shards(folder.path()));
}

TEST(HuggingFaceShards, RefusesOtherFormatsWithTheReason) {
    const TestFolder folder;
    expect_refused(folder, "it has no weights");
    folder.files.write("pytorch_model.bin", "x");
    expect_refused(folder, "pytorch_model.bin is a pickle");
}

TEST(HuggingFaceShards, RefusesAnIndexThatIsNotOne) {
    const TestFolder folder;
    folder.write_shards(2);
    const std::string good = R"({"weight_map": {"a": "b.safetensors"}})";
    const std::pair<std::string, std::string> bad[] = {
        {"", "not a JSON object"},
        {"[]", "not a JSON object"},
        {"{\"weight_map\": {", "not JSON at byte"},
        {"{}", "no weight_map"},
        {"{\"weight_map\": {}}", "an empty weight_map"},
        {"{\"weight_map\": []}", "no object for weight_map"},
        {"{\"weight_map\": 3}", "no object for weight_map"},
        {"{\"weight_map\": {\"a\": 3}}", "no string for \"a\""},
        {"{\"weight_map\": {\"a\": {\"b\": 1}}}", "an object for \"a\""},
        {"{\"weight_map\": {\"a\": [\"b\"]}}", "no string for \"a\""},
        {R"({"weight_map": {"a": "b.safetensors", "a": "b.safetensors"}})", "\"a\" twice"},
        {R"({"weight_map": {"a": "b.safetensors"}, "weight_map": {"a": "b.safetensors"}})",
         "weight_map twice"},
        {R"({"metadata": {"total_size": 1, "total_size": 2}, "weight_map": {"a": "b"}})",
         "total_size twice"},
        {R"({"metadata": {"total_size": -1}, "weight_map": {"a": "b"}})", "no whole number"},
        {R"({"metadata": {"total_size": "17"}, "weight_map": {"a": "b"}})", "no whole number"},
        {R"({"metadata": {"total_size": 1e99}, "weight_map": {"a": "b"}})", "no whole number"},
        {R"({"metadata": {"total_size": 8.5}, "weight_map": {"a": "b"}})", "no whole number"},
        {"{\"metadata\": " + std::string(1000, '[') + std::string(1000, ']') + "}", "nested"},
        {good + std::string(1, '\0'), "not a JSON object"},
        {"{\"x\": \"" + std::string(65 << 20, 'x') + "\"}", "want at most"}};
    for (const auto& [text, reason] : bad) {
        folder.files.write(kIndex, text);
        SCOPED_TRACE(text.substr(0, 60));
        expect_refused(folder, reason);
    }
    std::string many = "{\"weight_map\": {";
    for (int i = 0; i < 600; ++i)
        many += concat(i == 0 ? "" : ",", "\"", i, "\":\"", i, ".safetensors\"");
    folder.files.write(kIndex, many + "}}");
    expect_refused(folder, "more than 512 files");
}

TEST(HuggingFaceShards, ReadsASizeInWhicheverWayItIsWritten) {
    const ShardIndex index = parse_shard_index(
        R"({"metadata": {"total_size": 8.0, "other": {"total_size": 3}}, "weight_map": {"a": "b"}})",
        "index");
    EXPECT_EQ(index.total_size, 8u);
    EXPECT_EQ(index.files.at("a"), "b");
    EXPECT_FALSE(parse_shard_index(
                     R"({"metadata": {"total_size": null}, "weight_map": {"a": "b"}})", "index")
                     .total_size);
}

}  // namespace
}  // namespace evenkeel::hugging_face
