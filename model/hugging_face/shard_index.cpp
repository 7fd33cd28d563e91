#include <cmath>

#include "framework/error.h"
#include "framework/json.h"
#include "model/hugging_face/shards.h"

namespace evenkeel::hugging_face {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxTensors = 131072;
constexpr int kMaxDepth = 32;

std::string shown(const std::string& text) {
    return Json(text.substr(0, 120)).dump(-1, ' ', true, Json::error_handler_t::replace);
}

// Follows the parser's events and keeps nothing but weight_map and metadata.total_size.
class IndexHandler final : public nlohmann::json_sax<Json> {
  public:
    IndexHandler(ShardIndex& index, const std::string& origin) : index_(index), origin_(origin) {}

    bool null() override { return value(); }
    bool boolean(bool) override { return no_size(); }
    bool number_integer(number_integer_t) override { return no_size(); }
    bool number_float(number_float_t number, const string_t&) override {
        // Some tools write it so.
        if (!at_size() || number < 0.0 || number >= 0x1p63 || number != std::floor(number)) {
            return no_size();
        }
        index_.total_size = static_cast<std::uint64_t>(number);
        return value();
    }
    bool binary(binary_t&) override { return no_size(); }
    bool number_unsigned(number_unsigned_t number) override {
        if (at_size()) index_.total_size = number;
        return value();
    }
    bool string(string_t& text) override {
        if (!in_map()) return no_size();
        if (index_.files.size() == kMaxTensors) {
            fail(concat("more than ", kMaxTensors, " tensors"));
        }
        if (!index_.files.emplace(key_, text).second) {
            fail("the tensor " + shown(key_) + " twice");
        }
        return true;
    }
    bool key(string_t& key) override {
        if (depth_ == 1) {
            section_ = key;
            if (key == "weight_map" && seen_map_++ > 0) fail("weight_map twice");
            if (key == "metadata" && seen_metadata_++ > 0) fail("metadata twice");
        } else if (depth_ == 2 && section_ == "metadata" && key == "total_size" &&
                   seen_size_++ > 0) {
            fail("total_size twice");
        }
        key_ = key;
        return true;
    }
    bool start_object(std::size_t) override {
        if (in_map()) fail("an object for " + shown(key_) + " in weight_map, want a file's name");
        return enter();
    }
    bool start_array(std::size_t) override {
        if (depth_ == 0) fail("a list, want an object");
        value();
        return enter();
    }
    bool end_object() override { return leave(); }
    bool end_array() override { return leave(); }
    bool parse_error(std::size_t position,
                     const std::string&,
                     const nlohmann::detail::exception&) override {
        fail(concat("text that is not JSON at byte ", position));
    }

    void finish() const {
        if (seen_map_ == 0) fail("no weight_map");
        if (index_.files.empty()) fail("an empty weight_map");
    }

  private:
    bool at_size() const { return depth_ == 2 && section_ == "metadata" && key_ == "total_size"; }
    // A value that total_size can't have.
    bool no_size() {
        if (at_size()) fail("a total_size that is no whole number of bytes");
        return value();
    }
    bool in_map() const { return depth_ == 2 && section_ == "weight_map"; }
    bool value() {
        if (depth_ == 0) fail("a value, want an object");
        if (depth_ == 1 && section_ == "weight_map") fail("no object for weight_map");
        if (in_map()) fail("no string for " + shown(key_) + " in weight_map, want a file's name");
        return true;
    }
    bool enter() {
        if (++depth_ > kMaxDepth) fail(concat("values nested more than ", kMaxDepth, " deep"));
        return true;
    }
    bool leave() {
        --depth_;
        return true;
    }
    [[noreturn]] void fail(const std::string& what) const {
        throw_error(ErrorCode::kIo, "hugging_face", concat(origin_, ": got ", what));
    }

    ShardIndex& index_;
    const std::string& origin_;
    int depth_ = 0;
    std::string section_, key_;
    int seen_map_ = 0, seen_metadata_ = 0, seen_size_ = 0;
};

}  // namespace

ShardIndex parse_shard_index(const std::string& json, const std::string& origin) {
    // The JSON library takes a byte order mark for nothing and a NUL for the end.
    const std::size_t first = json.find_first_not_of(" \t\r\n");
    EVENKEEL_CHECK_CODE(
        first != std::string::npos && json[first] == '{' && json.find('\0') == std::string::npos,
        ErrorCode::kIo, "hugging_face", origin, ": not a JSON object");
    ShardIndex index;
    IndexHandler handler(index, origin);
    Json::sax_parse(json, &handler);
    handler.finish();
    return index;
}

}  // namespace evenkeel::hugging_face
