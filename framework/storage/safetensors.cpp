#include "framework/storage/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "framework/convert.h"
#include "framework/error.h"
#include "framework/storage/safetensors_header.h"

namespace evenkeel {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

// Elements converted at a time: the pieces stay in the second-level cache.
constexpr std::int64_t kPiece = 32768;

struct Source {
    const char* name;
    std::size_t bytes;
    DType same;     // what holds it without conversion
    DType read_as;  // unless the caller says what
    void (*widen)(const std::byte* from, float* to, std::int64_t count);
};

constexpr Source kSources[] = {
    {"F32", 4, DType::kFloat32, DType::kFloat32,
     [](const std::byte* from, float* to, std::int64_t count) {
         std::memcpy(to, from, static_cast<std::size_t>(count) * 4);
     }},
    {"BF16", 2, DType::kBFloat16, DType::kBFloat16,
     [](const std::byte* from, float* to, std::int64_t count) {
         widen(reinterpret_cast<const bfloat16*>(from), to, count);
     }},
    {"F16", 2, DType::kFloat16, DType::kFloat32,
     [](const std::byte* from, float* to, std::int64_t count) {
         for (std::int64_t i = 0; i < count; ++i) {
             float16 half;
             std::memcpy(&half, from + 2 * i, 2);
             to[i] = static_cast<float>(half);
         }
     }},
    {"F64", 8, DType::kFloat64, DType::kFloat32,
     [](const std::byte* from, float* to, std::int64_t count) {
         for (std::int64_t i = 0; i < count; ++i) {
             double value;
             std::memcpy(&value, from + 8 * i, 8);
             to[i] = static_cast<float>(value);
         }
     }},
    {"I32", 4, DType::kInt32, DType::kInt32, nullptr},
};

const Source* source_of(const std::string& dtype) {
    for (const Source& source : kSources) {
        if (dtype == source.name) return &source;
    }
    return nullptr;
}

}  // namespace

std::optional<DType> dtype_of_file_type(const std::string& name) {
    const Source* source = source_of(name);
    return source == nullptr ? std::nullopt : std::optional(source->same);
}

SafetensorsReader::SafetensorsReader(const std::string& path)
    : file_(File::open_for_reading(path)) {
    const auto check = [&](bool condition, const auto&... what) {
        EVENKEEL_CHECK_CODE(condition, ErrorCode::kIo, "safetensors", path, ": ", what...);
    };
    const std::uint64_t file_bytes = file_.size();
    check(file_bytes >= 8, "got ", file_bytes, " bytes, want at least 8 for the header's length");
    std::uint64_t length = 0;
    file_.read_at(&length, 8, 0);
    check(length >= 2 && length <= kMaxSafetensorsHeader, "header length: got ", length,
          ", want 2 to ", kMaxSafetensorsHeader, " (is it a safetensors file?)");
    check(length <= file_bytes - 8, "header length: got ", length, ", want at most the ",
          file_bytes - 8, " bytes that follow (the file is cut short)");
    std::string json(static_cast<std::size_t>(length), '\0');
    file_.read_at(json.data(), json.size(), 8);
    data_start_ = 8 + length;

    SafetensorsHeader header = parse_safetensors_header(json, file_bytes - data_start_, path);
    tensors_ = std::move(header.tensors);
    metadata_ = std::move(header.metadata);
    for (std::size_t i = 0; i < tensors_.size(); ++i) index_[tensors_[i].name] = i;
}

bool SafetensorsReader::contains(const std::string& name) const { return index_.count(name) != 0; }

const TensorInfo& SafetensorsReader::info(const std::string& name) const {
    const auto it = index_.find(name);
    EVENKEEL_CHECK_CODE(it != index_.end(), ErrorCode::kIo, "safetensors", path(),
                        ": has no tensor ", name, " among its ", tensors_.size());
    return tensors_[it->second];
}

void SafetensorsReader::read_runs(const TensorInfo& tensor,
                                  std::int64_t num_runs,
                                  std::uint64_t first,
                                  std::uint64_t stride,
                                  std::uint64_t length,
                                  const Tensor& out) const {
    const Source* source = source_of(tensor.dtype);
    const bool verbatim = source != nullptr && source->same == out.dtype();
    const bool narrows = out.dtype() == DType::kFloat32 || out.dtype() == DType::kBFloat16;
    EVENKEEL_CHECK(out.device() == Device::kCpu, "safetensors", tensor.name, ": got ",
                   name_of(out.device()), ", want a tensor on the cpu to read into");
    EVENKEEL_CHECK_CODE(verbatim || (source != nullptr && source->widen != nullptr && narrows),
                        ErrorCode::kIo, "safetensors", path(), ": ", tensor.name, " is ",
                        tensor.dtype, ", which does not convert to ", name_of(out.dtype()));
    if (length == 0) return;
    const std::uint64_t base = data_start_ + tensor.begin + first * source->bytes;
    if (verbatim) {
        for (std::int64_t run = 0; run < num_runs; ++run) {
            file_.read_at(out.raw() + run * length * source->bytes, length * source->bytes,
                          base + run * stride * source->bytes);
        }
        return;
    }
    const std::uint64_t most = std::min<std::uint64_t>(kPiece, length);
    std::vector<std::byte> bytes(most * source->bytes);
    std::vector<float> floats(out.dtype() == DType::kFloat32 ? 0 : most);
    for (std::int64_t run = 0; run < num_runs; ++run) {
        for (std::uint64_t at = 0; at < length; at += kPiece) {
            const std::uint64_t count = std::min<std::uint64_t>(kPiece, length - at);
            const auto n = static_cast<std::int64_t>(count);
            file_.read_at(bytes.data(), count * source->bytes,
                          base + (run * stride + at) * source->bytes);
            if (out.dtype() == DType::kFloat32) {
                source->widen(bytes.data(), out.data<float>() + run * length + at, n);
            } else {
                source->widen(bytes.data(), floats.data(), n);
                narrow(floats.data(), out.data<bfloat16>() + run * length + at, n);
            }
        }
    }
}

void SafetensorsReader::read_slice(const std::string& name,
                                   int dim,
                                   std::int64_t begin,
                                   std::int64_t end,
                                   const Tensor& out) const {
    const TensorInfo& tensor = info(name);
    const auto rank = static_cast<int>(tensor.shape.size());
    EVENKEEL_CHECK(0 <= dim && dim < rank, "safetensors", name, ": dimension: got ", dim,
                   ", want one of ", to_string(tensor.shape));
    EVENKEEL_CHECK(0 <= begin && begin <= end && end <= tensor.shape[dim], "safetensors", name,
                   ": range: got ", begin, " to ", end, " of dimension ", dim, ", want inside ",
                   to_string(tensor.shape));
    Shape want = tensor.shape;
    want[dim] = end - begin;
    check_shape("safetensors", name.c_str(), out, want);
    EVENKEEL_CHECK(out.is_contiguous(), "safetensors", name, ": want a contiguous output");
    std::int64_t outer = 1, inner = 1;
    for (int i = 0; i < dim; ++i) outer *= tensor.shape[i];
    for (int i = dim + 1; i < rank; ++i) inner *= tensor.shape[i];
    if (end - begin == tensor.shape[dim]) {  // the whole tensor is one run
        read_runs(tensor, 1, 0, 0, static_cast<std::uint64_t>(out.numel()), out);
        return;
    }
    read_runs(tensor, outer, static_cast<std::uint64_t>(begin * inner),
              static_cast<std::uint64_t>(tensor.shape[dim] * inner),
              static_cast<std::uint64_t>((end - begin) * inner), out);
}

void SafetensorsReader::read_elements(const std::string& name,
                                      std::int64_t first,
                                      const Tensor& out) const {
    const TensorInfo& tensor = info(name);
    const std::int64_t have = num_elements(tensor.shape);
    EVENKEEL_CHECK(0 <= first && first <= have && out.numel() <= have - first, "safetensors", name,
                   ": range: got ", out.numel(), " elements from ", first, ", want inside ",
                   to_string(tensor.shape));
    EVENKEEL_CHECK(out.is_contiguous(), "safetensors", name, ": want a contiguous output");
    read_runs(tensor, 1, static_cast<std::uint64_t>(first), 0,
              static_cast<std::uint64_t>(out.numel()), out);
}

void SafetensorsReader::read(const std::string& name, const Tensor& out) const {
    const TensorInfo& tensor = info(name);
    check_shape("safetensors", name.c_str(), out, tensor.shape);
    EVENKEEL_CHECK(out.is_contiguous(), "safetensors", name, ": want a contiguous output");
    read_runs(tensor, 1, 0, 0, static_cast<std::uint64_t>(out.numel()), out);
}

Tensor SafetensorsReader::read(const std::string& name) const {
    const TensorInfo& tensor = info(name);
    const Source* source = source_of(tensor.dtype);
    Tensor out =
        Tensor::uninitialized(tensor.shape, source != nullptr ? source->read_as : DType::kFloat32);
    read(name, out);
    return out;
}

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     const std::vector<Declaration>& tensors,
                                     const SafetensorsMetadata& metadata)
    : tensors_(tensors) {
    const std::string header = format_safetensors_header(tensors, metadata);
    const std::uint64_t length = header.size();
    file_ = File::create(path);
    put(&length, 8);
    put(header.data(), header.size());
}

void SafetensorsWriter::put(const void* data, std::size_t bytes) {
    constexpr std::size_t kBytes = 1 << 18;  // hashed while the cache holds them
    for (const char *from = static_cast<const char*>(data), *end = from + bytes; from != end;) {
        const std::size_t count = std::min(kBytes, static_cast<std::size_t>(end - from));
        hasher_.add(from, count);
        file_.write(from, count);
        from += count;
    }
}

void SafetensorsWriter::write(const std::string& name, const Tensor& tensor) {
    EVENKEEL_CHECK(next_ < tensors_.size() && tensors_[next_].name == name, "safetensors",
                   file_.path(), ": got tensor ", name, ", want ",
                   next_ < tensors_.size() ? tensors_[next_].name : "none: all are written");
    check_shape("safetensors", name.c_str(), tensor, tensors_[next_].shape);
    check_dtype("safetensors", name.c_str(), tensor, tensors_[next_].dtype);
    const Tensor packed = tensor.to(Device::kCpu).contiguous();
    put(packed.raw(), packed.bytes());
    ++next_;
}

void SafetensorsWriter::finish() {
    EVENKEEL_CHECK(next_ == tensors_.size(), "safetensors", file_.path(), ": got ", next_,
                   " tensors, want all ", tensors_.size(), " that were declared");
    file_.sync();
    file_.close();
}

void write_safetensors(const std::string& path,
                       const std::vector<std::pair<std::string, Tensor>>& tensors,
                       const SafetensorsMetadata& metadata) {
    std::vector<SafetensorsWriter::Declaration> declarations;
    for (const auto& [name, tensor] : tensors) {
        EVENKEEL_CHECK(tensor.defined(), "safetensors", name, ": got no tensor");
        declarations.push_back({name, tensor.dtype(), tensor.shape()});
    }
    SafetensorsWriter writer(path, declarations, metadata);
    for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
    writer.finish();
}

}  // namespace evenkeel
