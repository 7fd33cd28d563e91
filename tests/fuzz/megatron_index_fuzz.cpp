// An .idx file. Its .bin file has as many bytes as its lengths add up to.
#include <algorithm>
#include <cstring>
#include <span>

#include "framework/data/megatron_index.h"
#include "tests/fuzz/harness.h"

namespace evenkeel::fuzz {
namespace {

template <typename T>
T load(const std::uint8_t* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

// Read without looking at anything else.
std::uint64_t bin_bytes(const std::uint8_t* data, std::size_t size) {
    constexpr std::size_t kHeader = 34;
    if (size < kHeader) return 0;
    constexpr std::uint64_t kBytes[] = {0, 1, 1, 2, 4, 8, 0, 0, 2};
    const std::uint64_t id_bytes = data[17] < std::size(kBytes) ? kBytes[data[17]] : 0;
    const auto sequences =
        std::min<std::uint64_t>(load<std::uint64_t>(data + 18), (size - kHeader) / 4);
    std::uint64_t bytes = 0;
    for (std::uint64_t s = 0; s < sequences; ++s) {
        bytes += id_bytes * static_cast<std::uint64_t>(load<std::int32_t>(data + kHeader + 4 * s));
    }
    return bytes;
}

void check_index(const MegatronIndex& index, std::uint64_t bytes) {
    const std::int64_t documents = index.num_documents();
    EVENKEEL_FUZZ_CHECK(documents >= 0 && index.num_sequences() >= 0 && index.num_tokens() >= 0);
    EVENKEEL_FUZZ_CHECK(static_cast<std::uint64_t>(index.num_tokens()) * size_of(index.type()) ==
                        bytes);
    EVENKEEL_FUZZ_CHECK(index.document_start(0) == 0);
    EVENKEEL_FUZZ_CHECK(index.document_start(documents) == index.num_tokens());
    for (std::int64_t d = 0; d < documents; ++d) {
        const std::int64_t start = index.document_start(d), next = index.document_start(d + 1);
        EVENKEEL_FUZZ_CHECK(start <= next && next <= index.num_tokens(), ": document ", d);
        const std::int64_t after = index.document_after(start);
        EVENKEEL_FUZZ_CHECK(after > d && after <= documents, ": document ", d);
        EVENKEEL_FUZZ_CHECK(after == documents || index.document_start(after) > start);
        EVENKEEL_FUZZ_CHECK(index.document_start(after - 1) == start);
    }
    EVENKEEL_FUZZ_CHECK(
        !accepted({ErrorCode::kInvalidArgument}, [&] { index.document_start(documents + 1); }));
    EVENKEEL_FUZZ_CHECK(
        !accepted({ErrorCode::kInvalidArgument}, [&] { index.document_start(-1); }));
}

}  // namespace
}  // namespace evenkeel::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace evenkeel;
    const auto bytes = std::as_bytes(std::span(data, size));
    const std::uint64_t bin = fuzz::bin_bytes(data, size);
    const auto index =
        fuzz::accepted({ErrorCode::kIo}, [&] { return MegatronIndex(bytes, "a.idx", bin); });
    const auto of_longer =
        fuzz::accepted({ErrorCode::kIo}, [&] { return MegatronIndex(bytes, "a.idx", bin + 1); });
    EVENKEEL_FUZZ_CHECK(!of_longer);
    if (!index) return 0;
    fuzz::check_index(*index, bin);

    // What is written for one sequence a document says the same documents.
    std::vector<std::int32_t> lengths;
    for (std::int64_t d = 0; d < index->num_documents(); ++d) {
        const std::int64_t length = index->document_start(d + 1) - index->document_start(d);
        if (length > INT32_MAX) return 0;
        lengths.push_back(static_cast<std::int32_t>(length));
    }
    const std::string text = make_megatron_index(index->type(), lengths);
    const MegatronIndex again(std::as_bytes(std::span(text)), "again", bin);
    EVENKEEL_FUZZ_CHECK(again.num_tokens() == index->num_tokens());
    EVENKEEL_FUZZ_CHECK(again.num_documents() == index->num_documents());
    for (std::int64_t d = 0; d < index->num_documents(); ++d) {
        EVENKEEL_FUZZ_CHECK(again.document_start(d) == index->document_start(d));
    }
    return 0;
}
