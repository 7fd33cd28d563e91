// Moves, branches, exit and fences.
#include <cstdint>

#include "tests/gpu_emulator/block.h"
#include "tests/gpu_emulator/forms.h"

namespace gpu_emulator {
namespace {

Step jump(Block&, std::uint64_t*, const Op&) { return Step::kJump; }
Step indexed_jump(Block& block, std::uint64_t* r, const Op& op) {
    const std::uint32_t index = get<std::uint32_t>(r, op.slots[0]);
    if (index + 1 >= op.slot_count) {
        block.report_at("misuse", "brx.idx beyond its table", block.pc_of(op));
        return block.stop();
    }
    block.set_jump(op.slots[index + 1]);
    return Step::kIndirect;
}
Step finish(Block&, std::uint64_t*, const Op&) { return Step::kExit; }
Step nothing(Block&, std::uint64_t*, const Op&) { return Step::kNext; }
Step trap(Block& block, std::uint64_t*, const Op& op) {
    block.report_at("trap", "the kernel stops itself", block.pc_of(op));
    return block.stop();
}

// {a, b, ...} into one register: the first lowest. And back.
template <class Whole, class Part>
Step pack(Block&, std::uint64_t* r, const Op& op) {
    Whole v = 0;
    for (std::size_t i = 0; i < sizeof(Whole) / sizeof(Part); ++i) {
        v |= Whole(get<Part>(r, op.slots[i + 1])) << (8 * sizeof(Part) * i);
    }
    put(r, op.slots[0], v);
    return Step::kNext;
}
template <class Whole, class Part>
Step unpack(Block&, std::uint64_t* r, const Op& op) {
    constexpr std::size_t n = sizeof(Whole) / sizeof(Part);
    const Whole v = get<Whole>(r, op.slots[n]);
    for (std::size_t i = 0; i < n; ++i) put(r, op.slots[i], Part(v >> (8 * sizeof(Part) * i)));
    return Step::kNext;
}

}  // namespace

void add_control_forms(FormTable& t) {
    for (const char* type : {"b16", "u16", "s16"}) {
        t.add<std::uint16_t(std::uint16_t)>(std::string("mov.") + type,
                                            [](std::uint16_t a) { return a; });
    }
    for (const char* type : {"b32", "u32", "s32", "f32"}) {
        t.add<std::uint32_t(std::uint32_t)>(std::string("mov.") + type,
                                            [](std::uint32_t a) { return a; });
    }
    for (const char* type : {"b64", "u64", "s64", "f64"}) {
        t.add<std::uint64_t(std::uint64_t)>(std::string("mov.") + type,
                                            [](std::uint64_t a) { return a; });
    }
    t.add("mov.b32", Form{"w = 2h", &pack<std::uint32_t, std::uint16_t>});
    t.add("mov.b32", Form{"2h = w", &unpack<std::uint32_t, std::uint16_t>});
    t.add("mov.b64", Form{"l = 2w", &pack<std::uint64_t, std::uint32_t>});
    t.add("mov.b64", Form{"2w = l", &unpack<std::uint64_t, std::uint32_t>});
    t.add("mov.b64", Form{"l = 4h", &pack<std::uint64_t, std::uint16_t>});
    t.add("mov.b64", Form{"4h = l", &unpack<std::uint64_t, std::uint16_t>});
    t.add("bra", Form{"L", &jump});
    t.add("bra.uni", Form{"L", &jump});
    t.add("brx.idx", Form{"w T", &indexed_jump});
    t.add("ret", Form{"", &finish});
    t.add("ret.uni", Form{"", &finish});
    t.add("exit", Form{"", &finish});
    t.add("trap", Form{"", &trap});
    // Fences order memory for other threads, which never run at the same time here.
    for (const char* fence :
         {"membar.cta", "membar.gl", "membar.sys", "fence.acq_rel.cta", "fence.acq_rel.gpu",
          "fence.acq_rel.sys", "fence.sc.cta", "fence.sc.gpu", "fence.sc.sys"}) {
        t.add(fence, Form{"", &nothing});
    }
    t.add("nanosleep.u32", Form{"w", &nothing});
}

}  // namespace gpu_emulator
