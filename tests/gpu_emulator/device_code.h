// The device code of this program: what the fat binaries hold, loaded when it is first used.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/gpu_emulator/fatbin.h"
#include "tests/gpu_emulator/module.h"

namespace gpu_emulator {

class CodeUnit;

// What a cudaKernel_t points to.
struct Kernel {
    CodeUnit* unit = nullptr;
    std::string name;
    const Function* function = nullptr;  // null until the unit is loaded
    std::size_t max_dynamic_shared = 0;  // the kernel's own limit; 0: the default one
};

// One fat binary, or one PTX text.
class CodeUnit {
  public:
    explicit CodeUnit(std::vector<FatbinEntry> entries) : entries_(std::move(entries)) {}
    explicit CodeUnit(std::string ptx) : ptx_(std::move(ptx)) {}
    ~CodeUnit();
    CodeUnit(const CodeUnit&) = delete;
    CodeUnit& operator=(const CodeUnit&) = delete;

    // Parses and links at the first call. What can't be loaded is reported, once.
    cudaError_t load();
    // Any kernel of this name; whether it exists shows when the unit is loaded.
    Kernel* kernel(const std::string& name);
    // After load(): the kernel's code, and a variable's address and size.
    const Function* find_function(std::string_view name) const;
    std::optional<std::pair<std::uint64_t, std::size_t>> find_variable(std::string_view name) const;

    const Module& module() const { return module_; }
    const std::vector<std::uint64_t>& module_wide() const { return module_wide_; }
    const std::vector<FatbinEntry>& entries() const { return entries_; }

  private:
    cudaError_t load_now();

    std::vector<FatbinEntry> entries_;
    std::string ptx_;
    std::optional<cudaError_t> result_;
    Module module_;
    std::vector<std::uint64_t> module_wide_;
    std::map<std::string, std::unique_ptr<Kernel>, std::less<>> kernels_;
};

// A __device__ or __constant__ variable as host code names it.
struct Symbol {
    CodeUnit* unit = nullptr;
    std::string name;
};

struct Program {
    std::vector<std::unique_ptr<CodeUnit>> units;  // in order of registration
    std::map<const void*, Kernel*> kernels;        // by the host's stub function, and by handle
    std::map<const void*, Symbol> symbols;         // by the host's shadow variable
};

Program& program();

// The kernel that host code means by a stub function or by a handle; null if neither.
Kernel* find_kernel(const void* function_or_handle);

// Loads the kernel's unit. cudaErrorInvalidDeviceFunction if the unit has no such kernel.
cudaError_t load_kernel(Kernel& kernel);

// Of a loaded kernel: what is left of 48 KiB, or what cudaFuncSetAttribute() allowed.
std::size_t dynamic_shared_limit(const Kernel& kernel);

}  // namespace gpu_emulator
