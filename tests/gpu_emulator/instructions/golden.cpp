#include "tests/gpu_emulator/instructions/golden.h"

#include <istream>
#include <ostream>
#include <sstream>
#include <stdexcept>

namespace instructions {
namespace {

// FNV-1a.
struct Hash {
    Word value = 0xCBF29CE484222325;
    void add(const void* data, std::size_t bytes) {
        const auto* byte = static_cast<const unsigned char*>(data);
        for (std::size_t i = 0; i < bytes; ++i) value = (value ^ byte[i]) * 0x100000001B3;
    }
    void add(const std::string& text) { add(text.data(), text.size()); }
    void add(const Bytes& bytes) { add(bytes.data(), bytes.size()); }
};

Word hash_of(const Case& c) {
    Hash hash;
    hash.add(c.snippet.declarations);
    hash.add(c.snippet.module_declarations);
    hash.add(c.snippet.body);
    hash.add(c.snippet.shared);
    hash.add(c.snippet.global);
    hash.add(c.snippet.parameters);
    for (const auto& lane : c.in) hash.add(lane.data(), lane.size() * sizeof(Word));
    return hash.value;
}

std::vector<std::pair<std::size_t, std::byte>> changes(const Bytes& from, const Bytes& to) {
    std::vector<std::pair<std::size_t, std::byte>> found;
    for (std::size_t i = 0; i < from.size(); ++i)
        if (from[i] != to.at(i)) found.emplace_back(i, to[i]);
    return found;
}

// What the case expects to come back.
Result expected_result(const Case& c) {
    const Expectation want = c.expect(c.in);
    Result result;
    for (const auto& lane : want.out) {
        result.out.emplace_back();
        for (const Expected& value : lane) result.out.back().push_back(value.bits);
    }
    result.shared = want.shared.empty() ? c.snippet.shared : want.shared;
    result.global = want.global.empty() ? c.snippet.global : want.global;
    return result;
}

}  // namespace

std::string golden_name(const Case& c) { return c.name.empty() ? c.form : c.form + ", " + c.name; }

GoldenCase golden_of(const Case& c, const Result& result) {
    const Result expected = expected_result(c);
    GoldenCase golden;
    golden.inputs = hash_of(c);
    for (std::size_t thread = 0; thread < expected.out.size(); ++thread)
        for (std::size_t i = 0; i < expected.out[thread].size(); ++i) {
            const Kind kind = i < c.kinds.size() ? c.kinds[i] : Kind::kBits;
            const Word bits = result.out.at(thread).at(i);
            if (!same_number(kind, bits, expected.out[thread][i]))
                golden.out.emplace_back(thread, i, bits);
        }
    golden.shared = changes(expected.shared, result.shared);
    golden.global = changes(expected.global, result.global);
    return golden;
}

std::string replay(const Case& c, const GoldenCase& recorded, const Result& got) {
    if (recorded.inputs != hash_of(c))
        return "the case has changed since it was recorded: run tests/run_gpu.sh on a GPU again";
    Result wanted = expected_result(c);
    for (const auto& [thread, output, bits] : recorded.out) wanted.out.at(thread).at(output) = bits;
    for (const auto& [at, byte] : recorded.shared) wanted.shared.at(at) = byte;
    for (const auto& [at, byte] : recorded.global) wanted.global.at(at) = byte;
    return difference(c, got, wanted);
}

void write_golden(std::ostream& file, const Golden& golden) {
    file << "Answers of a GPU to tests/gpu_emulator/instructions, where they differ from the "
            "expected ones\n"
         << "device " << golden.device << "\n"
         << std::hex;
    for (const auto& [name, recorded] : golden.cases) {
        file << "case " << recorded.inputs << " " << name << "\n";
        for (const auto& [thread, output, bits] : recorded.out)
            file << "out " << thread << " " << output << " " << bits << "\n";
        for (const auto& [at, byte] : recorded.shared)
            file << "shared " << at << " " << std::to_integer<unsigned>(byte) << "\n";
        for (const auto& [at, byte] : recorded.global)
            file << "global " << at << " " << std::to_integer<unsigned>(byte) << "\n";
    }
    file << std::dec << "end " << golden.cases.size() << "\n";
}

Golden read_golden(std::istream& file) {
    Golden golden;
    GoldenCase* current = nullptr;
    bool ended = false;
    std::string text;
    std::getline(file, text);  // the heading
    for (std::size_t number = 2; std::getline(file, text); ++number) {
        std::istringstream line(text);
        std::string word;
        line >> word;
        bool good = true;
        if (word == "device") {
            std::getline(line >> std::ws, golden.device);
        } else if (word == "case") {
            GoldenCase next;
            std::string name;
            line >> std::hex >> next.inputs >> std::ws;
            good = static_cast<bool>(std::getline(line, name));
            current = &(golden.cases[name] = next);
        } else if (word == "out" && current) {
            std::size_t thread = 0, output = 0;
            Word bits = 0;
            good = static_cast<bool>(line >> std::hex >> thread >> output >> bits);
            current->out.emplace_back(thread, output, bits);
        } else if ((word == "shared" || word == "global") && current) {
            std::size_t at = 0;
            unsigned byte = 0;
            good = static_cast<bool>(line >> std::hex >> at >> byte);
            (word == "shared" ? current->shared : current->global)
                .emplace_back(at, static_cast<std::byte>(byte));
        } else if (word == "end") {
            std::size_t count = 0;
            good = static_cast<bool>(line >> count) && count == golden.cases.size();
            ended = true;
        } else {
            good = false;
        }
        if (!good)
            throw std::runtime_error("golden file, line " + std::to_string(number) +
                                     ": can't read " + text);
    }
    if (!ended) throw std::runtime_error("golden file: cut short");
    return golden;
}

}  // namespace instructions
