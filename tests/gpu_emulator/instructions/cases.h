// What each PTX instruction must do, as cases for the harness: written from the tables and formulas
// of NVIDIA's PTX ISA manual (chapter 9), never from the emulator that they test.
#pragma once

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/gpu_emulator/instructions/harness.h"

namespace instructions {

// How a result's bits are to be read. A NaN equals every NaN: the manual leaves the payload open.
enum class Kind { kBits, kF64, kF32, kF16, kBf16, kF16x2, kBf16x2 };

// One result of one thread. tolerance: how far the value may be from the expected one, in the same
// unit.
struct Expected {
    Word bits = 0;
    double tolerance = 0;
    bool any = false;  // the manual leaves it open
};

struct Expectation {
    std::vector<std::vector<Expected>> out;  // [thread][output]
    Bytes shared, global;                    // empty: unchanged
};

struct Case {
    std::string form;  // the instruction under test, as the PTX spells it
    std::string name;  // what about it; unique with the form
    Snippet snippet;
    std::vector<Kind> kinds;  // of the outputs; missing ones are kBits
    Lanes in;
    std::function<Expectation(const Lanes&)> expect;
};

// All cases, by subject.
std::vector<Case> integer_cases();
std::vector<Case> bit_cases();
std::vector<Case> float_cases();
std::vector<Case> half_cases();  // fp16 and bf16 arithmetic
std::vector<Case> conversion_cases();
std::vector<Case> comparison_cases();
std::vector<Case> control_cases();
std::vector<Case> memory_cases();
std::vector<Case> atomic_cases();
std::vector<Case> async_copy_cases();
std::vector<Case> warp_cases();
std::vector<Case> matrix_cases();
std::vector<Case> all_cases();

// Empty if the result is what is expected; else what is wrong, first of all where: lane, inputs,
// got, wanted.
std::string difference(const Case& c, const Result& got);
// The same between two results, within twice the tolerances of the case: a recorded one and a
// replayed one.
std::string difference(const Case& c, const Result& got, const Result& recorded);
// The same bits, or NaNs both, in each half of a pair.
bool same_number(Kind kind, Word a, Word b);

// ---- Building cases

// One thread's inputs -> its outputs.
using LaneFunction = std::function<std::vector<Expected>(const std::vector<Word>&)>;

// An instruction that works on each lane by itself: "form %o0, %i0, %i1, ...;", or body where it is
// given.
Case lane_case(const std::string& form,
               const std::vector<int>& in,
               const std::vector<int>& out,
               const std::vector<Kind>& kinds,
               const Lanes& values,
               const LaneFunction& function,
               const std::string& body = "",
               const std::string& name = "");

// For instructions that only newer GPUs have.
Case needing(int arch, Case c);

// Every combination of the values of each operand, filled up with repetitions to whole warps.
Lanes combinations(const std::vector<std::vector<Word>>& operands);
// count rows of random bits of the given widths, the same on every machine.
Lanes random_lanes(std::size_t count, const std::vector<int>& widths, std::uint64_t seed);
Lanes joined(Lanes first, const Lanes& second);
// Whole warps: repeats the rows from the start.
Lanes whole_warps(Lanes rows, std::size_t block = 32);

// ---- Numbers

float as_float(Word bits);
double as_double(Word bits);
Word bits_of(float value);
Word bits_of(double value);
double f16_value(Word bits);
double bf16_value(Word bits);

enum class Rounding { kNearest, kZero, kDown, kUp };
// The nearest value of a format with `digits` significand bits (the leading one included) and
// exponents from lowest to highest (of the leading bit); subnormals kept; beyond the largest:
// infinity, or the largest where the rounding points back to it.
double rounded(double value, int digits, int lowest, int highest, Rounding rounding);
Word f32_bits(double value, Rounding rounding = Rounding::kNearest);
Word f16_bits(double value, Rounding rounding = Rounding::kNearest);
Word bf16_bits(double value, Rounding rounding = Rounding::kNearest);
double value_of(Kind kind, Word bits);  // of a scalar kind

// Types as PTX spells them: the bits of "s32", "bf16", "f16x2"; of a register that holds one, at
// least 16.
int width_of(const std::string& type);
int register_width(const std::string& type);
Word low_bits(Word value, int width);
__int128 integer_value(const std::string& type, Word bits);  // of "u8" .. "s64"

float flushed(float value);  // .ftz: subnormal -> zero of its sign

const std::vector<Word>& f32_edges();
const std::vector<Word>& f64_edges();
const std::vector<Word>& f16_edges();
const std::vector<Word>& bf16_edges();
const std::vector<Word>& u32_edges();
const std::vector<Word>& u64_edges();
const std::vector<Word>& u16_edges();

Word stored(const Bytes& bytes, std::size_t at, int width);
void store(Bytes& bytes, std::size_t at, int width, Word value);
Bytes bytes_of(const std::vector<std::uint32_t>& words);
Bytes counted_bytes(std::size_t count);  // byte i = i * 7 + i / 256 + 3: no two neighbours alike

// Concatenates, for the lists of cases.
void append(std::vector<Case>& to, std::vector<Case> from);

}  // namespace instructions
