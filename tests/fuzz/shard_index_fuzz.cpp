// model.safetensors.index.json.
#include "model/hugging_face/config_json.h"
#include "model/hugging_face/shards.h"
#include "tests/fuzz/harness.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace evenkeel;
    using namespace evenkeel::hugging_face;
    const std::string text(fuzz::text_of(data, size));
    const auto index =
        fuzz::accepted({ErrorCode::kIo}, [&] { return parse_shard_index(text, "index"); });
    if (!index) return 0;
    EVENKEEL_FUZZ_CHECK(!index->files.empty());

    ConfigJson files, metadata, root;
    for (const auto& [tensor, file] : index->files) files.set(tensor, file);
    const bool fits = index->total_size && *index->total_size >> 63 == 0;
    if (fits) metadata.set("total_size", static_cast<std::int64_t>(*index->total_size));
    root.set("metadata", metadata);
    root.set("weight_map", files);
    const ShardIndex again = parse_shard_index(root.to_text(), "again");
    EVENKEEL_FUZZ_CHECK(again.files == index->files);
    EVENKEEL_FUZZ_CHECK(!fits || again.total_size == index->total_size);
    return 0;
}
