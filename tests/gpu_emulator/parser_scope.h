// Names that a PTX block declares: registers, labels, variables. Internal to the parser.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/gpu_emulator/module.h"

namespace gpu_emulator {

// What one pair of braces holds. Inline assembly opens blocks of its own.
struct Scope {
    struct Range {
        int first = 0;
        int count = 0;
    };
    std::unordered_map<std::string_view, int> registers;
    std::unordered_map<std::string_view, Range> ranges;   // "%r<33>": %r0 .. %r32
    std::unordered_map<std::string_view, int> variables;  // into Function::variables
    std::unordered_map<std::string_view, int> labels;     // instruction numbers
    // .branchtargets of a brx.idx: names of labels.
    std::unordered_map<std::string_view, std::vector<std::string_view>> targets;

    // Branches to labels that had not been seen when they were read.
    struct Pending {
        std::string_view label;
        int line = 0;
        std::size_t instruction = 0, operand = 0;
        int element = -1;  // of a vector of labels
    };
    std::vector<Pending> pending;
};

// The value of an immediate: integers sign-extended, floats by their bits. Throws as fail_at()
// does.
std::uint64_t parse_immediate(std::string_view text, bool negative, int line);

// Bytes of ".u32", ".f64", ".pred" ...; 0 if it is not a type.
std::size_t bytes_of_type(std::string_view type);

// "%tid.x" and the like; -1 if it is none.
int special_register(std::string_view name);

}  // namespace gpu_emulator
