// What the accesses of a warp would cost together. Threads run one by one: an access waits here
// until all lanes of its warp have made theirs at the same instruction for the same time, or a
// barrier ends the wait.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/gpu_emulator/machine.h"

namespace gpu_emulator {

struct KernelCode;

class AccessCounter {
  public:
    void begin_launch(const KernelCode& program, std::uint32_t threads);
    // A lane's access, or that its guard kept it from one (bytes 0).
    void shared(std::uint32_t thread,
                std::uint32_t memory_op,
                std::uint64_t address,
                std::uint32_t bytes) {
        add(thread, 2 * memory_op, address, bytes);
    }
    void global(std::uint32_t thread,
                std::uint32_t memory_op,
                std::uint64_t address,
                std::uint32_t bytes) {
        add(thread, 2 * memory_op + 1, address, bytes);
    }
    void skipped(std::uint32_t thread, std::uint32_t memory_op, std::uint8_t kinds);
    // Eight rows of 16 bytes read together by ldmatrix.
    void matrix(std::uint32_t memory_op, const std::uint64_t* rows);
    void barrier();  // what is incomplete stays so
    void end_launch(Counters& totals, const KernelCode& program);

  private:
    struct Request {
        std::uint32_t seen = 0, active = 0, bytes = 0;
        std::uint64_t address[32];
    };
    struct Queue {
        std::vector<Request> requests;
        std::uint16_t done[32] = {};  // by lane: how many of the requests it has joined
        bool listed = false;
    };
    void add(std::uint32_t thread, std::uint32_t queue, std::uint64_t address, std::uint32_t bytes);
    void price(const Request& request, std::uint32_t queue);
    void price_shared(const std::uint64_t* addresses,
                      std::uint32_t active,
                      std::uint32_t bytes,
                      std::uint32_t memory_op);
    void flush(std::uint32_t index);

    std::uint32_t threads_ = 0, queues_per_warp_ = 0;
    std::vector<Queue> queues_;
    std::vector<std::uint32_t> open_;
    std::vector<std::uint64_t> conflicts_;  // by memory op
    Counters sum_;
};

Counters& counters_of(const std::string& kernel);

}  // namespace gpu_emulator
