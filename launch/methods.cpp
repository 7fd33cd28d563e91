// evenkeel methods: the names of model.method and what they stand for.
#include <algorithm>
#include <iomanip>
#include <iostream>

#include "framework/json.h"
#include "launch/commands.h"
#include "model/method.h"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;

// The settings that a method changes in a model of the default sizes, by path.
Json settings_of(const Method& method) {
    ModelConfig defaults, config;
    apply_method(method.name, config);
    const VisitFields visit = [&](ConfigVisitor& v) { config.visit_fields(v); };
    const Json values = Json::parse(to_json(visit));
    Json settings = Json::object();
    const auto changed =
        differing_paths([&](ConfigVisitor& v) { defaults.visit_fields(v); }, visit);
    for (const std::string& path : changed) {
        std::string pointer = "/" + path;
        std::replace(pointer.begin(), pointer.end(), '.', '/');
        settings["model." + path] = values.at(Json::json_pointer(pointer));
    }
    return settings;
}

}  // namespace

void run_methods(const MethodsCommand& command) {
    Json list = Json::array();
    std::size_t name_width = 0, summary_width = 0;
    for (const Method* method : methods()) {
        list.push_back({{"name", method->name},
                        {"summary", method->summary},
                        {"source", method->source},
                        {"settings", settings_of(*method)}});
        name_width = std::max(name_width, std::string(method->name).size());
        summary_width = std::max(summary_width, std::string(method->summary).size());
    }
    if (command.json) {
        std::cout << list.dump(2) << "\n";
        return;
    }
    for (const Method* method : methods()) {
        std::cout << std::left << std::setw(static_cast<int>(name_width) + 2) << method->name
                  << std::setw(static_cast<int>(summary_width) + 2) << method->summary
                  << method->source << "\n";
    }
}

}  // namespace evenkeel
