#include "framework/config.h"

#include <cmath>
#include <functional>
#include <limits>
#include <set>
#include <variant>

#include "framework/config_names.h"
#include "framework/error.h"
#include "framework/json.h"
#include "framework/storage/checkpoint.h"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kShown = 160;  // of names from a file in a message

std::string shown(const std::string& text) {
    return text.size() <= kShown ? text : text.substr(0, kShown) + "...";
}

[[noreturn]] void fail(const std::string& origin,
                       const std::string& path,
                       const std::string& what) {
    throw_error(ErrorCode::kConfig, "config",
                concat(origin, path.empty() ? "" : ": ", shown(path), ": ", what));
}

// ---- The fields, one callback each ----------------------------------------------------------------

struct Choice {
    int* index;
    std::span<const char* const> names;
};

struct Field {
    std::string path;
    const char* doc;
    std::variant<bool*, std::int64_t*, double*, std::string*, Choice> value;
};

// Turns the visitor's calls into one callback a field and one a section, with full paths.
class Walker final : public ConfigVisitor {
  public:
    using OnField = std::function<void(const Field&)>;
    using OnName = std::function<void(const std::string& path, const char* text)>;
    explicit Walker(OnField on_field, OnName on_section = nullptr, OnName on_refused = nullptr)
        : on_field_(std::move(on_field)),
          on_section_(std::move(on_section)),
          on_refused_(std::move(on_refused)) {}

    void field(const char* name, bool& value, const char* doc) override { call(name, doc, &value); }
    void field(const char* name, std::int64_t& value, const char* doc) override {
        call(name, doc, &value);
    }
    void field(const char* name, double& value, const char* doc) override {
        call(name, doc, &value);
    }
    void field(const char* name, std::string& value, const char* doc) override {
        call(name, doc, &value);
    }
    void refused(const char* name, const char* reason) override {
        if (on_refused_) on_refused_(prefix_ + name, reason);
    }

  protected:
    void choice_index(const char* name,
                      int& index,
                      std::span<const char* const> names,
                      const char* doc) override {
        call(name, doc, Choice{&index, names});
    }
    bool begin_section(const char* name, const char* doc) override {
        lengths_.push_back(prefix_.size());
        prefix_ += name;
        if (on_section_) on_section_(prefix_, doc);
        prefix_ += '.';
        return true;
    }
    void end_section() override {
        prefix_.resize(lengths_.back());
        lengths_.pop_back();
    }

  private:
    template <typename Value>
    void call(const char* name, const char* doc, Value value) {
        on_field_(Field{prefix_ + name, doc, value});
    }
    OnField on_field_;
    OnName on_section_, on_refused_;
    std::string prefix_;
    std::vector<std::size_t> lengths_;
};

ConfigNames names_of(const VisitFields& visit) {
    ConfigNames names;
    Walker walker(
        [&](const Field& field) { names.keys.push_back(field.path); },
        [&](const std::string& path, const char*) { names.sections.push_back(path); },
        [&](const std::string& path, const char* reason) { names.refused[path] = reason; });
    visit(walker);
    return names;
}

// ---- JSON values ----------------------------------------------------------------------------------

std::string quoted(const std::string& text) {
    return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string describe(const Json& value) {
    switch (value.type()) {
        case Json::value_t::null:
            return "null";
        case Json::value_t::boolean:
            return "boolean " + value.dump();
        case Json::value_t::number_integer:
        case Json::value_t::number_unsigned:
            return "integer " + value.dump();
        case Json::value_t::number_float:
            return "number " + value.dump();
        case Json::value_t::string:
            return "string " + quoted(value.get_ref<const std::string&>().substr(0, 80));
        case Json::value_t::object:
            return "an object";
        case Json::value_t::array:
            return "an array";
        default:
            return "something else";
    }
}

std::string join(std::span<const char* const> names) {
    std::string text;
    for (const char* name : names) text += concat(text.empty() ? "" : ", ", "\"", name, "\"");
    return text;
}

std::string type_name(const Field& field) {
    struct {
        std::string operator()(bool*) const { return "boolean"; }
        std::string operator()(std::int64_t*) const { return "integer"; }
        std::string operator()(double*) const { return "number"; }
        std::string operator()(std::string*) const { return "string"; }
        std::string operator()(const Choice& c) const { return "one of " + join(c.names); }
    } name;
    return std::visit(name, field.value);
}

Json value_of(const Field& field) {
    struct {
        Json operator()(bool* v) const { return *v; }
        Json operator()(std::int64_t* v) const { return *v; }
        Json operator()(double* v) const { return *v; }
        Json operator()(std::string* v) const { return *v; }
        Json operator()(const Choice& c) const {
            return c.names[static_cast<std::size_t>(*c.index)];
        }
    } get;
    return std::visit(get, field.value);
}

// False when the value has another type, or is none of a choice's names.
struct Assign {
    const Json& from;

    bool operator()(bool* to) const {
        if (!from.is_boolean()) return false;
        *to = from.get<bool>();
        return true;
    }
    bool operator()(std::int64_t* to) const {
        if (!from.is_number_integer()) return false;
        if (from.is_number_unsigned() &&
            from.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
            return false;
        }
        *to = from.get<std::int64_t>();
        return true;
    }
    bool operator()(double* to) const {
        if (!from.is_number()) return false;
        *to = from.get<double>();
        return true;
    }
    bool operator()(std::string* to) const {
        if (!from.is_string()) return false;
        *to = from.get<std::string>();
        return true;
    }
    bool operator()(const Choice& to) const {
        if (!from.is_string()) return false;
        for (std::size_t i = 0; i < to.names.size(); ++i) {
            if (from.get_ref<const std::string&>() != to.names[i]) continue;
            *to.index = static_cast<int>(i);
            return true;
        }
        return false;
    }
};

void assign(const Field& field, const Json& value, const std::string& origin) {
    if (value.is_string() && value.get_ref<const std::string&>().find('\0') != std::string::npos) {
        fail(origin, field.path, concat("got ", describe(value), ", want text without NUL"));
    }
    if (std::visit(Assign{value}, field.value)) return;
    const bool too_large = std::holds_alternative<std::int64_t*>(field.value) &&
                           (value.is_number_unsigned() ||
                            (value.is_number_float() && std::abs(value.get<double>()) >= 0x1p63));
    fail(origin, field.path,
         concat("got ", describe(value), ", want ", type_name(field),
                too_large ? " from -2^63 to 2^63 - 1" : ""));
}

// ---- Whole documents ------------------------------------------------------------------------------

// nlohmann::json lets the last of several equal keys win; here they are an error.
class DuplicateCheck {
  public:
    explicit DuplicateCheck(const std::string& origin) : origin_(origin) {}

    bool operator()(int, Json::parse_event_t event, Json& parsed) {
        if (event == Json::parse_event_t::object_start) {
            objects_.emplace_back();
        } else if (event == Json::parse_event_t::object_end) {
            objects_.pop_back();
        } else if (event == Json::parse_event_t::key) {
            Object& object = objects_.back();
            object.current = parsed.get<std::string>();
            if (object.keys.insert(object.current).second) return true;
            std::string path;
            for (const Object& o : objects_) path += (path.empty() ? "" : ".") + o.current;
            fail(origin_, path, "the key is there twice, want it once");
        }
        return true;
    }

  private:
    struct Object {
        std::set<std::string> keys;
        std::string current;
    };
    std::string origin_;
    std::vector<Object> objects_;
};

Json parse(const std::string& text, const std::string& origin) {
    // The JSON library takes a NUL for the end.
    if (text.find('\0') != std::string::npos) fail(origin, "", "not JSON: it holds a NUL");
    try {
        return Json::parse(text, DuplicateCheck(origin), true, /*ignore_comments=*/true);
    } catch (const Json::exception& e) {
        std::string reason =
            e.what();  // "[json.exception.parse_error.101] parse error at line 3, .."
        const std::size_t tag = reason.find("] ");
        if (tag != std::string::npos) reason.erase(0, tag + 2);
        fail(origin, "", "not JSON: " + shown(reason));
    }
}

void check_keys(const Json& object,
                const std::string& prefix,
                const ConfigNames& names,
                const std::string& origin) {
    for (const auto& [key, value] : object.items()) {
        const std::string path = prefix + key;
        if (key.find('.') != std::string::npos) {
            fail(origin, path, "a key with a dot, want an object inside an object");
        }
        if (names.is_section(path)) {
            if (!value.is_object()) {
                fail(origin, path, concat("got ", describe(value), ", want an object"));
            }
            check_keys(value, path + ".", names, origin);
        } else if (!names.is_key(path)) {
            fail(origin, path, names.complaint(path));
        }
    }
}

const Json* find(const Json& root, const std::string& path) {
    const Json* at = &root;
    for (std::size_t begin = 0; begin <= path.size();) {
        const std::size_t end = std::min(path.find('.', begin), path.size());
        const auto it = at->find(path.substr(begin, end - begin));
        if (it == at->end()) return nullptr;
        at = &*it;
        begin = end + 1;
    }
    return at;
}

std::vector<std::pair<std::string, std::string>> flatten(const VisitFields& visit) {
    std::vector<std::pair<std::string, std::string>> values;
    Walker walker(
        [&](const Field& field) { values.emplace_back(field.path, value_of(field).dump()); });
    visit(walker);
    return values;
}

std::string escape_cell(const std::string& text) {
    std::string escaped;
    for (char c : text) {
        if (c == '|') escaped += '\\';
        escaped += c;
    }
    return escaped;
}

}  // namespace

void parse_config(const VisitFields& visit,
                  const std::string& json_text,
                  const std::string& origin) {
    const Json root = parse(json_text, origin);
    if (!root.is_object()) fail(origin, "", concat("got ", describe(root), ", want an object"));
    check_keys(root, "", names_of(visit), origin);
    Walker walker([&](const Field& field) {
        if (const Json* value = find(root, field.path)) assign(field, *value, origin);
    });
    visit(walker);
}

void load_config(const VisitFields& visit,
                 const std::string& path,
                 const std::vector<std::string>& overrides) {
    std::string text;
    try {
        text = read_file(path);
    } catch (const Error& e) {
        throw Error(ErrorCode::kConfig, e.what());
    }
    parse_config(visit, text, path);
    for (const std::string& assignment : overrides) apply_override(visit, assignment);
}

void apply_override(const VisitFields& visit, const std::string& assignment) {
    const std::string origin = "override " + quoted(shown(assignment));
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0) fail(origin, "", "want key=value");
    const std::string path = assignment.substr(0, equals);
    const std::string text = assignment.substr(equals + 1);

    const ConfigNames names = names_of(visit);
    if (names.is_section(path)) fail(origin, path, "a section, want one of its keys");
    if (!names.is_key(path)) fail(origin, path, names.complaint(path));

    Walker walker([&](const Field& field) {
        if (field.path != path) return;
        const bool is_text = std::holds_alternative<std::string*>(field.value) ||
                             std::holds_alternative<Choice>(field.value);
        Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
        if (is_text ? !value.is_string() : value.is_discarded()) value = text;
        if (is_text && Json(value).dump(-1, ' ', false, Json::error_handler_t::ignore) !=
                           quoted(value.get<std::string>())) {
            fail(origin, path, "got bytes that are not UTF-8, want text");
        }
        assign(field, value, origin);
    });
    visit(walker);
}

std::string to_json(const VisitFields& visit) {
    Json root = Json::object();
    Walker walker([&](const Field& field) {
        Json* at = &root;
        std::size_t begin = 0;
        for (std::size_t dot; (dot = field.path.find('.', begin)) != std::string::npos;) {
            at = &(*at)[field.path.substr(begin, dot - begin)];
            begin = dot + 1;
        }
        (*at)[field.path.substr(begin)] = value_of(field);
    });
    visit(walker);
    return root.dump(4) + "\n";
}

std::string to_markdown(const VisitFields& visit) {
    std::string table = "| Key | Type | Default | Meaning |\n| --- | --- | --- | --- |\n";
    Walker walker(
        [&](const Field& field) {
            table +=
                concat("| `", field.path, "` | ", escape_cell(type_name(field)), " | `",
                       escape_cell(value_of(field).dump()), "` | ", escape_cell(field.doc), " |\n");
        },
        [&](const std::string& path, const char* doc) {
            table += concat("| **`", path, "`** | | | **", escape_cell(doc), "** |\n");
        });
    visit(walker);
    return table;
}

std::vector<std::string> differing_paths(const VisitFields& a, const VisitFields& b) {
    const auto left = flatten(a), right = flatten(b);
    EVENKEEL_CHECK(left.size() == right.size(), "differing_paths", "got ", left.size(), " and ",
                   right.size(), " keys, want two configurations of one type");
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < left.size(); ++i) {
        if (left[i] != right[i]) paths.push_back(left[i].first);
    }
    return paths;
}

}  // namespace evenkeel
