#include "tests/gpu_emulator/device_code.h"

#include <exception>

#include "tests/gpu_emulator/context.h"
#include "tests/gpu_emulator/machine.h"
#include "tests/gpu_emulator/replacement.h"

namespace gpu_emulator {

CodeUnit::~CodeUnit() {
    std::erase_if(program().kernels,
                  [this](const auto& entry) { return entry.second->unit == this; });
    std::erase_if(program().symbols,
                  [this](const auto& entry) { return entry.second.unit == this; });
    for (const std::uint64_t address : module_wide_) release(address);
}

cudaError_t CodeUnit::load() {
    if (!result_) result_ = load_now();
    return *result_;
}

cudaError_t CodeUnit::load_now() {
    std::string_view text = ptx_;
    if (!entries_.empty()) {
        try {
            text = choose_ptx(entries_, emulated_arch());
        } catch (const std::exception& error) {
            report(std::string("cannot load device code: ") + error.what());
            return cudaErrorNoKernelImageForDevice;
        }
    }
    try {
        module_ = parse_ptx(replaced_ptx(text));
        link(module_);
    } catch (const std::exception& error) {
        report(std::string("cannot load device code: ") + error.what());
        return cudaErrorInvalidPtx;
    }
    for (const Variable& variable : module_.variables) {
        const std::uint64_t address = allocate(variable.bytes);
        module_wide_.push_back(address);
        if (variable.initial.empty()) {
            set_on_device(address, 0, variable.bytes);
        } else {
            copy_to_device(address, variable.initial.data(), variable.bytes);
        }
    }
    for (auto& [name, kernel] : kernels_) kernel->function = find_function(name);
    return cudaSuccess;
}

Kernel* CodeUnit::kernel(const std::string& name) {
    std::unique_ptr<Kernel>& kernel = kernels_[name];
    if (kernel == nullptr) {
        kernel = std::make_unique<Kernel>();
        kernel->unit = this;
        kernel->name = name;
        kernel->function = find_function(name);
        program().kernels.emplace(kernel.get(), kernel.get());
    }
    return kernel.get();
}

const Function* CodeUnit::find_function(std::string_view name) const {
    for (const Function& function : module_.functions) {
        if (function.name == name) return &function;
    }
    return nullptr;
}

std::optional<std::pair<std::uint64_t, std::size_t>> CodeUnit::find_variable(
    std::string_view name) const {
    for (std::size_t i = 0; i < module_wide_.size(); ++i) {
        const Variable& variable = module_.variables[i];
        if (variable.name == name) return std::pair(module_wide_[i], variable.bytes);
    }
    return std::nullopt;
}

Program& program() {
    // Never destroyed: the destructors of other parts of the program still use it.
    static auto* const only = new Program;
    return *only;
}

Kernel* find_kernel(const void* function_or_handle) {
    const auto& kernels = program().kernels;
    const auto found = kernels.find(function_or_handle);
    return found == kernels.end() ? nullptr : found->second;
}

cudaError_t load_kernel(Kernel& kernel) {
    const cudaError_t error = kernel.unit->load();
    if (error != cudaSuccess) return error;
    return kernel.function == nullptr ? cudaErrorInvalidDeviceFunction : cudaSuccess;
}

std::vector<std::string_view> registered_cubins(int arch) {
    std::vector<std::string_view> cubins;
    for (const auto& unit : program().units) {
        for (const FatbinEntry& entry : unit->entries()) {
            if (entry.kind == FatbinEntry::Kind::kCubin && entry.arch == arch) {
                cubins.push_back(entry.bytes);
            }
        }
    }
    return cubins;
}

}  // namespace gpu_emulator
