// Atomic operations and reductions (PTX ISA 9.7.13), cp.async (9.7.9).
#include <algorithm>
#include <string>
#include <vector>

#include "tests/gpu_emulator/instructions/cases.h"

namespace instructions {
namespace {

using Update = std::function<Word(Word old, Word b, Word c)>;

struct Atomic {
    std::string operation, type;
    Update update;
    Kind kind = Kind::kBits;
    bool compare = false;
};

std::vector<Atomic> atomics() {
    std::vector<Atomic> all;
    for (const std::string type : {"u32", "s32", "u64", "s64", "b32", "b64", "f32", "f64"}) {
        const int width = width_of(type);
        const Word mask = width == 64 ? ~Word{0} : (Word{1} << width) - 1;
        const auto add = [&](const char* operation, const Update& update, Kind kind = Kind::kBits,
                             bool compare = false) {
            all.push_back({operation, type, update, kind, compare});
        };
        if (type[0] == 'u' || type[0] == 's') {
            const auto less = [=](Word a, Word b) {
                const Word sign = type[0] == 's' ? Word{1} << (width - 1) : 0;
                return (a ^ sign) < (b ^ sign);
            };
            if (type != "s64") add("add", [=](Word old, Word b, Word) { return (old + b) & mask; });
            add("min", [=](Word old, Word b, Word) { return less(b, old) ? b : old; });
            add("max", [=](Word old, Word b, Word) { return less(old, b) ? b : old; });
            if (type == "u32") {
                add("inc", [](Word old, Word b, Word) { return old >= b ? 0 : old + 1; });
                add("dec",
                    [](Word old, Word b, Word) { return old == 0 || old > b ? b : old - 1; });
            }
        } else if (type == "b32" || type == "b64") {
            add("and", [](Word old, Word b, Word) { return old & b; });
            add("or", [](Word old, Word b, Word) { return old | b; });
            add("xor", [](Word old, Word b, Word) { return old ^ b; });
            add("exch", [](Word, Word b, Word) { return b; });
            add(
                "cas", [](Word old, Word b, Word c) { return old == b ? c : old; }, Kind::kBits,
                true);
        } else if (type == "f32") {
            add(
                "add", [](Word old, Word b, Word) { return bits_of(as_float(old) + as_float(b)); },
                Kind::kF32);
        } else if (type == "f64") {
            add(
                "add",
                [](Word old, Word b, Word) { return bits_of(as_double(old) + as_double(b)); },
                Kind::kF64);
        }
    }
    return all;
}

// Every lane on its own address: what was there comes back and the result is in memory. Numbers are
// made such that no result is a NaN or subnormal.
Case atomic_case(const std::string& prefix,
                 const std::string& space,
                 const Atomic& a,
                 bool reduction) {
    const int width = width_of(a.type);
    const std::string form = prefix + "." + a.operation + "." + a.type;
    Case c;
    c.form = form;
    c.kinds = {a.kind};
    c.snippet.in = {width, width};
    if (!reduction) c.snippet.out = {width};
    const auto bytes = static_cast<Word>(width / 8);
    const std::string step = std::to_string(bytes);
    std::string address;
    if (space == "shared") {
        c.snippet.body = "mul.lo.s32 %r0, %lane, " + step + ";\nadd.s32 %r0, %smem, %r0;\n";
        address = "[%r0]";
    } else {
        c.snippet.body = "mul.wide.u32 %l0, %lane, " + step + ";\nadd.s64 %l0, %gmem, %l0;\n";
        if (space.empty()) c.snippet.body += "cvta.global.u64 %l0, %l0;\n";
        address = "[%l0]";
    }
    c.snippet.body +=
        form + (reduction ? " " : " %o0, ") + address + ", %i0" + (a.compare ? ", %i1;" : ";");
    const bool floating = a.kind != Kind::kBits;
    const auto tamed = [=](Word bits) {
        if (!floating) return bits;
        return width == 64 ? (bits & 0x801FFFFFFFFFFFFF) | 0x3FE0000000000000
                           : (bits & 0x80FFFFFF) | 0x3F000000;
    };
    Bytes memory(32 * bytes);
    const Lanes old = random_lanes(32, {width}, 121);
    c.in = random_lanes(32, {width, width}, 122);
    for (std::size_t lane = 0; lane < 32; ++lane) {
        store(memory, lane * bytes, width, tamed(old[lane][0]));
        for (auto& value : c.in[lane]) value = tamed(value);
        // Comparisons that hold; limits that are met.
        if (lane % 2 == 0) c.in[lane][0] = tamed(old[lane][0]);
        if (lane % 8 == 3 && !floating) store(memory, lane * bytes, width, 0);
    }
    (space == "shared" ? c.snippet.shared : c.snippet.global) = memory;
    c.expect = [=](const Lanes& lanes) {
        Expectation e;
        Bytes after = memory;
        for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
            const Word before = stored(memory, lane * bytes, width);
            e.out.emplace_back();
            if (!reduction) e.out.back().push_back({before});
            store(after, lane * bytes, width, a.update(before, lanes[lane][0], lanes[lane][1]));
        }
        (space == "shared" ? e.shared : e.global) = after;
        return e;
    };
    return c;
}

// All threads of several warps on one address: nothing is lost.
Case contended_case(const std::string& prefix, bool in_shared) {
    Case c;
    c.form = prefix + ".add.u32";
    c.name = "all threads on one address";
    c.snippet.in = {32};
    c.snippet.block = 96;
    c.snippet.body = in_shared ? c.form + " %r1, [%smem], %i0;" : c.form + " %r1, [%gmem], %i0;";
    (in_shared ? c.snippet.shared : c.snippet.global) = Bytes(16);
    c.in = random_lanes(96, {32}, 125);
    c.expect = [=](const Lanes& lanes) {
        Expectation e;
        e.out.resize(lanes.size());
        Word sum = 0;
        for (const auto& lane : lanes) sum += lane[0];
        Bytes memory(16);
        store(memory, 0, 32, sum);
        (in_shared ? e.shared : e.global) = memory;
        return e;
    };
    return c;
}

}  // namespace

std::vector<Case> atomic_cases() {
    std::vector<Case> cases;
    for (const Atomic& a : atomics())
        for (const std::string space : {"global", "shared", ""}) {
            const std::string dot = space.empty() ? "" : "." + space;
            for (const std::string order : {"", ".relaxed", ".relaxed.cta", ".relaxed.gpu",
                                            ".acq_rel.gpu", ".release.gpu", ".acquire.gpu"}) {
                cases.push_back(atomic_case("atom" + order + dot, space, a, false));
                if (order != ".acq_rel.gpu" && order != ".acquire.gpu" && a.operation != "exch" &&
                    a.operation != "cas")
                    cases.push_back(atomic_case("red" + order + dot, space, a, true));
            }
        }
    cases.push_back(contended_case("atom.global", false));
    cases.push_back(contended_case("atom.shared", true));
    return cases;
}

std::vector<Case> async_copy_cases() {
    std::vector<Case> cases;
    struct Copy {
        const char* form;
        int bytes;
    };
    std::vector<Copy> copies;
    for (const char* form :
         {"cp.async.ca.shared.global", "cp.async.ca.shared.global.L2::64B",
          "cp.async.ca.shared.global.L2::128B", "cp.async.ca.shared.global.L2::256B",
          "cp.async.ca.shared::cta.global", "cp.async.ca.shared::cta.global.L2::64B",
          "cp.async.ca.shared::cta.global.L2::128B", "cp.async.ca.shared::cta.global.L2::256B"})
        for (const int bytes : {4, 8, 16}) copies.push_back({form, bytes});
    for (const char* form :
         {"cp.async.cg.shared.global", "cp.async.cg.shared.global.L2::64B",
          "cp.async.cg.shared.global.L2::128B", "cp.async.cg.shared.global.L2::256B",
          "cp.async.cg.shared::cta.global", "cp.async.cg.shared::cta.global.L2::64B",
          "cp.async.cg.shared::cta.global.L2::128B", "cp.async.cg.shared::cta.global.L2::256B"})
        copies.push_back({form, 16});
    const Bytes source = counted_bytes(1024);
    for (const Copy& copy : copies) {
        // Without a source size, and with one in a register: the rest becomes zero.
        for (const bool sized : {false, true})
            for (const char* wait :
                 {"cp.async.commit_group;\ncp.async.wait_group 0;", "cp.async.wait_all;"}) {
                const bool all = std::string(wait) == "cp.async.wait_all;";
                Case c;
                c.form = copy.form;
                c.name = std::to_string(copy.bytes) + " bytes" + (sized ? ", some of them" : "") +
                         (all ? ", wait_all" : ", wait_group");
                c.snippet.in = {32, 32, 32};  // to, from, bytes read
                c.snippet.shared = Bytes(1024, std::byte{0xEE});
                c.snippet.global = source;
                const std::string size = std::to_string(copy.bytes);
                c.snippet.body =
                    "add.s32 %r0, %smem, %i0;\ncvt.u64.u32 %l0, %i1;\nadd.s64 %l0, %gmem, %l0;\n" +
                    c.form + " [%r0], [%l0], " + size + (sized ? ", %i2;\n" : ";\n") + wait;
                for (Word lane = 0; lane < 32; ++lane)
                    c.in.push_back({lane * 16, (lane * 5 + 3) % 32 * 16,
                                    (lane * 3 + 1) % static_cast<Word>(copy.bytes + 1)});
                c.expect = [=](const Lanes& lanes) {
                    Expectation e;
                    e.out.resize(lanes.size());
                    e.shared = Bytes(1024, std::byte{0xEE});
                    for (const auto& lane : lanes)
                        for (Word i = 0; i < static_cast<Word>(copy.bytes); ++i)
                            e.shared[lane[0] + i] =
                                sized && i >= lane[2] ? std::byte{0} : source[lane[1] + i];
                    return e;
                };
                cases.push_back(c);
            }
    }
    // Of three groups, all but the last are there after wait_group 1; a thread sees its own copies.
    for (const std::string form :
         {"cp.async.commit_group", "cp.async.wait_group", "cp.async.wait_all"}) {
        Case c;
        c.form = form;
        c.name = "three groups";
        c.snippet.in = {32};
        c.snippet.out = {32, 32, 32};
        c.snippet.shared = Bytes(2048, std::byte{0xEE});
        c.snippet.global = source;
        c.snippet.body =
            "shl.b32 %r0, %lane, 4;\nadd.s32 %r0, %smem, %r0;\ncvt.u64.u32 %l0, %i0;\nadd.s64 %l0, "
            "%gmem, %l0;\n"
            "cp.async.ca.shared.global [%r0], [%l0], 4;\ncp.async.commit_group;\n"
            "cp.async.ca.shared.global [%r0+512], [%l0+4], 4;\ncp.async.commit_group;\n"
            "cp.async.ca.shared.global [%r0+1024], [%l0+8], 4;\ncp.async.commit_group;\n"
            "cp.async.wait_group 1;\nld.shared.u32 %o0, [%r0];\nld.shared.u32 %o1, [%r0+512];\n" +
            std::string(form == "cp.async.wait_all" ? "cp.async.wait_all;\n"
                                                    : "cp.async.wait_group 0;\n") +
            "ld.shared.u32 %o2, [%r0+1024];";
        for (Word lane = 0; lane < 32; ++lane) c.in.push_back({lane * 16});
        c.expect = [=](const Lanes& lanes) {
            Expectation e;
            e.shared = Bytes(2048, std::byte{0xEE});
            for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
                e.out.emplace_back();
                for (std::size_t group = 0; group < 3; ++group) {
                    const Word value = stored(source, lanes[lane][0] + 4 * group, 32);
                    e.out.back().push_back({value});
                    store(e.shared, 512 * group + 16 * lane, 32, value);
                }
            }
            return e;
        };
        cases.push_back(c);
    }
    return cases;
}

}  // namespace instructions
