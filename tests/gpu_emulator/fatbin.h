// The fat binaries that nvcc puts into a program: PTX and machine code for several architectures.
#pragma once

#include <string_view>
#include <vector>

namespace gpu_emulator {

struct FatbinEntry {
    enum class Kind { kPtx, kCubin };
    Kind kind = Kind::kPtx;
    int arch = 0;            // 80: compute_80 or sm_80
    std::string_view bytes;  // PTX without the padding around it; an ELF file
};

// Of the wrapper that __cudaRegisterFatBinary() receives, or of a fat binary itself. Throws
// std::runtime_error if it is neither, or if entries are compressed (nvcc's --no-compress).
std::vector<FatbinEntry> fatbin_entries(const void* data);
bool is_fatbin(const void* data);

// The PTX for the newest architecture that is not newer than arch. Throws std::runtime_error
// without one.
std::string_view choose_ptx(const std::vector<FatbinEntry>& entries, int arch);

// The machine code for sm_ARCH in everything that this program has registered, in order of
// registration.
std::vector<std::string_view> registered_cubins(int arch);

}  // namespace gpu_emulator
