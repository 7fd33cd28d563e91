// What the machine must report, and that it reports nothing else: every faulty kernel has a right
// twin.
#include "tests/gpu_emulator/machine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/gpu_emulator/machine_test_kernels.h"

namespace gpu_emulator {
namespace {

using machine_test::Case;
using machine_test::Kernel;

constexpr std::size_t kCount = 1024, kBytes = kCount * sizeof(float);

// Device memory for one kernel: in is filled, out is not.
class Buffers {
  public:
    Buffers() : in_(allocate(kBytes)), out_(allocate(kBytes)) {
        for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 61) - 20;
        copy_to_device(in_, values.data(), kBytes);
    }
    ~Buffers() {
        release(in_);
        release(out_);
    }
    const float* in() const { return reinterpret_cast<const float*>(in_); }
    float* out() const { return reinterpret_cast<float*>(out_); }
    std::vector<float> result(std::size_t count) const {
        std::vector<float> host(count);
        copy_to_host(host.data(), out_, count * sizeof(float));
        return host;
    }
    void clear() const { set_on_device(out_, 0, kBytes); }
    std::vector<float> values = std::vector<float>(kCount);

  private:
    std::uint64_t in_, out_;
};

struct Fault {
    const char* name;
    Kernel kernel;
    int wrong;
    const char* report;  // part of the report that must come
    const char* line;    // and another part
    int blocks = 1, threads = 128, shared_bytes = 0;
    int seeds = 6;       // how many are tried
    bool always = true;  // with each of them; else with some
};

// Parameters of a test are printed by name.
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

class MachineFaults : public testing::TestWithParam<Fault> {};

std::string joined(const std::vector<std::string>& reports) {
    std::string text;
    for (const std::string& r : reports) text += r + "\n";
    return text;
}

constexpr std::uint64_t kSeeds[] = {0, 1, 2, 3, 4, 5};

TEST_P(MachineFaults, AreReportedAndTheRightTwinIsNot) {
    const Fault& fault = GetParam();
    int found = 0;
    for (int seed = 0; seed < fault.seeds; ++seed) {
        for (const int wrong : {0, fault.wrong}) {
            Buffers buffers;
            buffers.clear();
            set_seed(static_cast<std::uint64_t>(seed));
            launch(fault.kernel, Case{buffers.in(), buffers.out(), wrong}, fault.blocks,
                   fault.threads, fault.shared_bytes);
            const std::string reports = joined(take_reports());
            if (wrong == 0) {
                EXPECT_EQ(reports, "") << "seed " << seed;
            } else if (fault.always || !reports.empty()) {
                ++found;
                EXPECT_NE(reports.find(fault.report), std::string::npos)
                    << "seed " << seed << ": want '" << fault.report << "', got '" << reports
                    << "'";
                EXPECT_NE(reports.find(fault.line), std::string::npos)
                    << "seed " << seed << ": want '" << fault.line << "', got '" << reports << "'";
                EXPECT_NE(reports.find("machine_test_kernels.cu:"), std::string::npos) << reports;
            }
        }
    }
    EXPECT_GT(found, 0) << "no seed shows the fault";
    set_seed(1);
}

const Fault kFaults[] = {
    {"no_barrier_between_write_and_read", Kernel::kNeighbour, 1, "race: ", "shared memory"},
    {"no_barrier_between_read_and_write", Kernel::kNeighbour, 2, "race: ", "shared memory"},
    {"no_syncwarp", Kernel::kWarpNeighbour, 1, "race: ", "shared memory"},
    {"no_barrier_for_global_memory", Kernel::kGlobalNeighbour, 1, "race: ", "global memory"},
    {"two_blocks_write_one_place", Kernel::kBlocks, 1, "race: ", "another block", 4},
    {"a_block_reads_what_another_writes", Kernel::kBlocks, 2, "race: ", "another block", 2},
    {"plain_write_among_atomics", Kernel::kAtomics, 1, "race: ", "shared memory", 3},
    {"read_past_the_end", Kernel::kReadBound, 1, "out of bounds: read of 4 bytes of global",
     "byte 4096 of an allocation of 4096"},
    {"write_past_the_end", Kernel::kWriteBound, 1, "out of bounds: write of 4 bytes of global",
     "byte 4096 of an allocation of 4096"},
    {"write_behind_a_static_array", Kernel::kStaticShared, 1,
     "out of bounds: write of 4 bytes of shared", "outside of all variables"},
    {"write_behind_dynamic_shared_memory", Kernel::kDynamicShared, 1,
     "out of bounds: write of 4 bytes of shared", "byte 512 of 512", 1, 128, 512},
    {"unwritten_shared_memory", Kernel::kUnwritten, 1, "unwritten memory: ", "shared"},
    {"unwritten_local_memory", Kernel::kLocalUnwritten, 1, "unwritten memory: ", "local"},
    {"misaligned_vector", Kernel::kMisaligned, 1, "misaligned: ", "16 bytes"},
    {"shuffles_at_two_places", Kernel::kShuffle, 1, "divergence: ", "different operations"},
    {"shuffle_with_an_exited_lane", Kernel::kShuffle, 2, "divergence: ", "exit"},
    {"shuffle_with_different_masks", Kernel::kShuffle, 3, "divergence: ", "different masks"},
    {"lanes_at_two_barriers", Kernel::kBarrierBranches, 1, "divergence: ", "different barriers"},
    {"thread_exits_before_a_barrier", Kernel::kBarrierBranches, 2, "divergence: ", "exit"},
    {"wrong_number_of_a_barrier", Kernel::kNamedBarriers, 1, "race: ", "shared memory", 1, 128, 0,
     12, false},
    {"wrong_count_of_a_barrier", Kernel::kNamedBarriers, 2, "deadlock: ", "barrier 2"},
    {"arrival_before_the_write", Kernel::kArrive, 1, "race: ", "shared memory"},
    {"write_after_the_arrival", Kernel::kArrive, 2, "race: ", "shared memory"},
    {"endless_loop", Kernel::kEndless, 1, "endless loop: ", "", 1, 1, 0, 1},
    {"no_wait_for_a_copy", Kernel::kAsyncCopy, 1, "asynchronous copy: read", "may still write"},
    {"no_barrier_behind_the_wait", Kernel::kAsyncCopy, 2, "asynchronous copy: read",
     "may still write"},
    {"stage_filled_while_it_is_read", Kernel::kAsyncCopy, 3, "race: ", "read at"},
    {"wait_for_too_few_groups", Kernel::kAsyncCopy, 4, "asynchronous copy: read",
     "may still write"},
    {"read_of_a_stage_in_flight", Kernel::kAsyncCopy, 5, "asynchronous copy: read",
     "may still write"},
    {"source_of_a_copy_overwritten", Kernel::kAsyncCopy, 6, "asynchronous copy: write",
     "may still read"},
    {"misaligned_matrix_row", Kernel::kMatrix, 1, "misaligned: ", "16 bytes", 1, 32},
    {"matrix_product_of_a_part_of_the_warp", Kernel::kMatrix, 2, "divergence: ", "exit", 1, 32},
};

INSTANTIATE_TEST_SUITE_P(All, MachineFaults, testing::ValuesIn(kFaults), [](const auto& info) {
    return std::string(info.param.name);
});

// Runs the right kernel on fresh buffers and gives its result.
std::vector<float> run_kernel(Kernel kernel,
                              const Buffers& buffers,
                              std::size_t count,
                              int threads = 128) {
    EXPECT_TRUE(launch(kernel, Case{buffers.in(), buffers.out(), 0}, 1, threads, 0));
    std::vector<float> result = buffers.result(count);
    EXPECT_EQ(joined(take_reports()), "");
    return result;
}

TEST(Machine, ExchangesThroughSharedMemory) {
    for (const std::uint64_t seed : kSeeds) {
        set_seed(seed);
        Buffers buffers;
        const std::vector<float> got = run_kernel(Kernel::kNeighbour, buffers, 128);
        for (std::size_t t = 0; t < 128; ++t) {
            ASSERT_EQ(got[t], 2 * buffers.values[(127 - t + 40) % 128]) << "thread " << t;
        }
    }
}

TEST(Machine, CopiesAsynchronouslyAndFillsWithZeros) {
    for (const std::uint64_t seed : kSeeds) {
        set_seed(seed);
        Buffers buffers;
        const std::vector<float> sums = run_kernel(Kernel::kAsyncCopy, buffers, 128);
        const std::vector<float> filled = run_kernel(Kernel::kZeroFill, buffers, 128);
        for (std::size_t t = 0; t < 128; ++t) {
            float want = 0;
            for (std::size_t i = 0; i < 4; ++i) want += buffers.values[64 * i + (t + 7) % 64];
            ASSERT_EQ(sums[t], want) << "thread " << t;
            ASSERT_EQ(filled[t], t % 4 < t / 4 % 5 ? buffers.values[t] : 0) << "thread " << t;
        }
    }
}

TEST(Machine, MultipliesMatrices) {
    Buffers buffers;
    const std::vector<float> got = run_kernel(Kernel::kMatrix, buffers, 256, 32);
    for (std::size_t i = 0; i < 256; ++i) {
        float want = 0;
        for (std::size_t k = 0; k < 16; ++k) {
            want += buffers.values[i / 16 * 16 + k] * buffers.values[i % 16 * 16 + k];
        }
        ASSERT_EQ(got[i], want) << "element " << i / 16 << ", " << i % 16;
    }
}

TEST(Machine, ReducesOverWarpsAndBlocks) {
    Buffers buffers;
    const std::vector<float> got = run_kernel(Kernel::kReductions, buffers, 768);
    for (std::size_t t = 0; t < 128; ++t) {
        float sum = 0;
        for (std::size_t i = 0; i < 32; ++i) sum += buffers.values[t / 32 * 32 + i];
        EXPECT_EQ(got[t], sum);
        EXPECT_EQ(got[128 + t], static_cast<float>(0xaaaaaaaau));
        EXPECT_EQ(got[256 + t], buffers.values[t % 16 >= 3 ? t - 3 : t]);
        EXPECT_EQ(got[384 + t], buffers.values[t % 16 < 13 ? t + 3 : t]);
        EXPECT_EQ(got[512 + t], buffers.values[t / 8 * 8 + 5]);
        EXPECT_EQ(got[640 + t], 43);
    }
}

TEST(Machine, ReportsGlobalMemoryThatNobodyWrote) {
    Buffers buffers;
    const std::uint64_t fresh = allocate(kBytes);
    launch(Kernel::kWarpNeighbour, Case{reinterpret_cast<const float*>(fresh), buffers.out(), 0}, 1,
           128, 0);
    const std::string reports = joined(take_reports());
    EXPECT_NE(reports.find("unwritten memory: read of global"), std::string::npos) << reports;
    EXPECT_TRUE(std::isnan(buffers.result(1)[0]));
    release(fresh);
}

TEST(Machine, NamesUseOfFreedMemory) {
    Buffers buffers;
    const std::uint64_t freed = allocate(kBytes);
    set_on_device(freed, 0, kBytes);
    release(freed);
    launch(Kernel::kNeighbour, Case{reinterpret_cast<const float*>(freed), buffers.out(), 0}, 1,
           128, 0);
    const std::string reports = joined(take_reports());
    EXPECT_NE(reports.find("in freed memory (4096 bytes"), std::string::npos) << reports;
    std::vector<float> host(4);
    EXPECT_FALSE(copy_to_host(host.data(), freed, 16));
    EXPECT_FALSE(copy_to_device(reinterpret_cast<std::uint64_t>(buffers.out()) + kBytes - 8,
                                host.data(), 16));
    EXPECT_FALSE(
        copy_to_host(host.data(), reinterpret_cast<std::uint64_t>(buffers.out()) + 2048, 16));
    EXPECT_EQ(take_reports().size(), 3u);
    EXPECT_FALSE(release(freed));
    EXPECT_FALSE(is_device_address(freed));
    EXPECT_TRUE(is_device_address(reinterpret_cast<std::uint64_t>(buffers.out()) + kBytes - 1));
    EXPECT_FALSE(is_device_address(reinterpret_cast<std::uint64_t>(buffers.out()) + kBytes));
}

TEST(MachineDeathTest, HostCannotTouchDeviceMemory) {
    Buffers buffers;
    EXPECT_DEATH(const_cast<volatile float*>(buffers.out())[0] = 1, "");
}

TEST(MachineDeathTest, FailsTheProcessWithAReport) {
    EXPECT_EXIT(
        {
            report("something");
            std::exit(0);
        },
        testing::ExitedWithCode(1), "gpu emulator. something");
}

TEST(MachineCounters, CountBankConflictsAndSectors) {
    struct {
        int stride;
        std::uint64_t wavefronts;
    } const cases[] = {{0, 1}, {1, 1}, {2, 2}, {3, 1}, {8, 8}, {32, 32}, {33, 1}};
    for (const auto& c : cases) {
        Buffers buffers;
        reset_counters();
        ASSERT_TRUE(machine_test::launch_strided(buffers.in(), buffers.out(), c.stride));
        const Counters& n = counters().at("machine_test::strided");
        // 32 stores without conflicts, then the load in question.
        EXPECT_EQ(n.shared_requests, 33u);
        EXPECT_EQ(n.shared_ideal, 33u);
        EXPECT_EQ(n.shared_wavefronts, 32 + c.wavefronts) << "stride " << c.stride;
        EXPECT_EQ(n.conflicts_at.empty(), c.wavefronts == 1);
        EXPECT_EQ(n.global_requests, 33u);
        EXPECT_EQ(n.global_sectors, 33u * 4);
        EXPECT_EQ(n.global_bytes, 33u * 128);
    }
    EXPECT_TRUE(take_reports().empty());
}

TEST(MachineCounters, CountConflictsOfMatrixRows) {
    Buffers buffers;
    reset_counters();
    run_kernel(Kernel::kMatrix, buffers, 256, 32);
    const Counters& n = counters().at("machine_test::matrix");
    // Rows of 32 bytes: 8 of them fill the banks twice. Two ldmatrix.x4 are 8 requests; the 8
    // stores of 2 bytes before have no conflict.
    EXPECT_EQ(n.shared_requests, 16u);
    EXPECT_EQ(n.shared_ideal, 16u);
    EXPECT_EQ(n.shared_wavefronts, 8u + 2 * 8u);
    std::uint64_t conflicts = 0;
    for (const auto& [place, count] : n.conflicts_at) conflicts += count;
    EXPECT_EQ(conflicts, 8u);
}

TEST(MachineCounters, CountAsynchronousCopies) {
    Buffers buffers;
    reset_counters();
    run_kernel(Kernel::kZeroFill, buffers, 128);
    const Counters& n = counters().at("machine_test::zero_fill");
    // One cp.async of 32 lanes in quarters, and a load by each of 4 warps. Every fifth lane reads
    // nothing.
    EXPECT_EQ(n.shared_requests, 1u + 4);
    EXPECT_EQ(n.shared_wavefronts, 4u + 4);
    EXPECT_EQ(n.global_requests, 1u + 4);
    EXPECT_EQ(n.global_sectors, 16u + 4 * 4);
}

TEST(Machine, ReportsAPlaceOnceUntilReportsAreTaken) {
    Buffers buffers;
    const Case faulty{buffers.in(), buffers.out(), 1};
    set_seed(1);
    EXPECT_FALSE(launch(Kernel::kWarpNeighbour, faulty, 1, 128, 0));
    const std::size_t count = report_count();
    EXPECT_GE(count, 1u);
    launch(Kernel::kWarpNeighbour, faulty, 1, 128, 0);
    EXPECT_EQ(report_count(), count);
    EXPECT_EQ(take_reports().size(), count);
}

}  // namespace
}  // namespace gpu_emulator
