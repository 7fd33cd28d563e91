// Runs targets without libFuzzer: every file of a target's corpus, and then changes of them that are the same in each
// run. Usage: fuzz_replay TARGET CORPUS CHANGES. What fails is written to a file named on standard error.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/fuzz/harness.h"

// One function for each target: CMakeLists.txt gives LLVMFuzzerTestOneInput its name, and lists them all.
#define TARGET(name) extern "C" int name##_one_input(const std::uint8_t* data, std::size_t size);
EVENKEEL_FUZZ_TARGETS
#undef TARGET

// Of a program that is built with a sanitizer, which may end it by itself.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

using Input = std::vector<std::uint8_t>;
using Target = int (*)(const std::uint8_t*, std::size_t);

struct Named {
    const char* name;
    Target run;
};
#define TARGET(name) {#name, name##_one_input},
constexpr Named kTargets[] = {EVENKEEL_FUZZ_TARGETS};
#undef TARGET

const Input* running = nullptr;
std::string origin;

void keep_input() {
    if (running == nullptr) return;
    const std::string path =
        (std::filesystem::temp_directory_path() / ("fuzz_finding_" + std::to_string(::getpid())))
            .string();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(running->data()),
               static_cast<std::streamsize>(running->size()));
    std::fprintf(stderr, "finding: %s, kept as %s\n", origin.c_str(), path.c_str());
    running = nullptr;
}

extern "C" void on_signal(int signal) {
    keep_input();
    std::signal(signal, SIG_DFL);
    std::raise(signal);
}

class Mutator {
  public:
    explicit Mutator(const std::vector<Input>& corpus) : corpus_(corpus), random_(1) {}

    Input next() {
        Input input = any();
        for (std::uint32_t left = 1 + below(4); left > 0; --left) change(input);
        input.resize(std::min<std::size_t>(input.size(), kLongest));
        return input;
    }

  private:
    static constexpr std::size_t kLongest = 1 << 14;

    // (Not a distribution of the standard library: each has its own.)
    std::uint32_t below(std::size_t bound) {
        return bound == 0 ? 0 : static_cast<std::uint32_t>(random_() % bound);
    }
    const Input& any() { return corpus_[below(corpus_.size())]; }

    void insert(Input& input, const Input& piece) {
        input.insert(input.begin() + below(input.size() + 1), piece.begin(), piece.end());
    }

    Input piece_of(const Input& input) {
        const std::size_t begin = below(input.size()), most = input.size() - begin;
        const std::size_t length = most == 0 ? 0 : 1 + below(std::min<std::size_t>(most, 64));
        return {input.begin() + static_cast<std::ptrdiff_t>(begin),
                input.begin() + static_cast<std::ptrdiff_t>(begin + length)};
    }

    void change(Input& input) {
        static const std::string kPieces[] = {"0",
                                              "-1",
                                              "1e400",
                                              "18446744073709551615",
                                              "9223372036854775808",
                                              "4294967296",
                                              "1e18",
                                              "null",
                                              "true",
                                              "{",
                                              "}",
                                              "[",
                                              "]",
                                              ",",
                                              ":",
                                              "\"",
                                              "\\u0000",
                                              "\\ud800",
                                              "\xff",
                                              std::string(4, '\0'),
                                              std::string(8, '\xff'),
                                              std::string(300, '['),
                                              "/*",
                                              "."};
        if (input.empty()) input.push_back(0);
        const std::size_t at = below(input.size());
        switch (below(7)) {
            case 0:
                input[at] ^= static_cast<std::uint8_t>(1u << below(8));
                break;
            case 1:
                input[at] = static_cast<std::uint8_t>(below(256));
                break;
            case 2:
                input.resize(at);
                break;
            case 3:
                input.erase(input.begin() + static_cast<std::ptrdiff_t>(at),
                            input.begin() + static_cast<std::ptrdiff_t>(
                                                std::min(at + 1 + below(16), input.size())));
                break;
            case 4: {
                const std::string& piece = kPieces[below(std::size(kPieces))];
                insert(input, {piece.begin(), piece.end()});
                break;
            }
            case 5:  // of itself, or of another
                insert(input, piece_of(below(2) == 0 ? Input(input) : any()));
                break;
            case 6: {  // digits are sizes and offsets
                const auto digit =
                    std::find_if(input.begin() + static_cast<std::ptrdiff_t>(at), input.end(),
                                 [](std::uint8_t byte) { return byte >= '0' && byte <= '9'; });
                if (digit != input.end()) *digit = static_cast<std::uint8_t>('0' + below(10));
                break;
            }
        }
    }

    const std::vector<Input>& corpus_;
    std::mt19937 random_;
};

bool run(Target target, const Input& input) {
    running = &input;
    try {
        target(input.data(), input.size());
    } catch (const std::exception& error) {
        std::fprintf(stderr, "got an exception that no caller expects: %s\n", error.what());
        keep_input();
        return false;
    }
    running = nullptr;
    return true;
}

}  // namespace

int main(int count, char** arguments) {
    const std::vector<std::string> words(arguments, arguments + count);
    const auto target = std::find_if(
        std::begin(kTargets), std::end(kTargets),
        [&](const Named& named) { return words.size() == 4 && words[1] == named.name; });
    if (target == std::end(kTargets)) {
        std::fprintf(stderr, "usage: fuzz_replay TARGET CORPUS CHANGES; targets:");
        for (const Named& named : kTargets) std::fprintf(stderr, " %s", named.name);
        std::fprintf(stderr, "\n");
        return 2;
    }
    if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(keep_input);
    std::signal(SIGABRT, on_signal);

    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(words[2])) {
        paths.push_back(entry.path().string());
    }
    std::sort(paths.begin(), paths.end());
    std::vector<Input> corpus;
    for (const std::string& path : paths) {
        std::ifstream file(path, std::ios::binary);
        corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
        origin = path;
        if (!run(target->run, corpus.back())) return 1;
    }
    if (corpus.empty()) {
        std::fprintf(stderr, "%s: got no files, want a corpus\n", words[2].c_str());
        return 1;
    }
    const long changes = std::strtol(words[3].c_str(), nullptr, 10);
    Mutator mutator(corpus);
    for (long i = 0; i < changes; ++i) {
        const Input input = mutator.next();
        origin = "change " + std::to_string(i);
        if (!run(target->run, input)) return 1;
    }
    std::printf("%s: %zu files of the corpus and %ld changes of them\n", target->name,
                corpus.size(), changes);
    return 0;
}
