// Two files of shards that hold one state: the first two bytes are the length of the first file.
#include <cstring>
#include <vector>

#include "framework/storage/sharded_source.h"
#include "tests/fuzz/harness.h"

namespace evenkeel::fuzz {
namespace {

constexpr std::int64_t kMostElements = 1 << 16;

void read_all(const ShardedSource& source) {
    for (const std::string& name : source.names()) {
        const auto dtype = accepted({ErrorCode::kIo}, [&] { return source.dtype(name); });
        const Shape shape = source.shape(name);
        if (!dtype || shape.empty() || num_elements(shape) > kMostElements) continue;
        const Tensor whole = Tensor::uninitialized(shape, *dtype);
        source.read_slice(name, 0, 0, shape[0], whole);
        // The same in another cut.
        const auto last = static_cast<int>(shape.size()) - 1;
        const std::int64_t half = shape.back() / 2;
        Shape cut = shape;
        cut.back() = shape.back() - half;
        const Tensor part = Tensor::uninitialized(cut, *dtype);
        source.read_slice(name, last, half, shape.back(), part);
        const Tensor want = whole.slice(last, half, shape.back()).contiguous();
        EVENKEEL_FUZZ_CHECK(
            part.bytes() == 0 || std::memcmp(part.raw(), want.raw(), part.bytes()) == 0, ": ",
            name);
    }
}

}  // namespace
}  // namespace evenkeel::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace evenkeel;
    static fuzz::MemoryFile first, second;
    if (size < 2) return 0;
    const std::string_view images = fuzz::text_of(data, size).substr(2);
    const std::size_t length = std::min<std::size_t>(data[0] | data[1] << 8, images.size());
    std::vector<std::string> paths = {first.path()};
    first.set(images.substr(0, length));
    if (length < images.size()) {
        second.set(images.substr(length));
        paths.push_back(second.path());
    }
    std::optional<ShardedSource> source;
    if (fuzz::accepted({ErrorCode::kIo}, [&] { source.emplace("state", paths); })) {
        fuzz::read_all(*source);
    }
    return 0;
}
