// What ptxas made of a kernel, read from the machine code in a program (an ELF file for each
// architecture).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kernel_resources {

struct Kernel {
    std::string name;  // demangled, without return type, parameters and the project's namespaces
    int registers = 0;
    int static_shared_bytes = 0;
    int stack_bytes = 0;  // frame, spilled registers included
    // Instructions in its text.
    int tensor_products = 0;  // HMMA
    int matrix_loads = 0;     // LDSM
    int async_copies = 0;     // LDGSTS
    int local_accesses = 0;   // LDL, STL
};

// Throws std::runtime_error if it is not such a file.
std::vector<Kernel> kernels_of(std::string_view cubin);

std::string short_name(const std::string& mangled);

}  // namespace kernel_resources
