// Strict configuration. A section is a plain struct with defaults and one visit_fields(ConfigVisitor&);
// reading, printing, comparing, documenting and overriding all come from that single list. Unknown keys
// are errors that name the nearest known one, and so are wrong types.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace evenkeel {

class ConfigVisitor {
  public:
    virtual ~ConfigVisitor() = default;
    virtual void field(const char* name, bool& value, const char* doc) = 0;
    virtual void field(const char* name, std::int64_t& value, const char* doc) = 0;
    virtual void field(const char* name, double& value, const char* doc) = 0;
    virtual void field(const char* name, std::string& value, const char* doc) = 0;

    // An enum written as one of `names`, in the order of its values from 0.
    template <typename Enum>
    void choice(const char* name,
                Enum& value,
                std::span<const char* const> names,
                const char* doc) {
        int index = static_cast<int>(value);
        choice_index(name, index, names, doc);
        value = static_cast<Enum>(index);
    }

    // A name that is no setting but that people try: reading it throws with this reason.
    virtual void refused(const char* name, const char* reason) {
        static_cast<void>(name), static_cast<void>(reason);
    }

    template <typename Section>
    void section(const char* name, Section& section, const char* doc) {
        if (!begin_section(name, doc)) return;
        section.visit_fields(*this);
        end_section();
    }

  protected:
    virtual void choice_index(const char* name,
                              int& index,
                              std::span<const char* const> names,
                              const char* doc) = 0;
    // False skips the section.
    virtual bool begin_section(const char* name, const char* doc) = 0;
    virtual void end_section() = 0;
};

// What the functions below need of a root configuration: [&](ConfigVisitor& v) { c.visit_fields(v); }.
using VisitFields = std::function<void(ConfigVisitor&)>;

// Reads the JSON object in the file (comments allowed), then each "path.to.key=value" override. Keys that
// are not there keep their values. Throws kConfig naming file, path, got and want, also for a key that is
// there twice and for a file that can't be read.
void load_config(const VisitFields& visit,
                 const std::string& path,
                 const std::vector<std::string>& overrides);
// The same from JSON text; `origin` names it in messages.
void parse_config(const VisitFields& visit,
                  const std::string& json_text,
                  const std::string& origin);
// "trainer.steps=100". Strings and choices need no quotes.
void apply_override(const VisitFields& visit, const std::string& assignment);

// The resolved values as indented JSON, keys in declaration order.
std::string to_json(const VisitFields& visit);
// A Markdown table of every key: path, type, default, meaning.
std::string to_markdown(const VisitFields& visit);
// Paths whose values differ between two configurations of the same type.
std::vector<std::string> differing_paths(const VisitFields& a, const VisitFields& b);

}  // namespace evenkeel
