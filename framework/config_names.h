// The names a configuration has, and what to say about one it has not.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace evenkeel {

struct ConfigNames {
    std::vector<std::string> keys;               // full paths in declaration order
    std::vector<std::string> sections;           // likewise
    std::map<std::string, std::string> refused;  // why, by path: ConfigVisitor::refused

    bool is_key(const std::string& path) const;
    bool is_section(const std::string& path) const;
    // Of a path that is neither: why it is refused, or that it is unknown, with advice.
    std::string complaint(const std::string& unknown) const;
    // "did you mean schedule.peak_lr?" when one is near enough, else what its section holds.
    std::string advice(const std::string& unknown) const;
};

// The name nearest to one that is not there; "" where none is near.
std::string nearest_name(const std::string& unknown, const std::vector<std::string>& names);

// Fewest insertions, deletions, substitutions and swaps of neighbours that turn a into b.
int edit_distance(const std::string& a, const std::string& b);

}  // namespace evenkeel
