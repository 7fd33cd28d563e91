// PTX in memory: what the parser makes of the text and the machine executes. Nothing here knows
// what an instruction does; that is the table of forms (forms.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gpu_emulator {

// Where in the .cu source an instruction comes from (.loc; the innermost inlined place).
struct SourceLine {
    int file = -1;  // into Module::files
    int line = 0;
    int inlined_at = -1;  // into Module::call_sites: where the line's function was inlined
};

enum class Space { kParam, kShared, kGlobal, kConst, kLocal };

struct Variable {
    std::string name;
    Space space = Space::kGlobal;
    // 0: extern .shared, whose size comes with the launch. Its offset is where the launch's part
    // starts, after the static variables.
    std::size_t bytes = 0;
    std::size_t alignment = 1;
    std::vector<std::byte> initial;  // empty: zeros
    // From the start of its space: of the parameters, of the block's shared memory, of the thread's
    // local memory. Module-wide (global, constant) variables get device memory when the module is
    // loaded.
    std::uint64_t offset = 0;
};

enum class SpecialRegister {
    kTidX,
    kTidY,
    kTidZ,
    kNtidX,
    kNtidY,
    kNtidZ,
    kCtaidX,
    kCtaidY,
    kCtaidZ,
    kNctaidX,
    kNctaidY,
    kNctaidZ,
    kLaneId,
    kWarpId,
    kNwarpId,
    kClock,
    kClock64,
    kSmId,
    kDynamicSmemSize,
    kTotalSmemSize,
    kLanemaskEq,
    kLanemaskLt,
    kLanemaskLe,
    kLanemaskGt,
    kLanemaskGe
};

struct Operand {
    enum class Kind {
        // index: into Function::registers; pair: predicate destination of "%r1|%p2", else -1
        kRegister,
        // immediate: the bits (fp32 in the low half, integers sign-extended to 64 bits)
        kImmediate,
        // index: SpecialRegister
        kSpecial,
        // address of a variable: index into Function::variables, or Module::variables (module_wide)
        kVariable,
        // address of a parameter: index into Function::parameters
        kParameter,
        // index: instruction number
        kLabel,
        // elements; of a brx.idx: its labels
        kVector,
        // [base + offset]: elements[0] is the base (register, variable, parameter or immediate),
        // immediate the byte offset
        kAddress,
        // "_": a result nobody wants
        kSink
    };
    Kind kind = Kind::kImmediate;
    int index = -1;
    int pair = -1;
    bool negated = false;      // "!%p1"
    bool module_wide = false;  // of kVariable
    std::uint64_t immediate = 0;
    std::vector<Operand> elements;
};

struct Form;  // forms.h

struct Instruction {
    std::string text;  // the whole opcode: "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
    int guard = -1;    // "@%p3 ...": a predicate register, or -1
    bool guard_negated = false;
    std::vector<Operand> operands;
    SourceLine source;
    int ptx_line = 0;
    const Form* form = nullptr;  // set by the loader, after all forms of the module have been found
};

struct Function {
    std::string name;                  // mangled
    std::vector<Variable> parameters;  // offsets as the launch lays them out
    std::size_t parameter_bytes = 0;
    std::vector<std::uint8_t> registers;  // size in bytes of each, 1 for predicates
    // .local and .shared, with offsets; the module's .shared variables too, if the function uses
    // them.
    std::vector<Variable> variables;
    std::size_t static_shared_bytes = 0, local_bytes = 0;
    std::uint32_t max_threads = 0;              // .maxntid's product, 0 if not given
    std::vector<std::uint32_t> required_block;  // .reqntid's x, y, z; empty if not given
    std::vector<Instruction> instructions;
};

struct Module {
    std::vector<std::string> files;      // of .file
    std::vector<SourceLine> call_sites;  // see SourceLine::inlined_at
    std::vector<Variable> variables;     // module-wide
    std::vector<Function> functions;     // entries; other functions are not supported
};

// Throws std::runtime_error "ptx line N: ..." at anything it does not know: it never skips what it
// can't read.
Module parse_ptx(std::string_view text);

// "mma.cuh:30, inlined at flash_attention.cu:120": innermost place first. Places in the CUDA
// toolkit's own headers are left out as long as one outside of them remains.
std::string describe(const Module& module, const SourceLine& place);

}  // namespace gpu_emulator
