// Asks a GPU every case and writes its answers: record_instructions FILE. Exits with 1 if an answer
// is not what the PTX ISA says (it is recorded all the same, and named) or a case can't run.
#include <cuda_runtime.h>

#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>

#include "tests/gpu_emulator/instructions/cases.h"
#include "tests/gpu_emulator/instructions/forms.h"
#include "tests/gpu_emulator/instructions/golden.h"

namespace {

std::string device_name() {
    cudaDeviceProp properties{};
    if (const cudaError_t error = cudaGetDeviceProperties(&properties, 0); error != cudaSuccess)
        throw std::runtime_error(std::string("no GPU: ") + cudaGetErrorString(error));
    int driver = 0;
    cudaDriverGetVersion(&driver);
    return std::string(properties.name) + ", compute capability " +
           std::to_string(properties.major) + "." + std::to_string(properties.minor) +
           ", driver for CUDA " + std::to_string(driver / 1000) + "." +
           std::to_string(driver % 1000 / 10);
}

int record(const std::string& path) {
    instructions::Golden golden;
    golden.device = device_name();
    std::size_t different = 0, failed = 0;
    for (const instructions::Case& c : instructions::all_cases()) {
        if (!instructions::can_run(c)) continue;
        const std::string name = instructions::golden_name(c);
        try {
            const instructions::Result result = instructions::run(c.snippet, c.in);
            golden.cases[name] = instructions::golden_of(c, result);
            const std::string wrong = instructions::difference(c, result);
            if (wrong.empty()) continue;
            ++different;
            std::cerr << name << ": " << wrong << "\n";
        } catch (const std::exception& error) {
            ++failed;
            std::cerr << name << ": " << error.what() << "\n";
        }
    }
    std::ofstream file(path);
    instructions::write_golden(file, golden);
    if (!file.flush()) throw std::runtime_error("can't write " + path);
    std::cout << "recorded " << golden.cases.size() << " cases on " << golden.device << " in "
              << path << "; " << different << " answers differ from the manual's, " << failed
              << " cases failed\n";
    return different + failed == 0 ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 2) {
        std::cerr << "usage: record_instructions FILE\n";
        return 2;
    }
    try {
        return record(arguments[1]);
    } catch (const std::exception& error) {
        std::cerr << error.what() << "\n";
        return 1;
    }
}
