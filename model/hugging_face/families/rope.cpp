// How config.json says the rotation of queries and keys.
#include <algorithm>
#include <array>
#include <cmath>

#include "framework/error.h"
#include "model/hugging_face/families/common.h"

namespace evenkeel::hugging_face {
namespace {

using Scaling = RopeConfig::Scaling;

// Where the numbers of one rotation are: a section of their own, and what lies beside it.
struct Place {
    ConfigJson section;
    std::string key;  // of the section, for messages
    double theta;
    double fraction;
};

Place find_rope(const ConfigJson& json, const Defaults& defaults, const std::string& layers) {
    Place place;
    place.theta = json.number("rope_theta", defaults.rope_theta);
    place.fraction = json.number("partial_rotary_factor", defaults.rotary_fraction);
    if (json.has("rope_scaling")) {
        // The older key comes first where both are there.
        place.section = json.section("rope_scaling");
        place.key = "rope_scaling";
        if (!place.section.keys().empty()) return place;
    }
    if (json.has("rope_parameters")) {
        place.section = json.section("rope_parameters");
        place.key = "rope_parameters";
        if (!layers.empty() && place.section.has(layers)) {
            place.section = place.section.section(layers);
            place.key += "." + layers;
        }
    }
    return place;
}

std::int64_t trained_context(const ConfigJson& json,
                             const ConfigJson& section,
                             const Defaults& defaults) {
    constexpr const char* kKey = "original_max_position_embeddings";
    if (json.has(kKey)) return json.integer(kKey);
    if (section.has(kKey)) return section.integer(kKey);
    return json.integer("max_position_embeddings", defaults.max_positions);
}

void read_yarn(const ConfigJson& json, const ConfigJson& section, RopeConfig& rope) {
    rope.scaling = Scaling::kYarn;
    const double positions =
        json.number("max_position_embeddings", static_cast<double>(rope.original_max_position));
    rope.factor =
        section.number("factor", positions / static_cast<double>(rope.original_max_position));
    rope.beta_fast = section.number("beta_fast", 32.0);
    rope.beta_slow = section.number("beta_slow", 1.0);
    if (!section.boolean("truncate", true)) {
        section.refuse("truncate",
                       "here the ramp between kept and interpolated pairs ends at whole pairs");
    }
    rope.attention_factor = section.number("attention_factor", 0.0);
    if (rope.attention_factor <= 0.0 && section.has("attention_factor")) {
        section.refuse("attention_factor",
                       "want a positive number, or none to have it follow factor");
    }
    const double mscale = section.number("mscale", 0.0),
                 all = section.number("mscale_all_dim", 0.0);
    if (rope.attention_factor == 0.0 && mscale != 0.0 && all != 0.0 && rope.factor > 1.0) {
        const double log = 0.1 * std::log(rope.factor);
        rope.attention_factor = (mscale * log + 1.0) / (all * log + 1.0);
    }
}

}  // namespace

RopeConfig read_rope(const ConfigJson& json, const Defaults& defaults, const std::string& layers) {
    const Place place = find_rope(json, defaults, layers);
    const ConfigJson& section = place.section;
    RopeConfig rope;
    rope.layout = defaults.layout;
    rope.theta = section.number("rope_theta", place.theta);
    const double fraction = section.number("partial_rotary_factor", place.fraction);
    if (fraction != 1.0 && !defaults.partial_rotary) {
        (section.has("partial_rotary_factor") ? section : json)
            .refuse("partial_rotary_factor", "in this family whole heads turn");
    }
    rope.rotary_fraction = fraction;
    if (section.has("mrope_section")) {
        section.refuse("mrope_section", "positions of several dimensions are not supported");
    }
    const char* key = section.has("rope_type") ? "rope_type" : "type";
    const std::string type = section.text(key, "default");
    if (type == "default") return rope;
    rope.original_max_position = trained_context(json, section, defaults);
    if (type == "linear") {
        rope.original_max_position = RopeConfig().original_max_position;
        rope.scaling = Scaling::kLinear;
        rope.factor = section.number("factor");
    } else if (type == "llama3") {
        rope.scaling = Scaling::kLlama3;
        rope.factor = section.number("factor");
        rope.low_freq_factor = section.number("low_freq_factor");
        rope.high_freq_factor = section.number("high_freq_factor");
    } else if (type == "yarn") {
        read_yarn(json, section, rope);
    } else {
        section.refuse(key, "supported are default, linear, llama3 and yarn");
    }
    return rope;
}

ConfigJson rope_scaling(const RopeConfig& rope) {
    static constexpr const char* kTypes[] = {"default", "linear", "llama3", "yarn"};
    ConfigJson json;
    if (rope.scaling == Scaling::kNone) return json;
    json.set("rope_type", kTypes[static_cast<int>(rope.scaling)]);
    json.set("factor", rope.factor);
    if (rope.scaling == Scaling::kLinear) return json;
    json.set("original_max_position_embeddings", rope.original_max_position);
    if (rope.scaling == Scaling::kLlama3) {
        json.set("low_freq_factor", rope.low_freq_factor);
        json.set("high_freq_factor", rope.high_freq_factor);
        return json;
    }
    json.set("beta_fast", rope.beta_fast);
    json.set("beta_slow", rope.beta_slow);
    if (rope.attention_factor > 0.0) json.set("attention_factor", rope.attention_factor);
    return json;
}

bool same_rope(const RopeConfig& a, const RopeConfig& b) {
    const auto numbers = [](const RopeConfig& rope) {
        const bool scaled = rope.scaling != Scaling::kNone;
        const bool context = scaled && rope.scaling != Scaling::kLinear;
        const bool llama3 = rope.scaling == Scaling::kLlama3, yarn = rope.scaling == Scaling::kYarn;
        return std::array<double, 9>{
            rope.theta,
            rope.rotary_fraction,
            scaled ? rope.factor : 1.0,
            context ? static_cast<double>(rope.original_max_position) : 0.0,
            llama3 ? rope.low_freq_factor : 0.0,
            llama3 ? rope.high_freq_factor : 0.0,
            yarn ? rope.beta_fast : 0.0,
            yarn ? rope.beta_slow : 0.0,
            yarn ? rope.attention_factor : 0.0};
    };
    return a.scaling == b.scaling && numbers(a) == numbers(b);
}

void write_rope(const RopeConfig& rope, const Defaults& defaults, ConfigJson& json) {
    const bool said = json.has("rope_theta") || json.has("rope_parameters");
    if (said && same_rope(read_rope(json, defaults, ""), rope)) return;
    for (const char* key : {"rope_parameters", "original_max_position_embeddings"}) json.erase(key);
    json.set("rope_theta", rope.theta);
    const ConfigJson scaling = rope_scaling(rope);
    if (scaling.keys().empty()) {
        json.set_null("rope_scaling");
    } else {
        json.set("rope_scaling", scaling);
    }
    if (defaults.partial_rotary) {
        json.set("partial_rotary_factor", rope.rotary_fraction);
    } else {
        json.erase("partial_rotary_factor");
    }
}

}  // namespace evenkeel::hugging_face
