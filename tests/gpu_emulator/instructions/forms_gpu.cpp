#include <cuda_runtime.h>

#include "tests/gpu_emulator/instructions/forms.h"

namespace instructions {

bool can_run(const Case& c) {
    static const int arch = [] {
        int major = 0, minor = 0;
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
        return 10 * major + minor;
    }();
    return c.snippet.arch <= arch;
}

std::vector<std::string> known_forms() { return {}; }

}  // namespace instructions
