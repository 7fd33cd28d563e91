#include "launch/report_bars.h"

#include <algorithm>

#include "launch/report_spec.h"

namespace evenkeel {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kBarHeight = 20;  // pixels

Json values_of(const StackedBars& bars) {
    Json values = Json::array();
    for (std::size_t i = 0; i < bars.bars.size(); ++i) {
        for (const StackedBars::Part& part : bars.parts) {
            values.push_back({{"bar", i},
                              {"name", bars.bars[i]},
                              {"part", part.name},
                              {"color", part.color},
                              {"v", rounded(part.values[i])}});
        }
    }
    return values;
}

}  // namespace

Figure figure_of(const std::string& title, const StackedBars& bars) {
    StackedBars drawn = bars;
    std::erase_if(drawn.parts, [](const StackedBars::Part& part) {
        return std::all_of(part.values.begin(), part.values.end(),
                           [](double value) { return value == 0.0; });
    });
    Figure figure;
    figure.title = title;
    if (drawn.bars.empty() || drawn.parts.empty()) return figure;
    for (const StackedBars::Part& part : drawn.parts) {
        figure.keys.push_back({part.name, part.color, "line"});
    }
    Json spec = base_spec(40 + kBarHeight * static_cast<int>(drawn.bars.size()));
    spec["data"] = {{{"name", "parts"},
                     {"values", values_of(drawn)},
                     {"transform", {{{"type", "stack"}, {"groupby", {"bar"}}, {"field", "v"}}}}}};
    Json names = Json::array(), places = Json::array();
    for (std::size_t i = 0; i < drawn.bars.size(); ++i) places.push_back(i);
    for (const std::string& name : drawn.bars) names.push_back(name);
    spec["scales"] = {{{"name", "x"},
                       {"type", "linear"},
                       {"range", "width"},
                       {"domain", {{"data", "parts"}, {"field", "y1"}}},
                       {"nice", 5},
                       {"zero", true}},
                      {{"name", "y"},
                       {"type", "band"},
                       {"range", "height"},
                       {"domain", places},
                       {"padding", 0.25}}};
    Json labels;
    labels["labels"]["update"]["text"] = signal(names.dump() + "[datum.value]");
    spec["axes"] = {{{"orient", "bottom"},
                     {"scale", "x"},
                     {"title", drawn.unit},
                     {"grid", true},
                     {"labelOverlap", true},
                     {"tickCount", signal("ceil(width / 110)")}},
                    {{"orient", "left"},
                     {"scale", "y"},
                     {"ticks", false},
                     {"labelLimit", signal("max(90, width * 0.4)")},
                     {"encode", labels}}};
    spec["marks"] = {
        {{"type", "rect"},
         {"from", {{"data", "parts"}}},
         {"encode",
          {{"update",
            {{"x", {{"scale", "x"}, {"field", "y0"}}},
             {"x2", {{"scale", "x"}, {"field", "y1"}}},
             {"y", {{"scale", "y"}, {"field", "bar"}}},
             {"height", {{"scale", "y"}, {"band", 1}}},
             {"fill", {{"field", "color"}}},
             {"tooltip", signal("{title: datum.name, part: datum.part, " + Json(drawn.unit).dump() +
                                ": format(datum.v, '" + drawn.format + "')}")}}}}}}};
    figure.spec = spec.dump();
    return figure;
}

}  // namespace evenkeel
