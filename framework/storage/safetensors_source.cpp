#include "framework/storage/safetensors_source.h"

#include "framework/error.h"

namespace evenkeel {

SafetensorsSource::SafetensorsSource(const std::string& path) : reader_(path) {}

std::string SafetensorsSource::model() const {
    const auto found = reader_.metadata().find("model");
    return found == reader_.metadata().end() ? "" : found->second;
}

std::vector<std::string> SafetensorsSource::names() const {
    std::vector<std::string> names;
    for (const TensorInfo& info : reader_.tensors()) names.push_back(info.name);
    return names;
}

bool SafetensorsSource::contains(const std::string& name) const { return reader_.contains(name); }

Shape SafetensorsSource::shape(const std::string& name) const { return reader_.info(name).shape; }

DType SafetensorsSource::dtype(const std::string& name) const {
    const TensorInfo& info = reader_.info(name);
    const std::optional<DType> dtype = dtype_of_file_type(info.dtype);
    EVENKEEL_CHECK_CODE(dtype, ErrorCode::kIo, "safetensors", origin(), ": ", name, " is ",
                        info.dtype, ", want F32, BF16, F16, F64 or I32");
    return *dtype;
}

void SafetensorsSource::read_slice(const std::string& name,
                                   int dim,
                                   std::int64_t begin,
                                   std::int64_t end,
                                   const Tensor& out) const {
    reader_.read_slice(name, dim, begin, end, out);
}

}  // namespace evenkeel
