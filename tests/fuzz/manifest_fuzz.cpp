// A checkpoint's manifest.json, and the part of it that one rank writes. The bytes are taken as they are, and once more
// with the hash behind them that the parser wants, without which it would look at none but those of the corpus.
#include <filesystem>

#include "framework/storage/hash.h"
#include "framework/storage/manifest.h"
#include "tests/fuzz/harness.h"

namespace evenkeel::fuzz {
namespace {

// No file but those below the directory.
void check_files(const std::vector<ManifestFile>& files) {
    for (std::size_t i = 0; i < files.size(); ++i) {
        const std::string& name = files[i].name;
        EVENKEEL_FUZZ_CHECK(i == 0 || files[i - 1].name < name, ": ", name);
        const std::string joined = (std::filesystem::path("/a/b") / name).lexically_normal();
        EVENKEEL_FUZZ_CHECK(joined == "/a/b/" + name && name != kManifestName && !name.empty() &&
                                name.back() != '/',
                            ": ", name);
    }
}

void parse(const std::string& text) {
    const auto manifest = accepted({ErrorCode::kIo}, [&] { return parse_manifest(text, "m"); });
    if (manifest) {
        EVENKEEL_FUZZ_CHECK(to_text(*manifest) == text);
        EVENKEEL_FUZZ_CHECK(manifest->step >= 0);
        check_files(manifest->files);
    }
    const auto files = accepted({ErrorCode::kIo}, [&] { return parse_manifest_files(text, "m"); });
    if (files) {
        EVENKEEL_FUZZ_CHECK(to_text(*files) == text);
        EVENKEEL_FUZZ_CHECK(!manifest);
        check_files(*files);
    }
}

}  // namespace
}  // namespace evenkeel::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace evenkeel;
    const std::string text(fuzz::text_of(data, size));
    fuzz::parse(text);
    // Behind what stands before the last entry, or behind all of it.
    const std::string body = text.substr(0, text.rfind(",\n  \"xxh64\""));
    fuzz::parse(body + ",\n  \"xxh64\": \"" + hash_text(hash_of(body)) + "\"\n}\n");
    return 0;
}
