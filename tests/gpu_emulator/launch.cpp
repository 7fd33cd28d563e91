// run(): the blocks of a launch, one after the other.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <unordered_map>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/machine.h"

namespace gpu_emulator {
namespace {

struct State {
    std::uint64_t seed = 1;
    std::uint64_t launches = 0;
    std::uint32_t next_serial = 1;
    Races races;
    // By the instructions' address, which stays when a module moves; dropped when they are linked
    // again.
    std::unordered_map<const Instruction*, std::unique_ptr<KernelCode>> programs;

    State() {
        if (const char* text = std::getenv("EVENKEEL_EMULATOR_SEED")) {
            seed = std::strtoull(text, nullptr, 10);
        }
    }
};

State& state() {
    static auto* s = new State;
    return *s;
}

const KernelCode& program_of(const Module& module, const Function& function) {
    std::unique_ptr<KernelCode>& program = state().programs[function.instructions.data()];
    if (!program) program = std::make_unique<KernelCode>(make_program(module, function));
    program->module = &module;
    program->function = &function;
    return *program;
}

}  // namespace

void forget_program(const Function& function) {
    state().programs.erase(function.instructions.data());
}

void set_seed(std::uint64_t seed) {
    finish_work();
    state().seed = seed;
    state().launches = 0;
}

std::uint64_t seed() { return state().seed; }

bool run(const Module& module,
         const Function& function,
         const Launch& launch,
         const std::vector<std::uint64_t>& module_wide) {
    State& s = state();
    const KernelCode& program = program_of(module, function);
    LaunchState l;
    l.program = &program;
    l.launch = &launch;
    l.name = short_name(function.name);
    l.initial = program.initial;
    for (const KernelCode::ModuleWide& m : program.module_wide) {
        l.initial[m.slot] += module_wide.at(m.variable);
    }
    const std::uint64_t threads = std::uint64_t(launch.block.x) * launch.block.y * launch.block.z;
    const std::uint64_t blocks = std::uint64_t(launch.grid.x) * launch.grid.y * launch.grid.z;
    if (threads == 0 || threads > 1024 || blocks == 0 || blocks > 0x7fffffff ||
        (function.max_threads != 0 && threads > function.max_threads)) {
        report("misuse: kernel " + l.name + " launched with " + std::to_string(blocks) +
               " blocks of " + std::to_string(threads) + " threads, built for at most " +
               std::to_string(function.max_threads));
        return false;
    }
    l.in_order = s.seed == 0;
    l.random.state = (s.seed << 32) ^ ++s.launches;
    if (s.next_serial + blocks < s.next_serial)
        throw std::runtime_error("gpu emulator: too many blocks");
    l.first_serial = s.next_serial;
    l.block_of_serial.resize(blocks);
    std::iota(l.block_of_serial.begin(), l.block_of_serial.end(), 0u);
    if (!l.in_order) std::shuffle(l.block_of_serial.begin(), l.block_of_serial.end(), l.random);
    s.races.begin_launch(l.first_serial);
    l.counter.begin_launch(program, static_cast<std::uint32_t>(threads));
    Block block(l, s.races);
    for (std::uint32_t i = 0; i < blocks; ++i) {
        const std::uint32_t serial = s.next_serial++;
        if (!block.run(l.block_of_serial[i], serial)) break;
    }
    Counters& counters = counters_of(l.name);
    l.counter.end_launch(counters, program);
    counters.instructions += l.instructions;
    return !l.reported;
}

}  // namespace gpu_emulator
