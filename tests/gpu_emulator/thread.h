// What a CUDA thread is here: a place in the code and registers; and what one decoded instruction
// is.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace gpu_emulator {

class Block;
struct Op;

enum class Step {
    kNext,      // go on with the instruction behind this one
    kJump,      // go on at Op::target
    kIndirect,  // go on where Block::set_jump said
    kWait,      // nothing to do for this thread until others have come
    kExit,
    kStop  // the launch can't go on
};

// A register is 8 bytes whatever its type; a value lies in the low bytes, the rest is zero or
// anything.
using Handler = Step (*)(Block& block, std::uint64_t* registers, const Op& op);

constexpr std::uint32_t kNoSlot = 0xffffffffu;

// An instruction ready to run: all operands, immediates and special registers too, are slots of the
// thread's register array.
struct Op {
    Handler handler = nullptr;
    const std::uint32_t* slots =
        nullptr;                    // operands from left to right, vectors element by element
    std::uint64_t offset = 0;       // of the address "[base + offset]"
    std::uint32_t guard = kNoSlot;  // predicate; skipped when it equals guard_skips
    bool guard_skips = false;
    bool negated = false;  // "!%p" of the predicate operand
    std::uint16_t slot_count = 0;
    std::uint8_t counted = 0;           // Form::counted
    std::uint32_t mode = 0;             // Form::mode
    std::uint32_t target = 0;           // of a branch
    std::uint32_t memory_op = kNoSlot;  // number among the function's counted memory instructions
    std::uint64_t offset2 = 0;          // of the second address (cp.async)
};

struct Thread {
    enum class State : std::uint8_t { kReady, kAtWarpOperation, kAtBarrier, kExited };
    std::uint32_t pc = 0;
    State state = State::kReady;
    std::uint32_t wait_mask = 0;     // of the warp-wide operation
    std::uint32_t wait_barrier = 0;  // number of the barrier
    std::uint64_t executed = 0;      // instructions
};

template <class T>
inline T get(const std::uint64_t* registers, std::uint32_t slot) {
    if constexpr (std::is_same_v<T, bool>) {
        return (registers[slot] & 1) != 0;
    } else {
        T value;
        std::memcpy(&value, &registers[slot], sizeof(T));
        return value;
    }
}

template <class T>
inline void put(std::uint64_t* registers, std::uint32_t slot, T value) {
    if constexpr (std::is_same_v<T, bool>) {
        registers[slot] = value ? 1 : 0;
    } else {
        std::uint64_t bits = 0;
        std::memcpy(&bits, &value, sizeof(T));
        registers[slot] = bits;
    }
}

}  // namespace gpu_emulator
