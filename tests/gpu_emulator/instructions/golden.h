// What a GPU answered to the cases, in a file: for each case the outputs and bytes that differ from
// what the case expects; everything else is as expected. Text, so that a change of it can be read.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/gpu_emulator/instructions/cases.h"

namespace instructions {

struct GoldenCase {
    Word inputs = 0;  // hash of what was asked: the snippet and all inputs
    std::vector<std::tuple<std::size_t, std::size_t, Word>> out;  // thread, output, bits
    std::vector<std::pair<std::size_t, std::byte>> shared, global;
};

struct Golden {
    std::string device;
    std::map<std::string, GoldenCase> cases;  // by golden_name()
};

std::string golden_name(const Case& c);

GoldenCase golden_of(const Case& c, const Result& result);

// Empty if the result repeats the recorded one, bit by bit or within twice the case's tolerance
// where it has one; else what is wrong.
std::string replay(const Case& c, const GoldenCase& recorded, const Result& got);

void write_golden(std::ostream& file, const Golden& golden);
Golden read_golden(std::istream& file);  // throws std::runtime_error at what it can't read

}  // namespace instructions
