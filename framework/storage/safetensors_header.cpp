#include "framework/storage/safetensors_header.h"

#include <algorithm>
#include <set>

#include "framework/error.h"
#include "framework/json.h"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMetadataKey = "__metadata__";
constexpr std::size_t kMaxTensors = 131072;
constexpr std::size_t kMaxRank = 8;
constexpr std::uint64_t kMaxSize = 1ull << 48;

struct FileType {
    const char* name;
    std::uint64_t bits;
};
constexpr FileType kFileTypes[] = {
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
};

std::uint64_t bits_of(const std::string& dtype) {
    for (const FileType& type : kFileTypes) {
        if (dtype == type.name) return type.bits;
    }
    return 0;
}

const char* file_type(DType dtype) {
    switch (dtype) {
        case DType::kFloat32:
            return "F32";
        case DType::kBFloat16:
            return "BF16";
        case DType::kFloat16:
            return "F16";
        case DType::kInt32:
            return "I32";
        case DType::kFloat64:
            return "F64";
    }
    return "?";
}

bool has_control_character(const std::string& text) {
    return std::any_of(text.begin(), text.end(),
                       [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

// A name from a file, fit for a message.
std::string shown(const std::string& name) {
    const bool is_long = name.size() > 80;
    return Json(name.substr(0, 80)).dump(-1, ' ', true, Json::error_handler_t::replace) +
           (is_long ? "..." : "");
}

// Follows the parser's events through the four places a header has, and refuses any other, so that
// neither nesting nor surplus values cost memory.
class HeaderHandler final : public nlohmann::json_sax<Json> {
  public:
    HeaderHandler(SafetensorsHeader& header, const std::string& path)
        : header_(header), path_(path) {}

    bool null() override { return unexpected("null"); }
    bool boolean(bool) override { return unexpected("a boolean"); }
    bool binary(binary_t&) override { return unexpected("binary data"); }
    bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
    bool number_float(number_float_t, const string_t& text) override {
        return unexpected("the number " + text.substr(0, 40));
    }

    bool number_unsigned(number_unsigned_t value) override {
        if (place_ == Place::kShape) {
            if (shape_.size() == kMaxRank)
                fail_entry(concat("more than ", kMaxRank, " dimensions"));
            if (value >= kMaxSize) fail_entry(concat("size ", value, ", want less than 2^48"));
            shape_.push_back(static_cast<std::int64_t>(value));
            return true;
        }
        if (place_ == Place::kOffsets) {
            if (offsets_.size() == 2) fail_entry("more than two data_offsets");
            offsets_.push_back(value);
            return true;
        }
        return unexpected(concat("the number ", value));
    }

    bool string(string_t& value) override {
        if (place_ == Place::kMetadata) {
            header_.metadata[key_] = value;
            return true;
        }
        if (place_ == Place::kEntry && key_ == "dtype") {
            if (bits_of(value) == 0) fail_entry("unknown dtype " + shown(value));
            dtype_ = value;
            return true;
        }
        return unexpected("the string " + shown(value));
    }

    bool start_object(std::size_t) override {
        switch (place_) {
            case Place::kOutside:
                place_ = Place::kTop;
                return true;
            case Place::kTop:
                place_ = key_ == kMetadataKey ? Place::kMetadata : Place::kEntry;
                return true;
            default:
                return unexpected("an object");
        }
    }

    bool key(string_t& key) override {
        if (place_ == Place::kTop) {
            if (has_control_character(key)) fail("a control character in the name " + shown(key));
            if (!names_.insert(key).second) fail("the name " + shown(key) + " twice");
            entry_ = key;
            fields_.clear();
            dtype_.clear();
            shape_.clear();
            offsets_.clear();
        } else if (place_ == Place::kMetadata) {
            if (header_.metadata.count(key) != 0) fail("the metadata key " + shown(key) + " twice");
        } else {
            if (key != "dtype" && key != "shape" && key != "data_offsets") {
                fail_entry("unknown field " + shown(key));
            }
            if (!fields_.insert(key).second) fail_entry("the field " + shown(key) + " twice");
        }
        key_ = key;
        return true;
    }

    bool end_object() override {
        if (place_ == Place::kTop) {
            place_ = Place::kOutside;
            return true;
        }
        if (place_ == Place::kEntry) finish_entry();
        place_ = Place::kTop;
        return true;
    }

    bool start_array(std::size_t) override {
        if (place_ == Place::kEntry && key_ == "shape") {
            place_ = Place::kShape;
        } else if (place_ == Place::kEntry && key_ == "data_offsets") {
            place_ = Place::kOffsets;
        } else {
            return unexpected("an array");
        }
        return true;
    }
    bool end_array() override {
        place_ = Place::kEntry;
        return true;
    }

    bool parse_error(std::size_t position,
                     const std::string&,
                     const nlohmann::detail::exception&) override {
        fail(concat("not JSON at byte ", position));
    }

  private:
    enum class Place { kOutside, kTop, kMetadata, kEntry, kShape, kOffsets };

    [[noreturn]] void fail(const std::string& what) const {
        throw_error(ErrorCode::kIo, "safetensors", concat(path_, ": header: got ", what));
    }
    [[noreturn]] void fail_entry(const std::string& what) const {
        fail(what + " in the entry of " + shown(entry_));
    }
    bool unexpected(const std::string& what) const {
        switch (place_) {
            case Place::kOutside:
                fail(what + ", want an object");
            case Place::kTop:
                fail(what + " for " + shown(key_) + ", want an object");
            case Place::kMetadata:
                fail(what + " for the metadata key " + shown(key_) + ", want a string");
            case Place::kEntry:
                fail_entry(what + " for " + shown(key_));
            case Place::kShape:
                fail_entry(what + " in shape, want integers of 0 or more");
            case Place::kOffsets:
                fail_entry(what + " in data_offsets, want two integers of 0 or more");
        }
        return false;
    }

    void finish_entry() {
        if (header_.tensors.size() == kMaxTensors)
            fail(concat("more than ", kMaxTensors, " tensors"));
        for (const char* field : {"dtype", "shape", "data_offsets"}) {
            if (fields_.count(field) == 0) fail_entry(concat("no ", field));
        }
        if (offsets_.size() != 2) fail_entry(concat(offsets_.size(), " data_offsets, want two"));
        // Sizes of 0 count as 1 in the overflow check: no product of a part of the shape may wrap.
        std::uint64_t bits = bits_of(dtype_), bound = bits;
        for (std::int64_t size : shape_) {
            const auto factor = static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1));
            if (__builtin_mul_overflow(bound, factor, &bound) || bound >= 1ull << 63) {
                fail_entry("a shape of 2^63 bits or more");
            }
            bits *= static_cast<std::uint64_t>(size);
        }
        if (bits % 8 != 0) fail_entry("a shape that does not fill whole bytes");
        const std::uint64_t begin = offsets_[0], end = offsets_[1];
        if (end < begin || end - begin != bits / 8) {
            fail_entry(concat("data_offsets ", begin, " to ", end, ", want ", bits / 8,
                              " bytes as in ", dtype_, " ", to_string(shape_)));
        }
        header_.tensors.push_back({entry_, dtype_, shape_, begin, end});
    }

    SafetensorsHeader& header_;
    const std::string& path_;
    Place place_ = Place::kOutside;
    std::string key_;
    std::set<std::string> names_;
    // The entry at hand.
    std::string entry_, dtype_;
    std::set<std::string> fields_;
    Shape shape_;
    std::vector<std::uint64_t> offsets_;
};

void check_cover(SafetensorsHeader& header, std::uint64_t data_bytes, const std::string& path) {
    std::stable_sort(header.tensors.begin(), header.tensors.end(),
                     [](const TensorInfo& a, const TensorInfo& b) {
                         return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                     });
    std::uint64_t covered = 0;
    for (const TensorInfo& tensor : header.tensors) {
        EVENKEEL_CHECK_CODE(tensor.begin == covered, ErrorCode::kIo, "safetensors", path,
                            ": header: got data of ", shown(tensor.name), " from byte ",
                            tensor.begin, ", want from ", covered,
                            tensor.begin < covered ? " (tensors overlap)" : " (a hole)");
        covered = tensor.end;
    }
    EVENKEEL_CHECK_CODE(covered == data_bytes, ErrorCode::kIo, "safetensors", path, ": got ",
                        data_bytes, " bytes of data, want ", covered, " as its header says",
                        covered > data_bytes ? " (the file is cut short)" : "");
}

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::string& json,
                                           std::uint64_t data_bytes,
                                           const std::string& path) {
    // The JSON library takes a byte order mark for nothing and a NUL for the end.
    const std::size_t first = json.find_first_not_of(" \t\r\n");
    EVENKEEL_CHECK_CODE(
        first != std::string::npos && json[first] == '{' && json.find('\0') == std::string::npos,
        ErrorCode::kIo, "safetensors", path, ": header: not a JSON object");
    SafetensorsHeader header;
    HeaderHandler handler(header, path);
    Json::sax_parse(json, &handler);
    check_cover(header, data_bytes, path);
    return header;
}

std::string format_safetensors_header(const std::vector<SafetensorsWriter::Declaration>& tensors,
                                      const SafetensorsMetadata& metadata) {
    Json root = Json::object();
    if (!metadata.empty()) root[kMetadataKey] = metadata;
    std::uint64_t end = 0;
    std::set<std::string> names;
    EVENKEEL_CHECK(tensors.size() <= kMaxTensors, "safetensors", "got ", tensors.size(),
                   " tensors, want at most ", kMaxTensors);
    std::string json;
    try {
        json = root.dump();
        json.pop_back();  // the entries follow; built as text, since looking up names in an ordered
                          // object takes time that grows with the square of their number
        for (const SafetensorsWriter::Declaration& tensor : tensors) {
            EVENKEEL_CHECK(names.insert(tensor.name).second && tensor.name != kMetadataKey &&
                               !has_control_character(tensor.name),
                           "safetensors", "name: got ", shown(tensor.name),
                           ", want one that is new, not ", kMetadataKey,
                           " and without control characters");
            EVENKEEL_CHECK(tensor.shape.size() <= kMaxRank, "safetensors", tensor.name, ": got ",
                           tensor.shape.size(), " dimensions, want at most ", kMaxRank);
            const std::uint64_t begin = end;
            end += static_cast<std::uint64_t>(num_elements(tensor.shape)) * size_of(tensor.dtype);
            Json entry;
            entry["dtype"] = file_type(tensor.dtype);
            entry["shape"] = tensor.shape;
            entry["data_offsets"] = {begin, end};
            json += concat(json.size() > 1 ? "," : "", Json(tensor.name).dump(), ":", entry.dump());
        }
    } catch (const Json::exception& e) {
        throw_error(ErrorCode::kInvalidArgument, "safetensors",
                    concat("names and metadata: got bytes that are not UTF-8: ", e.what()));
    }
    json += '}';
    json.append((8 - json.size() % 8) % 8, ' ');
    EVENKEEL_CHECK(json.size() <= kMaxSafetensorsHeader, "safetensors", "header: got ", json.size(),
                   " bytes, want at most ", kMaxSafetensorsHeader);
    return json;
}

}  // namespace evenkeel
