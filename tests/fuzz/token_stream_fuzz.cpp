// A .bin file without an .idx: of llm.c with its header, or of nanoGPT.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "framework/data/token_stream.h"
#include "tests/fuzz/harness.h"

namespace evenkeel::fuzz {
namespace {

// A name that ends in .bin for a file in memory.
class BinFile {
  public:
    BinFile() {
        std::string pattern = std::filesystem::temp_directory_path() / "fuzz_XXXXXX";
        EVENKEEL_FUZZ_CHECK(::mkdtemp(pattern.data()) != nullptr, ": ", pattern);
        directory_ = pattern;
        std::filesystem::create_symlink(memory_.path(), path());
    }
    ~BinFile() { std::filesystem::remove_all(directory_); }
    std::string path() const { return directory_ + "/a.bin"; }
    void set(std::string_view bytes) { memory_.set(bytes); }

  private:
    MemoryFile memory_;
    std::string directory_;
};

void check_stream(const TokenStream& stream, std::size_t size) {
    const std::int64_t count = stream.num_tokens();
    const auto ids_bytes = static_cast<std::uint64_t>(count) * size_of(stream.type());
    const std::uint64_t header = stream.format() == TokenFormat::kLlmC ? 1024 : 0;
    EVENKEEL_FUZZ_CHECK(header + ids_bytes == size, ": ", count, " tokens in ", size);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    EVENKEEL_FUZZ_CHECK(!accepted({ErrorCode::kInvalidArgument}, [&] { stream.read(1, ids); }) ||
                        count == 0);
    if (!accepted({ErrorCode::kIo}, [&] { stream.read(0, ids); })) return;
    for (const std::int32_t id : ids) EVENKEEL_FUZZ_CHECK(id >= 0 && id < 50000);
    std::vector<std::int64_t> starts;
    stream.document_starts(0, ids, starts);
    std::int64_t before = 0;
    for (const std::int64_t start : starts) {
        EVENKEEL_FUZZ_CHECK(start > before && start <= count, ": ", start, " after ", before);
        before = start;
    }
}

}  // namespace
}  // namespace evenkeel::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace evenkeel;
    static fuzz::BinFile file;
    static const std::string path = file.path();
    file.set(fuzz::text_of(data, size));
    std::optional<TokenStream> stream;
    if (fuzz::accepted({ErrorCode::kIo}, [&] { stream.emplace(path, 50000, 7); })) {
        fuzz::check_stream(*stream, size);
    }
    return 0;
}
