// A GPU on the CPU: runs the kernels of a Module, one CUDA thread after the other, and checks what
// hardware would let pass: races, missing barriers and waits, addresses out of bounds or
// misaligned, divergent warp operations, deadlocks, reads of memory that nobody wrote.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/gpu_emulator/module.h"

namespace gpu_emulator {

struct Dim3 {
    std::uint32_t x = 1, y = 1, z = 1;
};

// ---- Device memory. Addresses are real, but no host code can touch the memory except through
// here: outside of these functions its pages are closed, so that a host read of a device pointer
// faults as it would on a GPU.
// 256-byte aligned, filled with 0xFF and counted as unwritten.
std::uint64_t allocate(std::size_t bytes);
bool release(std::uint64_t address);  // false: not the start of a living allocation
// Stream-ordered memory: an address at once, memory there from commit() to release(), which may
// follow one another again.
std::uint64_t reserve(std::size_t bytes);
bool commit(std::uint64_t address, std::size_t bytes);  // false, and a report: it is there already
// Bounds-checked; false (and a report) if any byte lies outside living allocations.
bool copy_to_device(std::uint64_t to, const void* from, std::size_t bytes);
bool copy_to_host(void* to, std::uint64_t from, std::size_t bytes);  // unwritten bytes are reported
bool copy_on_device(std::uint64_t to, std::uint64_t from, std::size_t bytes);
bool set_on_device(std::uint64_t to, int byte, std::size_t bytes);
bool is_device_address(std::uint64_t address);
bool in_device_window(std::uint64_t address);  // whether there is memory or not

// ---- Kernels

// Resolves every instruction's form; throws std::runtime_error with the list of all forms that are
// not in the table, so that nothing is ever executed as something else.
void link(Module& module);

struct Launch {
    Dim3 grid, block;
    std::size_t dynamic_shared_bytes = 0;
    std::vector<std::byte> parameters;  // laid out as Function::parameters
};
// False if anything was reported. module_wide holds the addresses of Module::variables.
bool run(const Module& module,
         const Function& function,
         const Launch& launch,
         const std::vector<std::uint64_t>& module_wide);

// ---- What was seen

// Prints "[gpu emulator] WHAT ... kernel NAME, FILE:LINE, block (x,y,z) thread (x,y,z)[, and ...]"
// once per kind and place, and makes the process fail: at exit the status becomes 1 if it was 0.
void report(const std::string& text);
std::size_t report_count();
// For tests that provoke reports: lets all streams do what they can, returns the reports and forgets
// them.
std::vector<std::string> take_reports();

// Per kernel name, summed over launches since the last reset: what the access patterns would cost.
struct Counters {
    std::uint64_t shared_requests = 0;    // warp-wide shared loads, stores, ldmatrix phases
    std::uint64_t shared_wavefronts = 0;  // passes they take; bank conflicts = wavefronts - ideal
    std::uint64_t shared_ideal = 0;       // passes if no two lanes met in a bank
    std::uint64_t global_requests = 0;    // warp-wide global loads, stores, cp.async
    std::uint64_t global_sectors = 0;     // 32-byte sectors they touch
    std::uint64_t global_bytes = 0;       // bytes asked for
    std::uint64_t instructions = 0;       // by threads
    // Bank conflicts by source line "file:line".
    std::map<std::string, std::uint64_t> conflicts_at;
};
// Both let all streams do what they can first.
const std::map<std::string, Counters>& counters();
void reset_counters();

// Calls of the runtime, since the last reset, that make the host wait for the device or may do so:
// cuda*Synchronize, copies that end before they return, cudaMalloc, cudaFree and their like for
// pinned memory. Queries are none.
std::uint64_t host_waits();
const std::map<std::string, std::uint64_t>& host_wait_calls();
void reset_host_waits();

// Order of threads, blocks and streams. Environment: EVENKEEL_EMULATOR_SEED (default 1); 0: in
// order, and streams do their work at once.
void set_seed(std::uint64_t seed);
std::uint64_t seed();

}  // namespace gpu_emulator
