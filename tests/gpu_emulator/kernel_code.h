// A Function made ready to run: operands as slots, forms as handlers, variables at their addresses.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu_emulator/module.h"
#include "tests/gpu_emulator/thread.h"

namespace gpu_emulator {

struct Form;

struct KernelCode {
    struct Special {
        std::uint32_t slot;
        SpecialRegister which;
    };
    struct ModuleWide {
        std::uint32_t slot;
        std::uint32_t variable;
    };
    const Module* module = nullptr;
    const Function* function = nullptr;
    std::vector<Op> ops;  // one for each instruction, and an exit behind them
    std::vector<std::uint32_t> slots;
    std::vector<std::uint64_t> initial;  // of a thread's registers: constants after the real ones
    std::uint32_t first_constant = 0;    // in initial
    std::vector<Special> specials;
    std::vector<ModuleWide> module_wide;
    std::uint32_t memory_ops = 0;
    std::vector<std::uint32_t> memory_op_pc;
    // Shared memory as it is laid out here: a gap behind each static variable, the dynamic part
    // last.
    struct Range {
        std::uint32_t from, to;
    };
    std::vector<Range> shared_variables;
    std::uint32_t dynamic_shared_at = 0;

    std::string place(std::uint32_t pc) const;  // "file.cu:12"
};

// The form of one instruction, by text and operands; nullptr if there is none.
const Form* find_form(const Function& function, const Instruction& instruction);

// Called when a function is linked: nothing made of it before holds any more.
void forget_program(const Function& function);

KernelCode make_program(const Module& module, const Function& function);

// "void a::b<int>(float*)" -> "a::b<int>".
std::string short_name(const std::string& mangled);

}  // namespace gpu_emulator
