// A safetensors file: its header's length, its JSON header, its data.
#include <algorithm>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "framework/storage/safetensors.h"
#include "framework/storage/safetensors_header.h"
#include "tests/fuzz/harness.h"

namespace evenkeel::fuzz {
namespace {

// Of the types whose elements are whole bytes; 0 for the others.
std::uint64_t bytes_of(const std::string& dtype) {
    static const std::pair<const char*, std::uint64_t> kSizes[] = {
        {"F64", 8}, {"I64", 8}, {"U64", 8},  {"C64", 8}, {"F32", 4},  {"I32", 4}, {"U32", 4},
        {"F16", 2}, {"I16", 2}, {"BF16", 2}, {"U16", 2}, {"BOOL", 1}, {"U8", 1},  {"I8", 1}};
    for (const auto& [name, bytes] : kSizes) {
        if (dtype == name) return bytes;
    }
    return 0;
}

// The tensors lie behind one another in the data, from its first byte to its last.
void check_places(const std::vector<TensorInfo>& tensors, std::uint64_t data_bytes) {
    std::uint64_t end = 0;
    std::set<std::string> names;
    for (const TensorInfo& tensor : tensors) {
        EVENKEEL_FUZZ_CHECK(names.insert(tensor.name).second, ": ", tensor.name);
        EVENKEEL_FUZZ_CHECK(tensor.begin == end && tensor.end >= tensor.begin, ": ", tensor.name);
        end = tensor.end;
        const std::uint64_t bytes = bytes_of(tensor.dtype);
        std::uint64_t elements = 1;
        for (const std::int64_t size : tensor.shape) elements *= static_cast<std::uint64_t>(size);
        EVENKEEL_FUZZ_CHECK(bytes == 0 || elements * bytes == tensor.end - tensor.begin, ": ",
                            tensor.name);
    }
    EVENKEEL_FUZZ_CHECK(end == data_bytes, ": ", end, " of ", data_bytes);
}

// Whole, and in two parts, which must be what the file has where nothing is converted.
void read_tensor(const SafetensorsReader& reader,
                 const TensorInfo& tensor,
                 std::string_view image) {
    const auto read = accepted({ErrorCode::kIo}, [&] { return reader.read(tensor.name); });
    const auto dtype = dtype_of_file_type(tensor.dtype);
    EVENKEEL_FUZZ_CHECK(read.has_value() == dtype.has_value(), ": ", tensor.dtype);
    if (!read) return;
    if (read->dtype() == *dtype && read->bytes() > 0) {
        EVENKEEL_FUZZ_CHECK(
            tensor.end <= image.size() && read->bytes() == tensor.end - tensor.begin, ": ",
            tensor.name);
        EVENKEEL_FUZZ_CHECK(
            std::memcmp(read->raw(), image.data() + tensor.begin, read->bytes()) == 0, ": ",
            tensor.name);
    }
    if (tensor.shape.empty()) return;
    const auto last = static_cast<int>(tensor.shape.size()) - 1;
    const std::int64_t size = tensor.shape.back(), half = size / 2;
    for (const auto& [begin, end] : {std::pair{std::int64_t{0}, half}, {half, size}}) {
        Shape shape = tensor.shape;
        shape.back() = end - begin;
        const Tensor part = Tensor::uninitialized(shape, read->dtype());
        reader.read_slice(tensor.name, last, begin, end, part);
        const Tensor want = read->slice(last, begin, end).contiguous();
        EVENKEEL_FUZZ_CHECK(
            part.bytes() == 0 || std::memcmp(part.raw(), want.raw(), part.bytes()) == 0, ": ",
            tensor.name);
    }
}

// A header that is written for the same tensors says the same.
void write_again(const SafetensorsReader& reader, std::uint64_t data_bytes) {
    std::vector<SafetensorsWriter::Declaration> declarations;
    for (const TensorInfo& tensor : reader.tensors()) {
        const auto dtype = dtype_of_file_type(tensor.dtype);
        if (!dtype) return;
        declarations.push_back({tensor.name, *dtype, tensor.shape});
    }
    const SafetensorsHeader header = parse_safetensors_header(
        format_safetensors_header(declarations, reader.metadata()), data_bytes, "again");
    EVENKEEL_FUZZ_CHECK(header.metadata == reader.metadata());
    EVENKEEL_FUZZ_CHECK(header.tensors.size() == reader.tensors().size());
    for (std::size_t i = 0; i < header.tensors.size(); ++i) {
        const TensorInfo &a = header.tensors[i], &b = reader.tensors()[i];
        // Those without elements that begin where others do may change places.
        if (a.begin == a.end || b.begin == b.end) continue;
        EVENKEEL_FUZZ_CHECK(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape, ": ",
                            a.name, " ", b.name);
        EVENKEEL_FUZZ_CHECK(a.begin == b.begin && a.end == b.end, ": ", a.name);
    }
}

}  // namespace
}  // namespace evenkeel::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace evenkeel;
    static fuzz::MemoryFile file;
    const std::string_view image = fuzz::text_of(data, size);
    file.set(image);
    std::optional<SafetensorsReader> reader;
    if (!fuzz::accepted({ErrorCode::kIo}, [&] { reader.emplace(file.path()); })) return 0;

    std::uint64_t length = 0;
    std::memcpy(&length, data, sizeof length);
    const std::string_view values = image.substr(8 + length);
    fuzz::check_places(reader->tensors(), values.size());
    for (const TensorInfo& tensor : reader->tensors()) fuzz::read_tensor(*reader, tensor, values);
    fuzz::write_again(*reader, values.size());
    return 0;
}
