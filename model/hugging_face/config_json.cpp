#include "model/hugging_face/config_json.h"

#include <algorithm>
#include <set>

#include "framework/error.h"
#include "framework/json.h"

namespace evenkeel::hugging_face {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxBytes = 4 << 20;
constexpr int kMaxDepth = 32;
constexpr std::size_t kShown = 120;  // of a value in a message

std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > kShown) text = text.substr(0, kShown) + "...";
    return text;
}

// Refuses, while parsing, what would cost much or leave in doubt which of two values counts.
class Guard {
  public:
    explicit Guard(const std::string& origin) : origin_(origin) {}

    bool operator()(int depth, Json::parse_event_t event, Json& parsed) {
        if (event == Json::parse_event_t::object_start) {
            check_depth(depth);
            keys_.emplace_back();
        } else if (event == Json::parse_event_t::array_start) {
            check_depth(depth);
        } else if (event == Json::parse_event_t::object_end) {
            keys_.pop_back();
        } else if (event == Json::parse_event_t::key) {
            EVENKEEL_CHECK_CODE(keys_.back().insert(parsed.get<std::string>()).second,
                                ErrorCode::kIo, "hugging_face", origin_, ": got the key ",
                                shown(parsed), " twice");
        }
        return true;
    }

  private:
    void check_depth(int depth) const {
        EVENKEEL_CHECK_CODE(depth < kMaxDepth, ErrorCode::kIo, "hugging_face", origin_,
                            ": got objects and lists nested more than ", kMaxDepth, " deep");
    }

    const std::string& origin_;
    std::vector<std::set<std::string>> keys_;
};

}  // namespace

struct ConfigJson::Value {
    Json json = Json::object();

    // Null when missing.
    const Json* find(const std::string& key) const {
        const auto found = json.find(key);
        return found == json.end() || found->is_null() ? nullptr : &*found;
    }
};

ConfigJson::ConfigJson() : value_(std::make_unique<Value>()), origin_("config.json") {}
ConfigJson::~ConfigJson() = default;
ConfigJson::ConfigJson(const ConfigJson& other)
    : value_(std::make_unique<Value>(*other.value_)), origin_(other.origin_), path_(other.path_) {}
ConfigJson& ConfigJson::operator=(const ConfigJson& other) {
    *value_ = *other.value_;
    origin_ = other.origin_;
    path_ = other.path_;
    return *this;
}

ConfigJson ConfigJson::parse(const std::string& text, const std::string& origin) {
    EVENKEEL_CHECK_CODE(text.size() <= kMaxBytes, ErrorCode::kIo, "hugging_face", origin,
                        ": got more than ", kMaxBytes, " bytes");
    // The JSON library takes a byte order mark for nothing and a NUL for the end.
    const std::size_t first = text.find_first_not_of(" \t\r\n");
    EVENKEEL_CHECK_CODE(
        first != std::string::npos && text[first] == '{' && text.find('\0') == std::string::npos,
        ErrorCode::kIo, "hugging_face", origin, ": not a JSON object");
    ConfigJson config;
    config.origin_ = origin;
    try {
        config.value_->json = Json::parse(text, Guard(origin));
    } catch (const Json::parse_error& error) {
        throw_error(ErrorCode::kIo, "hugging_face",
                    concat(origin, ": not JSON at byte ", error.byte));
    } catch (const Json::exception& error) {
        throw_error(ErrorCode::kIo, "hugging_face",
                    concat(origin, ": not JSON that can be read: ", error.what()));
    }
    return config;
}

std::string ConfigJson::to_text() const {
    return value_->json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

bool ConfigJson::has(const std::string& key) const { return value_->find(key) != nullptr; }

std::vector<std::string> ConfigJson::keys() const {
    std::vector<std::string> keys;
    for (const auto& [key, value] : value_->json.items()) keys.push_back(key);
    return keys;
}

void ConfigJson::refuse(const std::string& key, const std::string& reason) const {
    const Json* value = value_->find(key);
    throw_error(ErrorCode::kConfig, "hugging_face",
                concat(origin_, ": ", path_, key, ": got ",
                       value == nullptr ? "nothing" : shown(*value), ": ", reason));
}

std::int64_t ConfigJson::integer(const std::string& key) const {
    const Json* value = value_->find(key);
    if (value == nullptr || !value->is_number_integer() ||
        (value->is_number_unsigned() && value->get<std::uint64_t>() >> 63 != 0)) {
        refuse(key, "want an integer");
    }
    return value->get<std::int64_t>();
}

std::int64_t ConfigJson::integer(const std::string& key, std::int64_t otherwise) const {
    return has(key) ? integer(key) : otherwise;
}

double ConfigJson::number(const std::string& key) const {
    const Json* value = value_->find(key);
    if (value == nullptr || !value->is_number()) refuse(key, "want a number");
    return value->get<double>();
}

double ConfigJson::number(const std::string& key, double otherwise) const {
    return has(key) ? number(key) : otherwise;
}

bool ConfigJson::boolean(const std::string& key, bool otherwise) const {
    const Json* value = value_->find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) refuse(key, "want true or false");
    return value->get<bool>();
}

std::string ConfigJson::text(const std::string& key) const {
    const Json* value = value_->find(key);
    if (value == nullptr || !value->is_string()) refuse(key, "want a string");
    return value->get<std::string>();
}

std::string ConfigJson::text(const std::string& key, const std::string& otherwise) const {
    return has(key) ? text(key) : otherwise;
}

std::vector<std::string> ConfigJson::texts(const std::string& key) const {
    const Json* value = value_->find(key);
    if (value == nullptr) return {};
    const bool fits = value->is_array() && std::all_of(value->begin(), value->end(),
                                                       [](const Json& v) { return v.is_string(); });
    if (!fits) refuse(key, "want a list of strings");
    return value->get<std::vector<std::string>>();
}

std::vector<std::int64_t> ConfigJson::integers(const std::string& key) const {
    const Json* value = value_->find(key);
    if (value == nullptr) return {};
    const bool fits =
        value->is_array() && std::all_of(value->begin(), value->end(), [](const Json& v) {
            return v.is_number_integer() &&
                   !(v.is_number_unsigned() && v.get<std::uint64_t>() >> 63 != 0);
        });
    if (!fits) refuse(key, "want a list of integers");
    return value->get<std::vector<std::int64_t>>();
}

ConfigJson ConfigJson::section(const std::string& key) const {
    ConfigJson config;
    config.origin_ = origin_;
    config.path_ = path_ + key + ".";
    const Json* value = value_->find(key);
    if (value == nullptr) return config;
    if (!value->is_object()) refuse(key, "want an object");
    config.value_->json = *value;
    return config;
}

std::string ConfigJson::raw(const std::string& key) const {
    const auto found = value_->json.find(key);
    if (found == value_->json.end()) return "";
    return found->dump(-1, ' ', false, Json::error_handler_t::replace);
}

void ConfigJson::set(const std::string& key, std::int64_t value) { value_->json[key] = value; }
void ConfigJson::set(const std::string& key, int value) { value_->json[key] = value; }
void ConfigJson::set(const std::string& key, double value) { value_->json[key] = value; }
void ConfigJson::set(const std::string& key, bool value) { value_->json[key] = value; }
void ConfigJson::set(const std::string& key, const std::string& value) {
    value_->json[key] = value;
}
void ConfigJson::set(const std::string& key, const char* value) { value_->json[key] = value; }
void ConfigJson::set(const std::string& key, const std::vector<std::string>& value) {
    value_->json[key] = value;
}
void ConfigJson::set(const std::string& key, const std::vector<std::int64_t>& value) {
    value_->json[key] = value;
}
void ConfigJson::set(const std::string& key, const ConfigJson& value) {
    value_->json[key] = value.value_->json;
}
void ConfigJson::set_null(const std::string& key) { value_->json[key] = nullptr; }
void ConfigJson::erase(const std::string& key) { value_->json.erase(key); }

void ConfigJson::require(const std::string& key, bool value, const std::string& reason) const {
    if (boolean(key, value) != value) refuse(key, reason);
}
void ConfigJson::require(const std::string& key, double value, const std::string& reason) const {
    if (number(key, value) != value) refuse(key, reason);
}
void ConfigJson::require(const std::string& key,
                         const char* value,
                         const std::string& reason) const {
    if (text(key, value) != value) refuse(key, reason);
}

}  // namespace evenkeel::hugging_face
