// Accesses of the same bytes by work of different streams that nothing orders: no stream, no event,
// no wait of the host. Found whatever the order in which the work was done.
#pragma once

#include <cstdint>

namespace gpu_emulator {

struct Operation;

// Which work last touched 16 bytes, by number; 0: none. Where work of several streams shares the 16
// bytes without sharing one of them, only the newest is remembered.
struct StreamAccess {
    std::uint32_t write = 0, read = 0, other_read = 0;
    std::uint16_t write_mask = 0, read_mask = 0, other_mask = 0;
};

// Gives the operation its number.
void number_operation(Operation& operation);

// Of the operation that runs; nothing outside of one. The bytes lie within 16 aligned ones.
void note_stream_access(StreamAccess& access,
                        std::uint64_t address,
                        std::uint32_t bytes,
                        bool write);
// Bytes of one page, whose accesses begin at `first`.
void note_stream_accesses(StreamAccess* first,
                          std::uint64_t address,
                          std::uint64_t bytes,
                          bool write);

}  // namespace gpu_emulator
