#include "tests/support/run_files.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "framework/rng.h"

namespace evenkeel::testing {
namespace {

namespace fs = std::filesystem;

std::set<std::string> files_below(const std::string& directory) {
    std::set<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(directory)) {
        if (entry.is_regular_file()) names.insert(fs::relative(entry.path(), directory).string());
    }
    return names;
}

std::string bytes_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

void write_text(const std::string& path, std::size_t bytes, std::uint64_t seed) {
    static const char* const kWords[] = {"the ",   "keel ",  "of ",    "a ",    "ship ", "holds ",
                                         "it ",    "even ",  "in ",    "wind ", "and ",  "heavy ",
                                         "sea.\n", "quiet ", "water ", "over ", "deck ", "sails "};
    const CounterRng rng(seed, purpose("test text"));
    std::string text;
    for (std::uint64_t i = 0; text.size() < bytes; ++i)
        text += kWords[rng.below(i, std::size(kWords))];
    std::ofstream(path, std::ios::binary) << text;
}

::testing::AssertionResult same_files(const std::string& got, const std::string& want) {
    const std::set<std::string> names = files_below(got);
    if (names != files_below(want)) {
        return ::testing::AssertionFailure() << got << " and " << want << " hold other files";
    }
    if (names.empty()) return ::testing::AssertionFailure() << got << " is empty";
    for (const std::string& name : names) {
        // It names the checkpoint before, which equal runs may have at other steps.
        if (std::filesystem::path(name).filename() == "manifest.json") continue;
        const std::string a = bytes_of(got + "/" + name), b = bytes_of(want + "/" + name);
        if (a.size() != b.size()) {
            return ::testing::AssertionFailure()
                   << name << ": got " << a.size() << " bytes, want " << b.size();
        }
        for (std::size_t i = 0; i < a.size(); ++i) {
            if (a[i] != b[i]) {
                return ::testing::AssertionFailure()
                       << name << " differs first at byte " << i << " of " << a.size();
            }
        }
    }
    return ::testing::AssertionSuccess();
}

}  // namespace evenkeel::testing
