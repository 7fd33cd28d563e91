#include "framework/config_names.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "framework/error.h"

namespace evenkeel {
namespace {

std::string section_of(const std::string& path) {
    const std::size_t dot = path.rfind('.');
    return dot == std::string::npos ? "" : path.substr(0, dot);
}

std::string last_name(const std::string& path) {
    const std::size_t dot = path.rfind('.');
    return dot == std::string::npos ? path : path.substr(dot + 1);
}

std::vector<std::string> words_of(const std::string& name) {
    std::vector<std::string> words(1);
    for (char c : name) {
        if (c == '_') {
            words.emplace_back();
        } else {
            words.back() += c;
        }
    }
    std::sort(words.begin(), words.end());
    return words;
}

// Spelling, or, where the words of one name are among those of the other ("lr" in "peak_lr"), the
// number of words that differ.
int name_distance(const std::string& a, const std::string& b) {
    const int spelling = edit_distance(a, b);
    std::vector<std::string> few = words_of(a), many = words_of(b);
    if (few.size() > many.size()) std::swap(few, many);
    if (!std::includes(many.begin(), many.end(), few.begin(), few.end())) return spelling;
    return std::min(spelling, static_cast<int>(many.size() - few.size()));
}

bool contains(const std::vector<std::string>& list, const std::string& path) {
    return std::find(list.begin(), list.end(), path) != list.end();
}

// What may still be a slip.
int allowed_distance(const std::string& name) {
    return std::max(2, static_cast<int>(name.size()) / 2);
}

}  // namespace

std::string nearest_name(const std::string& unknown, const std::vector<std::string>& names) {
    constexpr std::size_t kLongest = 64;  // worth comparing
    const std::string name = unknown.substr(0, kLongest);
    int best = allowed_distance(name);
    std::string nearest;
    for (const std::string& known : names) {
        const int distance = name_distance(name, known);
        if (distance < best || (distance == best && nearest.empty())) {
            best = distance, nearest = known;
        }
    }
    return nearest;
}

int edit_distance(const std::string& a, const std::string& b) {
    const std::size_t rows = a.size() + 1, columns = b.size() + 1;
    std::vector<int> table(rows * columns);
    const auto at = [&](std::size_t i, std::size_t j) -> int& { return table[i * columns + j]; };
    for (std::size_t i = 0; i < rows; ++i) {
        for (std::size_t j = 0; j < columns; ++j) {
            if (i == 0 || j == 0) {
                at(i, j) = static_cast<int>(i + j);
                continue;
            }
            const int substitute = at(i - 1, j - 1) + (a[i - 1] == b[j - 1] ? 0 : 1);
            at(i, j) = std::min({at(i - 1, j) + 1, at(i, j - 1) + 1, substitute});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                at(i, j) = std::min(at(i, j), at(i - 2, j - 2) + 1);
            }
        }
    }
    return at(a.size(), b.size());
}

bool ConfigNames::is_key(const std::string& path) const { return contains(keys, path); }
bool ConfigNames::is_section(const std::string& path) const { return contains(sections, path); }

std::string ConfigNames::complaint(const std::string& unknown) const {
    const auto reason = refused.find(unknown);
    return reason != refused.end() ? reason->second : "unknown key, " + advice(unknown);
}

std::string ConfigNames::advice(const std::string& unknown) const {
    constexpr std::size_t kLongest = 64;  // of a name worth comparing
    const std::string name = last_name(unknown).substr(0, kLongest);
    // Twice the distance, so that another section counts for less than any letter. Of names that are as near,
    // and as far from home, the one whose section is spelt most alike.
    const std::string home = section_of(unknown);
    int best = std::numeric_limits<int>::max(), best_section = best;
    std::string nearest;
    for (const std::vector<std::string>* list : {&keys, &sections}) {
        for (const std::string& path : *list) {
            const int elsewhere = section_of(path) == home ? 0 : 1;
            const int distance = 2 * name_distance(name, last_name(path)) + elsewhere;
            if (distance > best) continue;
            const int of_section = edit_distance(section_of(path), home.substr(0, kLongest));
            if (distance == best && of_section >= best_section) continue;
            best = distance, best_section = of_section, nearest = path;
        }
    }
    if (best <= 2 * allowed_distance(name) + 1) return "did you mean " + nearest + "?";

    std::string known;
    const std::string section = is_section(section_of(unknown)) ? section_of(unknown) : "";
    for (const std::vector<std::string>* list : {&sections, &keys}) {
        for (const std::string& path : *list) {
            if (section_of(path) == section) known += (known.empty() ? "" : ", ") + last_name(path);
        }
    }
    return concat("want one of ", known);
}

}  // namespace evenkeel
