#include "framework/storage/sharded_source.h"

#include <algorithm>
#include <tuple>

#include "framework/error.h"
#include "framework/json.h"
#include "framework/storage/json_depth.h"

namespace evenkeel {
namespace {

using Json = nlohmann::json;

constexpr const char* kOp = "state";
constexpr const char* kPieces = "pieces";
constexpr std::size_t kMostDims = 8;
constexpr std::int64_t kMostElements = std::int64_t{1} << 60;

template <typename... What>
void check(bool condition, const std::string& path, const std::string& name, const What&... what) {
    EVENKEEL_CHECK_CODE(condition, ErrorCode::kIo, kOp, path, ": tensor \"", name.substr(0, 80),
                        "\": ", what...);
}

SafetensorsMetadata common(SafetensorsMetadata metadata) {
    metadata.erase(kPieces);
    return metadata;
}

// Elements of a slice of one dimension.
std::int64_t slice_elements(const Shape& shape, const PieceExtent& extent) {
    std::int64_t count = extent.end - extent.begin;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (static_cast<int>(i) != extent.dim) count *= shape[i];
    }
    return count;
}

std::int64_t integer(const Json& entry,
                     const char* key,
                     const std::string& path,
                     const std::string& name) {
    const auto found = entry.find(key);
    check(found != entry.end() && found->is_number_unsigned(), path, name, kPieces, ": ", key,
          ": got no number, want 0 or more");
    const auto value = found->get<std::uint64_t>();
    check(value <= static_cast<std::uint64_t>(kMostElements), path, name, kPieces, ": ", key,
          ": got ", value, ", want less than 2^60");
    return static_cast<std::int64_t>(value);
}

// The shape and extent that an entry tells of a tensor in a file.
std::pair<Shape, PieceExtent> parse_piece(const Json& entry,
                                          const TensorInfo& info,
                                          const std::string& path) {
    const std::string& name = info.name;
    check(entry.is_object(), path, name, kPieces, ": got no object");
    const auto dims = entry.find("shape");
    check(dims != entry.end() && dims->is_array() && !dims->empty() && dims->size() <= kMostDims,
          path, name, kPieces, ": shape: want 1 to ", kMostDims, " numbers");
    Shape shape;
    std::int64_t elements = 1;
    for (const Json& dim : *dims) {
        const Json one = {{"shape", dim}};
        const std::int64_t size = integer(one, "shape", path, name);
        check(size == 0 || elements <= kMostElements / size, path, name, kPieces,
              ": shape: want less than 2^60 elements");
        elements *= std::max<std::int64_t>(size, 1);
        shape.push_back(size);
    }
    PieceExtent extent;
    const std::int64_t dim = integer(entry, "dim", path, name);
    check(dim < static_cast<std::int64_t>(shape.size()), path, name, kPieces, ": dim: got ", dim,
          ", want one of ", to_string(shape));
    extent.dim = static_cast<int>(dim);
    extent.begin = integer(entry, "begin", path, name);
    extent.end = integer(entry, "end", path, name);
    const auto at = static_cast<std::size_t>(dim);
    check(extent.begin <= extent.end && extent.end <= shape[at], path, name, kPieces, ": got ",
          extent.begin, " to ", extent.end, " of dimension ", dim, ", want inside ",
          to_string(shape));
    extent.is_run = entry.contains("first");
    check(entry.size() == (extent.is_run ? 5u : 4u), path, name, kPieces, ": got unknown entries");
    if (!extent.is_run) {
        Shape slice = shape;
        slice[at] = extent.end - extent.begin;
        check(info.shape == slice, path, name, "got shape ", to_string(info.shape), ", want ",
              to_string(slice), " as ", kPieces, " says");
        return {shape, extent};
    }
    extent.first = integer(entry, "first", path, name);
    const std::int64_t most = slice_elements(shape, extent);
    check(info.shape.size() == 1 && extent.first <= most && info.shape[0] <= most - extent.first,
          path, name, "got shape ", to_string(info.shape), " for the elements from ", extent.first,
          ", want one dimension inside ", most, " elements");
    return {shape, extent};
}

// Elements that lie on one another in a file and in the output.
struct Run {
    std::int64_t from = 0, to = 0, count = 0;
};

}  // namespace

ShardedSource::ShardedSource(const std::string& origin, const std::vector<std::string>& paths)
    : origin_(origin) {
    for (const std::string& path : paths) {
        files_.push_back(std::make_unique<SafetensorsReader>(path));
        const SafetensorsReader& file = *files_.back();
        EVENKEEL_CHECK_CODE(common(file.metadata()) == common(files_.front()->metadata()),
                            ErrorCode::kIo, kOp, path, ": has other metadata than ",
                            files_.front()->path(), " (it is of another model)");
        add_file(file);
    }
    for (const std::string& name : names_) check_cover(name, tensors_.at(name));
}

void ShardedSource::add_file(const SafetensorsReader& file) {
    const auto entry = file.metadata().find(kPieces);
    Json pieces = Json::object();
    if (entry != file.metadata().end()) {
        check_json_depth(kOp, entry->second, file.path());
        pieces = Json::parse(entry->second, nullptr, false);
        EVENKEEL_CHECK_CODE(pieces.is_object(), ErrorCode::kIo, kOp, file.path(), ": ", kPieces,
                            ": got no JSON object");
        for (const auto& item : pieces.items()) {
            check(file.contains(item.key()), file.path(), item.key(), "is in ", kPieces,
                  " but not in the file");
        }
    }
    for (const TensorInfo& info : file.tensors()) {
        Shape shape = info.shape;
        PieceExtent extent{0, 0, shape.empty() ? 1 : shape[0], 0, false};
        if (pieces.contains(info.name)) {
            std::tie(shape, extent) = parse_piece(pieces[info.name], info, file.path());
        }
        const auto [at, is_new] = tensors_.try_emplace(info.name);
        Whole& tensor = at->second;
        if (is_new) {
            names_.push_back(info.name);
            tensor.shape = shape;
            tensor.dtype = info.dtype;
        }
        check(tensor.shape == shape && tensor.dtype == info.dtype, file.path(), info.name,
              "is part of ", info.dtype, " ", to_string(shape), ", elsewhere of ", tensor.dtype,
              " ", to_string(tensor.shape));
        tensor.parts.push_back({&file, extent, num_elements(info.shape)});
    }
}

void ShardedSource::check_cover(const std::string& name, Whole& tensor) {
    std::vector<Part>& parts = tensor.parts;
    const std::string path = parts.front().file->path();
    if (num_elements(tensor.shape) == 0) {
        parts.resize(1);
        return;
    }
    std::erase_if(parts, [](const Part& part) { return part.count == 0; });
    check(!parts.empty(), path, name, "has no elements in any file");
    if (tensor.shape.empty()) {
        check(parts.size() == 1, path, name, "is in more than one file");
        return;
    }
    std::sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
        return std::tie(a.extent.begin, a.extent.end, a.extent.first) <
               std::tie(b.extent.begin, b.extent.end, b.extent.first);
    });
    std::int64_t covered = 0;  // of the dimension
    for (std::size_t i = 0; i < parts.size();) {
        const PieceExtent slice = parts[i].extent;
        check(slice.dim == parts.front().extent.dim, parts[i].file->path(), name,
              "is cut along dimension ", slice.dim, ", elsewhere along ", parts.front().extent.dim);
        check(slice.begin == covered, parts[i].file->path(), name, "its elements from ",
              slice.begin, " on of dimension ", slice.dim,
              slice.begin < covered ? " are in two files" : " follow a gap", ", want from ",
              covered);
        std::int64_t in_slice = 0;
        for (; i < parts.size() && parts[i].extent.dim == slice.dim &&
               parts[i].extent.begin == slice.begin && parts[i].extent.end == slice.end;
             ++i) {
            check(parts[i].extent.first == in_slice, parts[i].file->path(), name,
                  "its run from element ", parts[i].extent.first, " of a slice, want from ",
                  in_slice, " (a file is missing, or holds what another one holds)");
            in_slice += parts[i].count;
        }
        const std::int64_t want = slice_elements(tensor.shape, slice);
        check(in_slice == want, path, name, "got ", in_slice, " of the ", want,
              " elements of a slice");
        covered = slice.end;
    }
    const std::int64_t all = tensor.shape[static_cast<std::size_t>(parts.front().extent.dim)];
    check(covered == all, path, name, "got ", covered, " of the ", all, " elements of dimension ",
          parts.front().extent.dim);
}

const ShardedSource::Whole& ShardedSource::find(const std::string& name) const {
    const auto found = tensors_.find(name);
    EVENKEEL_CHECK_CODE(found != tensors_.end(), ErrorCode::kIo, kOp, origin_, ": has no tensor ",
                        name, " among its ", names_.size());
    return found->second;
}

std::string ShardedSource::model() const {
    const auto found = files_.front()->metadata().find("model");
    return found == files_.front()->metadata().end() ? "" : found->second;
}

DType ShardedSource::dtype(const std::string& name) const {
    const std::string& type = find(name).dtype;
    const std::optional<DType> dtype = dtype_of_file_type(type);
    EVENKEEL_CHECK_CODE(dtype, ErrorCode::kIo, kOp, origin_, ": ", name, " is ", type,
                        ", want F32, BF16, F16, F64 or I32");
    return *dtype;
}

void ShardedSource::read_slice(const std::string& name,
                               int dim,
                               std::int64_t begin,
                               std::int64_t end,
                               const Tensor& out) const {
    const Whole& tensor = find(name);
    const auto rank = static_cast<int>(tensor.shape.size());
    if (tensor.parts.size() == 1 && !tensor.parts[0].extent.is_run) {
        return tensor.parts[0].file->read_slice(name, dim, begin, end, out);
    }
    EVENKEEL_CHECK(0 <= dim && dim < rank, kOp, name, ": dimension: got ", dim, ", want one of ",
                   to_string(tensor.shape));
    Shape want = tensor.shape;
    std::int64_t& extent = want[static_cast<std::size_t>(dim)];
    EVENKEEL_CHECK(0 <= begin && begin <= end && end <= extent, kOp, name, ": range: got ", begin,
                   " to ", end, " of dimension ", dim, ", want inside ", to_string(tensor.shape));
    extent = end - begin;
    check_shape(kOp, name.c_str(), out, want);
    EVENKEEL_CHECK(out.is_contiguous(), kOp, name, ": want a contiguous output");
    const Tensor flat = out.view({out.numel()});
    for (const Part& part : tensor.parts) read_part(name, tensor, part, dim, begin, end, flat);
}

// Walks the requested runs of elements in their order, and in each the rows of the part's slice.
void ShardedSource::read_part(const std::string& name,
                              const Whole& tensor,
                              const Part& part,
                              int dim,
                              std::int64_t begin,
                              std::int64_t end,
                              const Tensor& out) {
    const auto inner_of = [&](int d) {
        std::int64_t inner = 1;
        for (std::size_t i = static_cast<std::size_t>(d) + 1; i < tensor.shape.size(); ++i) {
            inner *= tensor.shape[i];
        }
        return inner;
    };
    const std::int64_t all = num_elements(tensor.shape);
    const std::int64_t inner = inner_of(dim);
    const std::int64_t size = tensor.shape[static_cast<std::size_t>(dim)];
    const bool is_all = begin == 0 && end == size;
    const std::int64_t length = is_all ? all : (end - begin) * inner;  // of a requested run
    const std::int64_t stride = is_all ? all : size * inner;
    if (length == 0) return;
    const PieceExtent& cut = part.extent;
    const std::int64_t cut_inner = inner_of(cut.dim);
    const std::int64_t row = tensor.shape[static_cast<std::size_t>(cut.dim)] * cut_inner;
    const std::int64_t row_begin = cut.begin * cut_inner, row_end = cut.end * cut_inner;
    const std::int64_t row_length = row_end - row_begin;

    Run pending;
    const auto flush = [&] {
        if (pending.count == 0) return;
        part.file->read_elements(name, pending.from,
                                 out.slice(0, pending.to, pending.to + pending.count));
    };
    for (std::int64_t i = 0; i * stride < all; ++i) {
        const std::int64_t run_begin = i * stride + begin * inner, run_end = run_begin + length;
        for (std::int64_t r = run_begin / row; r * row < run_end; ++r) {
            // In elements of the whole tensor, then of the slice, then of the part.
            const std::int64_t from = std::max(run_begin, r * row + row_begin);
            const std::int64_t to = std::min(run_end, r * row + row_end);
            if (from >= to) continue;
            const std::int64_t in_slice = r * row_length + from - r * row - row_begin;
            const std::int64_t first = std::max(in_slice, cut.first);
            const std::int64_t last = std::min(in_slice + to - from, cut.first + part.count);
            if (first >= last) continue;
            const Run run{first - cut.first, i * length + from - run_begin + first - in_slice,
                          last - first};
            if (pending.from + pending.count == run.from && pending.to + pending.count == run.to) {
                pending.count += run.count;
            } else {
                flush();
                pending = run;
            }
        }
    }
    flush();
}

}  // namespace evenkeel
