// What ptxas made of every kernel of the project, for sm_80 and sm_90: no spilled registers, the
// registers and shared memory that tests/golden/kernel_resources.txt lists, and tensor cores fed
// through ldmatrix and cp.async where there is attention. To write the list anew after a deliberate
// change:
//     EVENKEEL_WRITE_GOLDEN=1 build/tests/kernel_resources/kernel_resources_test
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/gpu_emulator/fatbin.h"
#include "tests/kernel_resources/cubin.h"

namespace kernel_resources {
namespace {

const std::string kGolden = std::string(EVENKEEL_TEST_GOLDEN) + "/kernel_resources.txt";
const std::string kCompiler = std::string("nvcc ") + EVENKEEL_NVCC_VERSION;

std::vector<Kernel> kernels_for(int arch) {
    std::vector<Kernel> all;
    for (const std::string_view cubin : gpu_emulator::registered_cubins(arch))
        for (const Kernel& kernel : kernels_of(cubin)) all.push_back(kernel);
    return all;
}

std::string label(int arch, const Kernel& kernel) {
    return "sm_" + std::to_string(arch) + " " + kernel.name;
}

// "registers bytes" by label.
std::map<std::string, std::string> found() {
    std::map<std::string, std::string> all;
    for (const int arch : {80, 90})
        for (const Kernel& kernel : kernels_for(arch))
            all[label(arch, kernel)] =
                std::to_string(kernel.registers) + " " + std::to_string(kernel.static_shared_bytes);
    return all;
}

class KernelResources : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Architectures, KernelResources, ::testing::Values(80, 90));

TEST_P(KernelResources, NoKernelSpillsOrNeedsAStack) {
    const std::vector<Kernel> kernels = kernels_for(GetParam());
    ASSERT_GE(kernels.size(), 10U);
    for (const Kernel& kernel : kernels) {
        EXPECT_EQ(kernel.stack_bytes, 0) << label(GetParam(), kernel) << ": bytes of stack";
        EXPECT_EQ(kernel.local_accesses, 0)
            << label(GetParam(), kernel) << ": loads and stores of local memory";
        EXPECT_GT(kernel.registers, 0) << label(GetParam(), kernel);
    }
}

TEST_P(KernelResources, AttentionMultipliesOnTensorCoresFromSharedMemory) {
    std::size_t products = 0;
    for (const Kernel& kernel : kernels_for(GetParam())) {
        if (kernel.tensor_products == 0) continue;
        ++products;
        EXPECT_GT(kernel.matrix_loads, 0) << label(GetParam(), kernel) << " loads no matrix (LDSM)";
        EXPECT_GT(kernel.async_copies, 0)
            << label(GetParam(), kernel) << " copies nothing asynchronously (LDGSTS)";
    }
    // Forward with and without telemetry, for two types and four head widths.
    EXPECT_GE(products, 16U) << "kernels with tensor-core products (HMMA)";
}

TEST(KernelResources, RegistersAndSharedMemoryAreTheListedOnes) {
    const std::map<std::string, std::string> now = found();
    if (std::getenv("EVENKEEL_WRITE_GOLDEN")) {
        std::ofstream file(kGolden);
        file << kCompiler << "\nregisters and bytes of static shared memory of each kernel\n";
        for (const auto& [name, values] : now) file << values << " " << name << "\n";
        ASSERT_TRUE(file.flush().good()) << kGolden;
    }
    std::ifstream file(kGolden);
    ASSERT_TRUE(file.good()) << "no " << kGolden;
    std::string compiler, line;
    std::getline(file, compiler);
    if (compiler != kCompiler)
        GTEST_SKIP() << "the list is of " << compiler << ", this build of " << kCompiler;
    std::getline(file, line);  // the heading
    std::map<std::string, std::string> listed;
    while (std::getline(file, line)) {
        const std::size_t name = line.find(' ', line.find(' ') + 1) + 1;
        listed[line.substr(name)] = line.substr(0, name - 1);
    }
    const std::string advice =
        ". After a deliberate change run this program with EVENKEEL_WRITE_GOLDEN=1.";
    for (const auto& [name, values] : now)
        EXPECT_EQ(values, listed.count(name) ? listed[name] : "not listed")
            << name << " (registers, bytes of static shared memory)" << advice;
    for (const auto& [name, values] : listed)
        EXPECT_TRUE(now.count(name)) << name << " is listed, but there is no such kernel" << advice;
}

TEST(KernelNames, AreShort) {
    EXPECT_EQ(short_name("_ZN8evenkeel4cuda20flash_forward_kernelINS0_12ForwardTilesI13__nv_"
                         "bfloat16Li64ELb0EEELb1EEEv"
                         "NS0_12FlashProblemENS0_15ForwardPartialsE"),
              "flash_forward_kernel<ForwardTiles<__nv_bfloat16, 64, false>, true>");
    EXPECT_EQ(short_name("plain"), "plain");
}

}  // namespace
}  // namespace kernel_resources
