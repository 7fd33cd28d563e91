// The checks as a table and as JSON.
#include <algorithm>
#include <sstream>

#include "framework/json.h"
#include "launch/doctor/doctor.h"

namespace evenkeel::doctor {
namespace {

constexpr std::size_t kVerdictWidth = 9, kNameWidth = 15, kIndent = 2;

// Words in lines of so many characters; what is longer than a line has one of its own.
std::vector<std::string> wrapped(const std::string& text, std::size_t width) {
    std::vector<std::string> lines{""};
    std::istringstream in(text);
    for (std::string word; in >> word;) {
        std::string& line = lines.back();
        if (!line.empty() && line.size() + 1 + word.size() > width) {
            lines.push_back(word);
        } else {
            line += (line.empty() ? "" : " ") + word;
        }
    }
    return lines;
}

std::string padded(std::string text, std::size_t width) {
    text.resize(std::max(width, text.size() + 1), ' ');
    return text;
}

const char* colour_of(Verdict verdict) {
    switch (verdict) {
        case Verdict::kOk:
            return "\x1b[32m";
        case Verdict::kWarning:
            return "\x1b[33m";
        case Verdict::kWrong:
            return "\x1b[1;31m";
    }
    return "";
}

std::size_t count(const std::vector<Check>& checks, Verdict verdict) {
    std::size_t n = 0;
    for (const Check& check : checks) n += check.verdict == verdict ? 1 : 0;
    return n;
}

}  // namespace

const char* name_of(Verdict verdict) {
    switch (verdict) {
        case Verdict::kOk:
            return "ok";
        case Verdict::kWarning:
            return "warning";
        case Verdict::kWrong:
            return "wrong";
    }
    return "";
}

std::string rank_list(const std::vector<int>& ranks) {
    std::string text;
    for (std::size_t i = 0; i < ranks.size();) {
        std::size_t end = i + 1;
        while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
        text += concat(text.empty() ? "" : ", ", ranks[i]);
        if (end - i > 1) text += concat("-", ranks[end - 1]);
        i = end;
    }
    return (ranks.size() == 1 ? "rank " : "ranks ") + text;
}

std::string text_of(const std::vector<Group>& groups) {
    if (groups.size() == 1) return groups[0].text;
    std::string text;
    for (const Group& group : groups) {
        text += concat(text.empty() ? "" : "; ", rank_list(group.ranks), ": ", group.text);
    }
    return text;
}

std::vector<Group> hosts_of(const Survey& survey) {
    return groups_of(survey.ranks, [](const RankFacts& rank) { return rank.host_key; });
}

std::string to_table(const Survey& survey,
                     const std::vector<Check>& checks,
                     int columns,
                     bool colour) {
    const std::size_t hosts = hosts_of(survey).size(), ranks = survey.ranks.size();
    std::string text = concat("evenkeel doctor: ", ranks, ranks == 1 ? " rank on " : " ranks on ",
                              hosts, hosts == 1 ? " host" : " hosts", "\n");
    const std::string margin(kIndent + kVerdictWidth + kNameWidth, ' ');
    const auto width = static_cast<std::size_t>(columns);
    const std::size_t room = width > margin.size() + 20 ? width - margin.size() : 20;
    std::string group;
    for (const Check& check : checks) {
        if (check.group != group) text += concat("\n", check.group, "\n");
        group = check.group;
        const std::string verdict = padded(name_of(check.verdict), kVerdictWidth);
        text += concat(std::string(kIndent, ' '), colour ? colour_of(check.verdict) : "", verdict,
                       colour ? "\x1b[0m" : "");
        // A name that needs more than its column has a line of its own.
        const bool is_long = check.name.size() >= kNameWidth;
        text += is_long ? concat(check.name, "\n") : padded(check.name, kNameWidth);
        bool first = !is_long;
        for (const std::string& line : wrapped(check.fact, room)) {
            text += concat(first ? "" : margin, line, "\n");
            first = false;
        }
        if (check.remedy.empty()) continue;
        first = true;
        for (const std::string& line : wrapped(check.remedy, room - 3)) {
            text += concat(margin, first ? "-> " : "   ", line, "\n");
            first = false;
        }
    }
    const std::size_t wrong = count(checks, Verdict::kWrong);
    const std::size_t warnings = count(checks, Verdict::kWarning);
    text += concat("\n", checks.size(), " checks: ", wrong == 0 ? "nothing" : concat(wrong),
                   " wrong, ", warnings, warnings == 1 ? " warning" : " warnings", "\n");
    return text;
}

std::string to_json(const Survey& survey, const std::vector<Check>& checks) {
    nlohmann::ordered_json json;
    json["ranks"] = survey.ranks.size();
    json["hosts"] = nlohmann::ordered_json::array();
    for (const Group& host : hosts_of(survey)) {
        const RankFacts& rank = survey.ranks[static_cast<std::size_t>(host.ranks[0])];
        json["hosts"].push_back({{"name", rank.host}, {"ranks", host.ranks}});
    }
    json["wrong"] = count(checks, Verdict::kWrong);
    json["warnings"] = count(checks, Verdict::kWarning);
    json["checks"] = nlohmann::ordered_json::array();
    for (const Check& check : checks) {
        json["checks"].push_back({{"group", check.group},
                                  {"name", check.name},
                                  {"verdict", name_of(check.verdict)},
                                  {"fact", check.fact},
                                  {"remedy", check.remedy}});
    }
    return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace evenkeel::doctor
