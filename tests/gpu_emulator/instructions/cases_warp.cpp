// Warp-wide instructions (PTX ISA 9.7.8 shfl, 9.7.13 barriers, vote, match, redux) and control flow
// (9.7.12).
#include <algorithm>
#include <string>
#include <vector>

#include "tests/gpu_emulator/instructions/cases.h"

namespace instructions {
namespace {

constexpr Word kUntouched = 0xDEADBEEF;  // what the harness leaves in an output that nobody writes

// shfl's own description: where a lane reads, and whether that is in range.
struct Source {
    Word lane;
    bool inside;
};
Source shuffle_source(const std::string& mode, Word lane, Word b, Word c) {
    const Word bval = b & 31, cval = c & 31, segment = c >> 8 & 31;
    const Word highest = (lane & segment) | (cval & ~segment & 31), lowest = lane & segment;
    Word j = 0;
    bool inside = false;
    if (mode == "up") {
        j = lane - bval;
        inside = static_cast<std::int64_t>(lane) - static_cast<std::int64_t>(bval) >=
                 static_cast<std::int64_t>(highest);
    } else if (mode == "down") {
        j = lane + bval;
        inside = j <= highest;
    } else if (mode == "bfly") {
        j = lane ^ bval;
        inside = j <= highest;
    } else {
        j = lowest | (bval & ~segment & 31);
        inside = j <= highest;
    }
    return {inside ? j : lane, inside};
}

Case shuffle_case(const std::string& mode, bool with_predicate) {
    const std::string form = "shfl.sync." + mode + ".b32";
    Case c;
    c.form = form;
    c.name = with_predicate ? "with its predicate" : "";
    c.snippet.in = {32, 32, 32};  // value, b, c
    c.snippet.out = {32};
    if (with_predicate) c.snippet.out.push_back(1);
    c.snippet.body = form + (with_predicate ? " %o0|%o1" : " %o0") + ", %i0, %i1, %i2, -1;";
    std::uint64_t seed = 131;
    for (const Word width : {32, 16, 8, 4, 2})
        for (const Word b : {0, 1, 2, 3, 7, 8, 15, 16, 31, 33})
            for (const Word clamp :
                 mode == "up" ? std::vector<Word>{0, 3} : std::vector<Word>{31, 5}) {
                const Word segment = (32 - width) << 8;
                for (auto row : random_lanes(32, {32}, ++seed)) {
                    row.push_back(b);
                    row.push_back(segment | clamp);
                    c.in.push_back(row);
                }
            }
    // Each lane with its own source.
    for (auto row : random_lanes(32, {32, 32}, 137)) {
        row.push_back(mode == "up" ? 0 : 31);
        c.in.push_back(row);
    }
    c.expect = [=](const Lanes& lanes) {
        Expectation e;
        for (std::size_t thread = 0; thread < lanes.size(); ++thread) {
            const Source from =
                shuffle_source(mode, thread % 32, lanes[thread][1], lanes[thread][2]);
            e.out.push_back({{lanes[thread / 32 * 32 + from.lane][0]}});
            if (with_predicate) e.out.back().push_back({from.inside ? 1U : 0U});
        }
        return e;
    };
    return c;
}

// Lanes of `mask` run the instruction together; the others skip it.
using WarpFunction =
    std::function<std::vector<Word>(const std::vector<Word>& values, Word mask, std::size_t lane)>;

Case warp_case(const std::string& form,
               int in,
               const std::vector<int>& out,
               const std::string& operation,  // with %r0 for the mask
               const std::vector<Lanes>& warps,
               const WarpFunction& function,
               const std::string& name = "") {
    Case c;
    c.form = form;
    c.name = name;
    c.snippet.in = {in, 32};  // value, mask
    c.snippet.out = out;
    c.snippet.body =
        "mov.u32 %r0, %i1;\nshr.u32 %r1, %r0, %lane;\nand.b32 %r1, %r1, 1;\nsetp.eq.s32 %p0, %r1, "
        "0;\n";
    for (std::size_t i = 0; i < out.size(); ++i) {
        const std::string o = "%o" + std::to_string(i);
        c.snippet.body +=
            out[i] == 1 ? "setp.ne.s32 " + o + ", %r0, %r0;\n" : "mov.u32 " + o + ", 3735928559;\n";
    }
    c.snippet.body += "@%p0 bra $skip;\n" + operation + "\n$skip:";
    for (const Word mask : {0xFFFFFFFFULL, 0x0000FFFFULL, 0x80000001ULL, 0x5A5A5A5AULL})
        for (const Lanes& warp : warps)
            for (std::size_t lane = 0; lane < 32; ++lane) c.in.push_back({warp[lane][0], mask});
    c.expect = [=](const Lanes& lanes) {
        Expectation e;
        for (std::size_t thread = 0; thread < lanes.size(); ++thread) {
            std::vector<Word> values;
            for (std::size_t lane = 0; lane < 32; ++lane)
                values.push_back(lanes[thread / 32 * 32 + lane][0]);
            const Word mask = lanes[thread][1];
            e.out.emplace_back();
            if ((mask >> (thread % 32) & 1) != 0)
                for (const Word value : function(values, mask, thread % 32))
                    e.out.back().push_back({value});
            else
                for (const int width : out) e.out.back().push_back({width == 1 ? 0 : kUntouched});
        }
        return e;
    };
    return c;
}

Word ballot_of(const std::vector<Word>& values, Word mask) {
    Word result = 0;
    for (std::size_t lane = 0; lane < 32; ++lane)
        if ((mask >> lane & 1) != 0 && values[lane] != 0) result |= Word{1} << lane;
    return result;
}

std::vector<Case> vote_cases() {
    std::vector<Case> cases;
    Lanes none(32, {0}), all(32, {1}), first(32, {0}), all_but_last(32, {1});
    first[0] = {1};
    all_but_last[31] = {0};
    const std::vector<Lanes> warps = {none, all, first, all_but_last, random_lanes(32, {1}, 141)};
    const auto vote = [&](const std::string& mode, const WarpFunction& function) {
        const bool ballot = mode == "ballot";
        const std::string form = "vote.sync." + mode + (ballot ? ".b32" : ".pred");
        cases.push_back(
            warp_case(form, 1, {ballot ? 32 : 1}, form + " %o0, %i0, %r0;", warps, function));
    };
    vote("all", [](const auto& v, Word mask, std::size_t) {
        return std::vector<Word>{ballot_of(v, mask) == mask ? Word{1} : 0};
    });
    vote("any", [](const auto& v, Word mask, std::size_t) {
        return std::vector<Word>{ballot_of(v, mask) != 0 ? Word{1} : 0};
    });
    vote("uni", [](const auto& v, Word mask, std::size_t) {
        const Word ballot = ballot_of(v, mask);
        return std::vector<Word>{ballot == 0 || ballot == mask ? Word{1} : 0};
    });
    vote("ballot", [](const auto& v, Word mask, std::size_t) {
        return std::vector<Word>{ballot_of(v, mask)};
    });
    // Which lanes run together is not promised; the lane itself is among them, lanes that skipped
    // it are not.
    cases.push_back(
        warp_case("activemask.b32", 1, {32, 32},
                  "activemask.b32 %r2;\nshr.u32 %r3, %r2, %lane;\nand.b32 %o0, %r3, 1;\n"
                  "not.b32 %r4, %r0;\nand.b32 %o1, %r2, %r4;",
                  {all}, [](const auto&, Word, std::size_t) {
                      return std::vector<Word>{1, 0};
                  }));

    for (const int width : {32, 64}) {
        const std::string type = ".b" + std::to_string(width);
        Lanes equal(32, {0xABCDEF}), few(32), high(32);
        for (std::size_t lane = 0; lane < 32; ++lane) {
            few[lane] = {lane % 5};
            high[lane] = {(width == 64 ? Word{lane & 1} << 40 : lane & 1) + 3};
        }
        cases.push_back(warp_case("match.any.sync" + type, width, {32},
                                  "match.any.sync" + type + " %o0, %i0, %r0;", {equal, few, high},
                                  [](const auto& v, Word mask, std::size_t lane) {
                                      Word same = 0;
                                      for (std::size_t other = 0; other < 32; ++other)
                                          if ((mask >> other & 1) != 0 && v[other] == v[lane])
                                              same |= Word{1} << other;
                                      return std::vector<Word>{same};
                                  }));
        const auto all_equal = [](const auto& v, Word mask, std::size_t lane) {
            for (std::size_t other = 0; other < 32; ++other)
                if ((mask >> other & 1) != 0 && v[other] != v[lane]) return std::vector<Word>{0, 0};
            return std::vector<Word>{mask, 1};
        };
        cases.push_back(warp_case("match.all.sync" + type, width, {32, 1},
                                  "match.all.sync" + type + " %o0|%o1, %i0, %r0;",
                                  {equal, few, high}, all_equal));
    }

    struct Reduction {
        const char* name;
        std::uint32_t (*both)(std::uint32_t, std::uint32_t);
    };
    const auto smaller = [](std::uint32_t a, std::uint32_t b) { return std::min(a, b); };
    const auto larger = [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); };
    const auto sum = [](std::uint32_t a, std::uint32_t b) { return a + b; };
    const auto signed_smaller = [](std::uint32_t a, std::uint32_t b) {
        return static_cast<std::int32_t>(a) < static_cast<std::int32_t>(b) ? a : b;
    };
    const auto signed_larger = [](std::uint32_t a, std::uint32_t b) {
        return static_cast<std::int32_t>(a) > static_cast<std::int32_t>(b) ? a : b;
    };
    const Reduction reductions[] = {
        {"add.u32", sum},
        {"add.s32", sum},
        {"min.u32", smaller},
        {"max.u32", larger},
        {"min.s32", signed_smaller},
        {"max.s32", signed_larger},
        {"and.b32", [](std::uint32_t a, std::uint32_t b) { return a & b; }},
        {"or.b32", [](std::uint32_t a, std::uint32_t b) { return a | b; }},
        {"xor.b32", [](std::uint32_t a, std::uint32_t b) { return a ^ b; }},
    };
    for (const Reduction& reduction : reductions) {
        const auto both = reduction.both;
        const std::string form = std::string("redux.sync.") + reduction.name;
        cases.push_back(warp_case(form, 32, {32}, form + " %o0, %i0, %r0;",
                                  {random_lanes(32, {32}, 143)},
                                  [both](const auto& v, Word mask, std::size_t) {
                                      bool started = false;
                                      std::uint32_t result = 0;
                                      for (std::size_t lane = 0; lane < 32; ++lane) {
                                          if ((mask >> lane & 1) == 0) continue;
                                          const auto value = static_cast<std::uint32_t>(v[lane]);
                                          result = started ? both(result, value) : value;
                                          started = true;
                                      }
                                      return std::vector<Word>{result};
                                  }));
    }
    return cases;
}

// What one thread stores before a barrier another reads after it.
Case exchange_case(const std::string& form,
                   const std::string& name,
                   const std::string& barrier,
                   int block,
                   Word partner) {
    Case c;
    c.form = form;
    c.name = name;
    c.snippet.in = {32};
    c.snippet.out = {32};
    c.snippet.block = block;
    c.snippet.shared = Bytes(static_cast<std::size_t>(block) * 4);
    c.snippet.body =
        "shl.b32 %r0, %lane, 2;\nadd.s32 %r0, %smem, %r0;\nst.shared.u32 [%r0], %i0;\n" + barrier +
        "\nxor.b32 %r1, %lane, " + std::to_string(partner) +
        ";\nshl.b32 %r1, %r1, 2;\nadd.s32 %r1, %smem, %r1;\nld.shared.u32 %o0, [%r1];";
    c.in = random_lanes(static_cast<std::size_t>(block), {32}, 147);
    c.expect = [=](const Lanes& lanes) {
        Expectation e;
        for (std::size_t thread = 0; thread < lanes.size(); ++thread) {
            e.out.push_back({{lanes[thread ^ partner][0]}});
            for (int shift = 0; shift < 32; shift += 8)
                e.shared.push_back(static_cast<std::byte>(lanes[thread][0] >> shift & 0xFF));
        }
        return e;
    };
    return c;
}

// Warp 0 says that it has stored and goes on; warp 1 waits for it.
Case arrive_case(const std::string& form, const std::string& wait) {
    Case c = exchange_case(form, "",
                           "setp.lt.u32 %p0, %lane, 32;\n@%p0 bra $ahead;\n" + wait +
                               " 1, 64;\nbra $joined;\n$ahead:\n" + form +
                               " 1, 64;\nmov.u32 %o0, %i0;\nbra $done;\n$joined:",
                           64, 32);
    c.snippet.body += "\n$done:";
    c.expect = [](const Lanes& lanes) {
        Expectation e;
        for (std::size_t thread = 0; thread < lanes.size(); ++thread) {
            e.out.push_back({{lanes[thread % 32][0]}});
            for (int shift = 0; shift < 32; shift += 8)
                e.shared.push_back(static_cast<std::byte>(lanes[thread][0] >> shift & 0xFF));
        }
        return e;
    };
    return c;
}

// A barrier that tells each thread about all threads' predicates.
Case barrier_reduction_case(const std::string& form) {
    const bool count = form.find(".popc") != std::string::npos,
               all = form.find(".and") != std::string::npos;
    Case c;
    c.form = form;
    c.snippet.block = 64;
    c.snippet.in = {1};
    c.snippet.out = {count ? 32 : 1};
    c.snippet.body = form + " %o0, 0, %i0;";
    for (std::size_t block = 0; block < 3; ++block)
        for (std::size_t thread = 0; thread < 64; ++thread)
            c.in.push_back({block == 0 ? Word{1} : block == 1 ? Word{0} : Word{thread % 3 == 1}});
    c.expect = [=](const Lanes& lanes) {
        Expectation e;
        for (std::size_t thread = 0; thread < lanes.size(); ++thread) {
            Word set = 0;
            for (std::size_t other = 0; other < 64; ++other)
                set += lanes[thread / 64 * 64 + other][0];
            e.out.push_back({{count ? set : all ? Word{set == 64} : Word{set > 0}}});
        }
        return e;
    };
    return c;
}

std::vector<Case> barrier_cases() {
    std::vector<Case> cases;
    const auto add = [&](const std::string& barrier, int block, Word partner) {
        cases.push_back(exchange_case(opcodes(barrier).front(), barrier, barrier, block, partner));
    };
    add("bar.sync 0;", 128, 96);
    add("bar.sync 3;", 64, 32);
    add("bar.sync 1, 64;", 64, 33);
    add("bar.cta.sync 0;", 64, 32);
    add("barrier.sync 0;", 64, 32);
    add("barrier.sync 5, 64;", 64, 32);
    add("barrier.sync.aligned 0;", 64, 32);
    add("barrier.cta.sync 0;", 64, 32);
    add("barrier.cta.sync.aligned 0;", 64, 32);
    add("bar.warp.sync -1;", 32, 7);
    cases.push_back(
        exchange_case("bar.sync", "named by a register", "mov.u32 %r5, 2;\nbar.sync %r5;", 64, 32));
    cases.push_back(exchange_case(
        "bar.sync", "one for each half of the block",
        "setp.ge.s32 %p0, %lane, 64;\n@%p0 bra $upper;\nbar.sync 1, 64;\nbra $joined;\n"
        "$upper:\nbar.sync 2, 64;\n$joined:",
        128, 32));
    for (const char* name : {"bar", "bar.cta"}) {
        cases.push_back(arrive_case(std::string(name) + ".arrive", "bar.sync"));
        for (const char* operation : {".red.and.pred", ".red.or.pred", ".red.popc.u32"})
            cases.push_back(barrier_reduction_case(std::string(name) + operation));
    }
    for (const char* name : {"barrier", "barrier.cta"})
        for (const bool aligned : {false, true}) {
            const std::string middle = aligned ? ".aligned" : "";
            cases.push_back(
                arrive_case(std::string(name) + ".arrive" + middle, "barrier.sync" + middle));
            cases.push_back(
                barrier_reduction_case(std::string(name) + ".red.and" + middle + ".pred"));
            cases.push_back(
                barrier_reduction_case(std::string(name) + ".red.or" + middle + ".pred"));
            cases.push_back(
                barrier_reduction_case(std::string(name) + ".red.popc" + middle + ".u32"));
        }
    for (const char* form :
         {"membar.cta", "membar.gl", "membar.sys", "fence.acq_rel.cta", "fence.acq_rel.gpu",
          "fence.acq_rel.sys", "fence.sc.cta", "fence.sc.gpu", "fence.sc.sys"})
        cases.push_back(exchange_case(form, "", std::string(form) + ";\nbar.sync 0;", 64, 32));
    return cases;
}

std::vector<Case> branch_cases() {
    std::vector<Case> cases;
    // Sum of 1 .. n, each lane with its own n.
    for (const char* jump : {"bra", "bra.uni"}) {
        // A uniform branch must be taken by all lanes of the warp alike.
        const bool uniform = std::string(jump) == "bra.uni";
        Lanes counts;
        for (Word lane = 0; lane < 32; ++lane) counts.push_back({uniform ? 9 : lane * 3 % 17});
        cases.push_back(lane_case(
            jump, {32}, {32}, {}, counts,
            [](const std::vector<Word>& lane) {
                return std::vector<Expected>{{lane[0] * (lane[0] + 1) / 2}};
            },
            "mov.u32 %o0, 0;\nmov.u32 %r0, 0;\n$again:\nsetp.ge.u32 %p0, %r0, %i0;\n@%p0 bra "
            "$out;\n"
            "add.s32 %r0, %r0, 1;\nadd.s32 %o0, %o0, %r0;\n" +
                std::string(jump) + " $again;\n$out:"));
    }
    // A table of targets.
    for (const char* jump : {"brx.idx", "brx.idx.uni"}) {
        const bool uniform = std::string(jump) == "brx.idx.uni";
        Lanes targets;
        for (Word lane = 0; lane < 96; ++lane) targets.push_back({uniform ? lane / 32 : lane % 3});
        cases.push_back(lane_case(
            jump, {32}, {32}, {}, targets,
            [](const std::vector<Word>& lane) {
                return std::vector<Expected>{{10 + 10 * lane[0]}};
            },
            "$table: .branchtargets $first, $second, $third;\n" + std::string(jump) +
                " %i0, $table;\n$first:\nmov.u32 %o0, 10;\nbra $out;\n$second:\nmov.u32 %o0, 20;\n"
                "bra $out;\n$third:\nmov.u32 %o0, 30;\n$out:"));
    }
    for (const char* form : {"ret", "exit"}) {
        cases.push_back(lane_case(
            form, {32, 1}, {32}, {}, random_lanes(32, {32, 1}, 151),
            [](const std::vector<Word>& lane) {
                return std::vector<Expected>{{lane[1] != 0 ? kUntouched : lane[0]}};
            },
            "mov.u32 %o0, %i0;\n@%i1 " + std::string(form) + ";"));
    }
    // The whole warp leaves.
    Lanes leaving = random_lanes(64, {32, 1}, 152);
    for (std::size_t thread = 0; thread < 64; ++thread) leaving[thread][1] = thread / 32;
    cases.push_back(lane_case(
        "ret.uni", {32, 1}, {32}, {}, leaving,
        [](const std::vector<Word>& lane) {
            return std::vector<Expected>{{lane[1] != 0 ? kUntouched : lane[0]}};
        },
        "mov.u32 %o0, %i0;\n@%i1 ret.uni;"));
    cases.push_back(lane_case(
        "pragma", {32}, {32}, {}, random_lanes(32, {32}, 158),
        [](const std::vector<Word>& lane) { return std::vector<Expected>{{lane[0]}}; },
        ".pragma \"nounroll\";\nmov.u32 %o0, %i0;"));
    // Guards, true and false.
    cases.push_back(lane_case(
        "add.s32", {32, 1}, {32}, {}, random_lanes(32, {32, 1}, 153),
        [](const std::vector<Word>& lane) {
            return std::vector<Expected>{{(lane[0] + (lane[1] != 0 ? 5 : 7)) & 0xFFFFFFFF}};
        },
        "mov.u32 %o0, %i0;\n@%i1 add.s32 %o0, %o0, 5;\n@!%i1 add.s32 %o0, %o0, 7;", "guarded"));
    // Loaded, never reached.
    for (const char* form : {"trap", "brkpt"})
        cases.push_back(lane_case(
            form, {32}, {32}, {}, random_lanes(32, {32}, 155),
            [](const std::vector<Word>& lane) { return std::vector<Expected>{{lane[0]}}; },
            "mov.u32 %o0, %i0;\nsetp.ne.s32 %p0, %i0, %i0;\n@%p0 " + std::string(form) + ";"));
    cases.push_back(lane_case(
        "nanosleep.u32", {32}, {32}, {}, random_lanes(32, {32}, 157),
        [](const std::vector<Word>& lane) { return std::vector<Expected>{{lane[0]}}; },
        "nanosleep.u32 20;\nmov.u32 %o0, %i0;"));
    return cases;
}

std::vector<Case> special_register_cases() {
    std::vector<Case> cases;
    struct Special {
        const char* name;
        Word (*value)(Word thread);  // of blocks of 64 threads, two of them
    };
    const Special specials[] = {
        {"tid.x", [](Word t) { return t % 64; }},
        {"tid.y", [](Word) { return Word{0}; }},
        {"tid.z", [](Word) { return Word{0}; }},
        {"ntid.x", [](Word) { return Word{64}; }},
        {"ntid.y", [](Word) { return Word{1}; }},
        {"ntid.z", [](Word) { return Word{1}; }},
        {"ctaid.x", [](Word t) { return t / 64; }},
        {"ctaid.y", [](Word) { return Word{0}; }},
        {"ctaid.z", [](Word) { return Word{0}; }},
        {"nctaid.x", [](Word) { return Word{2}; }},
        {"nctaid.y", [](Word) { return Word{1}; }},
        {"nctaid.z", [](Word) { return Word{1}; }},
        {"laneid", [](Word t) { return t % 32; }},
        {"lanemask_eq", [](Word t) { return Word{1} << t % 32; }},
        {"lanemask_lt", [](Word t) { return (Word{1} << t % 32) - 1; }},
        {"lanemask_le", [](Word t) { return (Word{2} << t % 32) - 1; }},
        {"lanemask_gt", [](Word t) { return 0xFFFFFFFF & ~((Word{2} << t % 32) - 1); }},
        {"lanemask_ge", [](Word t) { return 0xFFFFFFFF & ~((Word{1} << t % 32) - 1); }},
    };
    for (const Special& special : specials) {
        Case c;
        c.form = "mov.u32";
        c.name = special.name;
        c.snippet.block = 64;
        c.snippet.out = {32};
        c.snippet.body = std::string("mov.u32 %o0, %") + special.name + ";";
        c.in.assign(128, {});
        const auto value = special.value;
        c.expect = [value](const Lanes& lanes) {
            Expectation e;
            for (std::size_t thread = 0; thread < lanes.size(); ++thread)
                e.out.push_back({{value(thread)}});
            return e;
        };
        cases.push_back(c);
    }
    return cases;
}

}  // namespace

std::vector<Case> warp_cases() {
    std::vector<Case> cases;
    for (const char* mode : {"up", "down", "bfly", "idx"})
        for (const bool with_predicate : {false, true})
            cases.push_back(shuffle_case(mode, with_predicate));
    append(cases, vote_cases());
    append(cases, barrier_cases());
    return cases;
}

std::vector<Case> control_cases() {
    std::vector<Case> cases = branch_cases();
    append(cases, special_register_cases());
    return cases;
}

}  // namespace instructions
