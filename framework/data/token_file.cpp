#include "framework/data/token_file.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "framework/error.h"
#include "framework/storage/file.h"
#include "framework/storage/safetensors.h"

namespace evenkeel {
namespace {

constexpr const char* kName = "tokens";
constexpr std::int64_t kPiece = 32768;

}  // namespace

Tensor read_token_file(const std::string& path, std::int64_t vocab_size) {
    const SafetensorsReader reader(path);
    const TensorInfo& info = reader.info(kName);
    const bool wide = info.dtype == "I64";
    EVENKEEL_CHECK_CODE(wide || info.dtype == "I32", ErrorCode::kIo, "tokens", path, ": ", kName,
                        ": got type ", info.dtype, ", want I32 or I64");
    EVENKEEL_CHECK_CODE(info.shape.size() == 2 && num_elements(info.shape) > 0, ErrorCode::kIo,
                        "tokens", path, ": ", kName, ": got shape ", to_string(info.shape),
                        ", want [sequences, tokens], 1 or more of each");
    // The tensors' data fills the end of the file, without holes.
    std::uint64_t data_bytes = 0;
    for (const TensorInfo& tensor : reader.tensors()) {
        data_bytes = std::max(data_bytes, tensor.end);
    }
    const File file = File::open_for_reading(path);
    const std::uint64_t begin = file.size() - data_bytes + info.begin;
    const std::size_t size = wide ? 8 : 4;
    const Tensor tokens = Tensor::uninitialized(info.shape, DType::kInt32);
    std::vector<std::byte> piece(kPiece * size);
    for (std::int64_t at = 0; at < tokens.numel(); at += kPiece) {
        const std::int64_t count = std::min(kPiece, tokens.numel() - at);
        file.read_at(piece.data(), static_cast<std::size_t>(count) * size,
                     begin + static_cast<std::uint64_t>(at) * size);
        for (std::int64_t i = 0; i < count; ++i) {
            std::int64_t id = 0;
            if (wide) {
                std::memcpy(&id, piece.data() + 8 * i, 8);
            } else {
                std::int32_t narrow = 0;
                std::memcpy(&narrow, piece.data() + 4 * i, 4);
                id = narrow;
            }
            EVENKEEL_CHECK_CODE(id >= 0 && id < vocab_size, ErrorCode::kIo, "tokens", path, ": ",
                                kName, " [", (at + i) / info.shape[1], ", ",
                                (at + i) % info.shape[1], "]: got ", id, ", want 0 to ",
                                vocab_size - 1, ", as the model's vocabulary has");
            tokens.data<std::int32_t>()[at + i] = static_cast<std::int32_t>(id);
        }
    }
    return tokens;
}

}  // namespace evenkeel
