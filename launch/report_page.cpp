#include "launch/report_page.h"

#include <algorithm>
#include <string_view>

#include "framework/error.h"
#include "framework/storage/checkpoint.h"

namespace evenkeel {
namespace {

constexpr const char* kStyle = R"css(
:root { color-scheme: light; --ink: #1d2530; --soft: #5b6673; --line: #e3e7ec; --card: #ffffff; }
* { box-sizing: border-box; }
body { margin: 0; background: #f5f7f9; color: var(--ink);
       font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 28px 16px 48px; }
h1 { font-size: 24px; line-height: 1.25; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 17px; margin: 32px 0 12px; }
.soft { color: var(--soft); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px;
         margin: 20px 0; }
.facts div, figure, .card { background: var(--card); border: 1px solid var(--line);
                            border-radius: 8px; }
.facts div { padding: 10px 14px; }
.facts b { display: block; font-size: 21px; font-variant-numeric: tabular-nums; }
.facts span { color: var(--soft); font-size: 13px; }
.notices { border-left: 4px solid #b3261e; margin: 16px 0; font-size: 14px;
           overflow-wrap: anywhere; }
.notices .over { color: var(--soft); }
details { margin-top: 12px; }
summary { cursor: pointer; color: var(--soft); font-size: 14px; margin-bottom: 10px; }
.plots { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 12px; }
figure { margin: 0; padding: 12px 14px 8px; min-width: 0; }
figure.wide { grid-column: 1 / -1; }
@media (max-width: 760px) { .plots { grid-template-columns: minmax(0, 1fr); } }
figcaption { margin-bottom: 6px; }
figcaption b { margin-right: 6px; }
.keys { font-size: 13px; display: flex; flex-wrap: wrap; gap: 2px 16px; }
.keys i { display: inline-block; width: 18px; border-top: 3px solid; margin-right: 6px;
          vertical-align: middle; }
.keys i.dashed { border-top-style: dashed; }
.keys i.broad { border-top-width: 6px; }
.keys i.dot { width: 8px; height: 8px; border: 0; border-radius: 4px; background: currentcolor; }
.keys i.broad.dot { width: 13px; height: 13px; border-radius: 7px; }
.plot { width: 100%; overflow: hidden; }
.error { color: #a3261b; font-size: 13px; }
.card { padding: 12px 14px; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere;
      font: 13px/1.5 ui-monospace, "DejaVu Sans Mono", monospace; }
ul { margin: 16px 0; padding-left: 20px; }
/* A shadow at each edge beyond which there is more of the table; covered where its end is in sight. */
.card.table { overflow-x: auto; margin-bottom: 12px; background:
           linear-gradient(to right, var(--card) 30%, transparent) left / 36px 100% no-repeat local,
           linear-gradient(to left, var(--card) 30%, transparent) right / 36px 100% no-repeat local,
           linear-gradient(to right, #1d253040, transparent) left / 14px 100% no-repeat scroll,
           linear-gradient(to left, #1d253040, transparent) right / 14px 100% no-repeat scroll,
           var(--card); }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 3px 12px 3px 0; white-space: nowrap; }
th { color: var(--soft); font-weight: normal; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
th.words, td.words { text-align: left; white-space: normal; }
td.words:last-child { min-width: 11em; }
.settings { columns: 3 300px; column-gap: 28px; font-size: 13px; padding: 12px 14px; }
.settings div { display: flex; justify-content: space-between; gap: 12px; padding: 2px 0;
                border-bottom: 1px solid var(--line); break-inside: avoid; }
.settings div span:last-child { font-variant-numeric: tabular-nums; overflow-wrap: anywhere;
                                text-align: right; }
.settings .set span { font-weight: 600; }
#tip { position: absolute; display: none; pointer-events: none; background: #1d2530; color: #fff;
       font-size: 12px; line-height: 1.45; padding: 6px 9px; border-radius: 5px;
       white-space: pre; z-index: 9; font-variant-numeric: tabular-nums; }
)css";

// The library's modules are in CommonJS form; this is all of a loader that they need.
constexpr const char* kLoader = R"js(
const loaded = {};
function load(name) {
  if (!(name in loaded)) {
    loaded[name] = {};
    modules[name](loaded[name], load, {});
  }
  return loaded[name];
}
const transforms = load("vega-dataflow").transforms;
for (const name of ["vega-transforms", "vega-view-transforms", "vega-encode"])
  Object.assign(transforms, load(name));
)js";

constexpr const char* kDraw = R"js(
const look = {
  axis: { labelColor: "#4a5563", titleColor: "#5b6673", titleFontWeight: "normal", labelFontSize: 11,
          titleFontSize: 11, domainColor: "#c6ccd4", tickColor: "#c6ccd4", gridColor: "#e9edf1",
          labelFont: "system-ui, sans-serif", titleFont: "system-ui, sans-serif", tickSize: 4 },
  legend: { labelColor: "#4a5563", titleColor: "#5b6673", titleFontWeight: "normal",
            labelFontSize: 11, titleFontSize: 11, titleFont: "system-ui, sans-serif",
            labelFont: "system-ui, sans-serif" },
};
const tip = document.getElementById("tip");
function show_tip(_handler, event, _item, value) {
  if (!value) { tip.style.display = "none"; return; }
  const { title, ...rest } = value;
  tip.textContent = [title, ...Object.entries(rest).map(([k, v]) => k + "  " + v)].join("\n");
  tip.style.display = "block";
  const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = Math.max(4, Math.min(event.pageX + 14, room)) + "px";
  tip.style.top = event.pageY + 14 + "px";
}
function report_error(figure, error) {
  figure.dataset.state = "error";
  const line = figure.appendChild(document.createElement("p"));
  line.className = "error";
  line.textContent = "This plot could not be drawn: " + error.message;
}
function draw(figure) {
  if (figure.dataset.state !== "waiting") return;
  figure.dataset.state = "drawing";
  try {
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const view = new (load("vega-view").View)(load("vega-parser").parse(spec, look), {
      renderer: figure.dataset.renderer, container: figure.querySelector(".plot"), hover: true,
      tooltip: show_tip, logLevel: 1,
    });
    view.runAsync().then(() => { figure.dataset.state = "drawn"; },
                         error => report_error(figure, error));
  } catch (error) {
    report_error(figure, error);
  }
}
// Figures in a closed box have no width: they are drawn when it opens. report.html#all opens all.
for (const box of document.querySelectorAll("details")) {
  if (location.hash === "#all") box.open = true;
  box.addEventListener("toggle", () => {
    if (!box.open) return;
    box.querySelectorAll("figure").forEach(draw);
    window.dispatchEvent(new Event("resize"));
  });
}
for (const figure of document.querySelectorAll("figure[data-state]")) {
  const box = figure.closest("details");
  if (box === null || box.open) draw(figure);
}
)js";

// Every module that line plots and heat maps load; not the maps, forces and word clouds.
constexpr struct {
    const char* name;
    const char* file;
} kModules[] = {
    {"vega-util", "vega-util.min.js"},
    {"vega-time", "vega-time.min.js"},
    {"vega-format", "vega-format.min.js"},
    {"vega-loader", "vega-loader.min.js"},
    {"vega-dataflow", "vega-dataflow.min.js"},
    {"vega-statistics", "vega-statistics.min.js"},
    {"vega-scale", "vega-scale.min.js"},
    {"vega-canvas", "vega-canvas.min.js"},
    {"vega-scenegraph", "vega-scenegraph.min.js"},
    {"vega-expression", "vega-expression.min.js"},
    {"vega-selections", "vega-selection.min.js"},
    {"vega-functions", "vega-functions.min.js"},
    {"vega-runtime", "vega-runtime.min.js"},
    {"vega-event-selector", "vega-event-selector.min.js"},
    {"vega-transforms", "vega-transforms.min.js"},
    {"vega-view-transforms", "vega-view-transforms.min.js"},
    {"vega-encode", "vega-encode.min.js"},
    {"vega-parser", "vega-parser.min.js"},
    {"vega-view", "vega-view.min.js"},
};

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) {
        switch (c) {
            case '&':
                out += "&amp;";
                break;
            case '<':
                out += "&lt;";
                break;
            case '>':
                out += "&gt;";
                break;
            case '"':
                out += "&quot;";
                break;
            default:
                out += c;
        }
    }
    return out;
}

// "</script>" inside would end the element that holds the JSON text.
std::string inside_script(std::string json) {
    for (std::size_t at = 0; (at = json.find('<', at)) != std::string::npos;) {
        json.replace(at, 1, "\\u003c");
    }
    return json;
}

std::string modules_script(const std::string& directory) {
    std::string out = "const modules = {};\n";
    for (const auto& module : kModules) {
        out += concat("modules[\"", module.name, "\"] = function (exports, require, module) {\n",
                      read_file(directory + "/" + module.file), "\n};\n");
    }
    return out;
}

std::string figure_html(const Figure& figure) {
    std::string keys;
    for (const Figure::Key& key : figure.keys) {
        keys += concat("<span><i class=\"", key.mark, "\" style=\"color:", key.color, "\"></i>",
                       escaped(key.name), "</span>");
    }
    const std::string caption =
        concat("<figcaption><b>", escaped(figure.title), "</b><span class=\"soft\">",
               escaped(figure.subtitle), "</span>",
               figure.note.empty() ? "" : "<div>" + escaped(figure.note) + "</div>",
               keys.empty() ? "" : "<div class=\"keys\">" + keys + "</div>", "</figcaption>");
    const char* size = figure.wide ? " class=\"wide\"" : "";
    if (figure.spec.empty()) {
        return concat("<figure", size, ">", caption,
                      "<p class=\"soft\">Not recorded in this run.</p></figure>\n");
    }
    return concat("<figure", size, " data-state=\"waiting\" data-renderer=\"",
                  figure.raster ? "canvas" : "svg", "\">", caption,
                  "<div class=\"plot\"></div>\n<script type=\"application/json\">",
                  inside_script(figure.spec), "</script></figure>\n");
}

// Figures of one group, the folded ones in a box at the end.
std::string group_html(const Figure* begin, const Figure* end) {
    std::string open, folded, titles;
    std::size_t count = 0;
    for (const Figure* figure = begin; figure != end; ++figure) {
        (figure->folded ? folded : open) += figure_html(*figure);
        if (!figure->folded) continue;
        titles += (count++ == 0 ? "" : ", ") + figure->title;
    }
    std::string out;
    if (!begin->group.empty()) out += concat("<h2>", escaped(begin->group), "</h2>\n");
    if (!open.empty()) out += concat("<div class=\"plots\">\n", open, "</div>\n");
    if (count == 0) return out;
    return out + concat("<details><summary>", count, " more: ", escaped(titles),
                        "</summary>\n<div class=\"plots\">\n", folded, "</div></details>\n");
}

std::string groups_html(const std::vector<Figure>& figures) {
    std::string out;
    const Figure* const end = figures.data() + figures.size();
    for (const Figure* begin = figures.data(); begin != end;) {
        const Figure* next =
            std::find_if(begin, end, [&](const Figure& f) { return f.group != begin->group; });
        out += group_html(begin, next);
        begin = next;
    }
    return out;
}

std::string notices_html(const std::vector<Notice>& notices) {
    constexpr std::size_t kMost = 12;
    std::string out = "<div class=\"card notices\">\n";
    for (std::size_t i = 0; i < std::min(notices.size(), kMost); ++i) {
        out += concat("<div", notices[i].open ? "" : " class=\"over\"", ">",
                      escaped(notices[i].text), "</div>\n");
    }
    if (notices.size() > kMost) {
        out += concat("<div class=\"over\">and ", notices.size() - kMost, " later</div>\n");
    }
    return out + "</div>\n";
}

std::string row_html(const std::vector<std::string>& cells,
                     const char* element,
                     const std::vector<std::size_t>& words) {
    std::string out = "<tr>";
    for (std::size_t i = 0; i < cells.size(); ++i) {
        const bool is_words = std::find(words.begin(), words.end(), i) != words.end();
        out += concat("<", element, is_words ? " class=\"words\">" : ">", escaped(cells[i]), "</",
                      element, ">");
    }
    return out + "</tr>\n";
}

std::string table_html(const PageTable& table) {
    std::string out = concat("<div class=\"card table\"><b>", escaped(table.title), "</b>");
    if (!table.note.empty()) out += concat("<div class=\"soft\">", escaped(table.note), "</div>");
    out += concat("<table>\n<thead>", row_html(table.header, "th", table.words),
                  "</thead>\n<tbody>\n");
    for (const std::vector<std::string>& row : table.rows) out += row_html(row, "td", table.words);
    return out + "</tbody>\n</table></div>\n";
}

std::string settings_html(const std::vector<Setting>& settings) {
    std::string out =
        "<h2>Configuration <span class=\"soft\">bold: not the default</span></h2>\n"
        "<div class=\"card settings\">\n";
    for (const Setting& setting : settings) {
        const bool changed = setting.value != setting.standard;
        out += concat("<div", changed ? " class=\"set\"" : "", "><span>", escaped(setting.path),
                      "</span><span>", escaped(setting.value), "</span></div>\n");
    }
    return out + "</div>\n";
}

}  // namespace

std::string to_html(const ReportPage& page, const std::string& vega_directory) {
    std::string body = concat("<h1>", escaped(page.title), "</h1>\n<div class=\"soft\">",
                              escaped(page.subtitle), "</div>\n");
    if (!page.facts.empty()) {
        body += "<div class=\"facts\">\n";
        for (const Fact& fact : page.facts) {
            body += concat("<div><b>", escaped(fact.value), "</b><span>", escaped(fact.label),
                           "</span></div>\n");
        }
        body += "</div>\n";
    }
    if (!page.notices.empty()) body += notices_html(page.notices);
    if (!page.findings.empty()) {
        body += "<ul>\n";
        for (const std::string& text : page.findings)
            body += concat("<li>", escaped(text), "</li>\n");
        body += "</ul>\n";
    }
    body += groups_html(page.figures);
    if (!page.tables.empty()) body += "<h2>Tables</h2>\n";
    for (const PageTable& table : page.tables) body += table_html(table);
    if (!page.sample.empty()) {
        body += concat("<h2>A sample of generated text</h2>\n<div class=\"card\"><pre>",
                       escaped(page.sample), "</pre></div>\n");
    }
    if (!page.settings.empty()) body += settings_html(page.settings);
    return concat(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
        escaped(page.title), "</title>\n<style>", kStyle, "</style>\n</head>\n<body>\n<main>\n",
        body, "</main>\n<div id=\"tip\"></div>\n<script>\n\"use strict\";\n",
        modules_script(vega_directory), kLoader, kDraw, "</script>\n</body>\n</html>\n");
}

}  // namespace evenkeel
