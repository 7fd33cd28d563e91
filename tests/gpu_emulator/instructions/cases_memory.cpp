// Loads and stores of every space, type and vector (PTX ISA 9.7.9), and conversion of addresses.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "tests/gpu_emulator/instructions/cases.h"

namespace instructions {
namespace {

const std::vector<std::string>& types() {
    static const std::vector<std::string> all = {"b8",  "u8",  "s8",  "b16", "u16", "s16", "b32",
                                                 "u32", "s32", "f32", "b64", "u64", "s64", "f64"};
    return all;
}

// Narrow signed types fill the register with their sign, others with zeros.
Word extended(const std::string& type, Word value, int width) {
    const int narrow = width_of(type);
    if (type[0] == 's' && narrow < width && (value >> (narrow - 1) & 1) != 0)
        value |= ~Word{0} << narrow;
    return width == 64 ? value : value & ((Word{1} << width) - 1);
}

std::string list_of(const char* letter, int count) {
    std::string text = "{";
    for (int i = 0; i < count; ++i) text += (i ? ", %" : "%") + (letter + std::to_string(i));
    return count == 1 ? text.substr(1) : text + "}";
}

constexpr std::size_t kArea = 1024;

// Lanes read all over the area, each at a multiple of the access.
Lanes offsets(int bytes) {
    Lanes rows;
    for (Word lane = 0; lane < 32; ++lane)
        rows.push_back(
            {(lane * 37 + 5) % (kArea / static_cast<Word>(bytes)) * static_cast<Word>(bytes)});
    return rows;
}

// Where the address of a space comes from: text that leaves the address at offset %i0 in `address`.
struct SpaceText {
    std::string setup, address;
};
SpaceText address_in(const std::string& space) {
    const std::string wide = "cvt.u64.u32 %l0, %i0;\n";
    if (space == "shared") return {"add.s32 %r0, %smem, %i0;\n", "[%r0]"};
    if (space == "global") return {wide + "add.s64 %l1, %gmem, %l0;\n", "[%l1]"};
    if (space == "const") return {wide + "mov.u64 %l1, table;\nadd.s64 %l1, %l1, %l0;\n", "[%l1]"};
    return {wide + "add.s64 %l1, %gmem, %l0;\ncvta.global.u64 %l1, %l1;\n", "[%l1]"};  // generic
}

std::string constant_table(const Bytes& bytes) {
    std::string text = ".const .align 16 .b8 table[" + std::to_string(bytes.size()) + "] = {";
    for (std::size_t i = 0; i < bytes.size(); ++i)
        text += (i ? ", " : "") + std::to_string(std::to_integer<int>(bytes[i]));
    return text + "};\n";
}

Case load_case(const std::string& prefix,
               const std::string& space,
               int vector,
               const std::string& type,
               int width) {
    const std::string form =
        prefix + (vector > 1 ? ".v" + std::to_string(vector) : "") + "." + type;
    const int bytes = vector * width_of(type) / 8;
    Case c;
    c.form = form;
    c.name = "into " + std::to_string(width) + "-bit registers";
    const SpaceText text = address_in(space);
    c.snippet.in = {32};
    c.snippet.out.assign(static_cast<std::size_t>(vector), width);
    c.snippet.body = text.setup + form + " " + list_of("o", vector) + ", " + text.address + ";";
    const Bytes content = counted_bytes(kArea);
    if (space == "shared")
        c.snippet.shared = content;
    else if (space == "const")
        c.snippet.module_declarations = constant_table(content);
    else
        c.snippet.global = content;
    c.in = offsets(bytes);
    c.expect = [=](const Lanes& lanes) {
        Expectation e;
        for (const auto& lane : lanes) {
            e.out.emplace_back();
            for (int i = 0; i < vector; ++i) {
                const auto at = static_cast<std::size_t>(lane[0]) +
                                static_cast<std::size_t>(i * width_of(type) / 8);
                e.out.back().push_back(
                    {extended(type, stored(content, at, width_of(type)), width)});
            }
        }
        return e;
    };
    return c;
}

Case parameter_case(int vector, const std::string& type) {
    const std::string form =
        std::string("ld.param") + (vector > 1 ? ".v" + std::to_string(vector) : "") + "." + type;
    Case c;
    c.form = form;
    c.snippet.parameters = counted_bytes(64);
    c.snippet.out.assign(static_cast<std::size_t>(vector), register_width(type));
    c.snippet.body = form + " " + list_of("o", vector) + ", [extra+32];";
    c.in.assign(32, {});
    c.expect = [=](const Lanes& lanes) {
        Expectation e;
        for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
            e.out.emplace_back();
            for (int i = 0; i < vector; ++i)
                e.out.back().push_back({extended(
                    type,
                    stored(counted_bytes(64), 32 + static_cast<std::size_t>(i * width_of(type) / 8),
                           width_of(type)),
                    register_width(type))});
        }
        return e;
    };
    return c;
}

Case store_case(const std::string& prefix,
                const std::string& space,
                int vector,
                const std::string& type) {
    const std::string form =
        prefix + (vector > 1 ? ".v" + std::to_string(vector) : "") + "." + type;
    const int bytes = vector * width_of(type) / 8;
    Case c;
    c.form = form;
    c.snippet.in.assign(1, 32);
    for (int i = 0; i < vector; ++i) c.snippet.in.push_back(register_width(type));
    std::string values = "{";
    for (int i = 1; i <= vector; ++i) values += (i > 1 ? ", %i" : "%i") + std::to_string(i);
    values = vector > 1 ? values + "}" : "%i1";
    const SpaceText text = address_in(space);
    c.snippet.body = text.setup + form + " " + text.address + ", " + values + ";";
    (space == "shared" ? c.snippet.shared : c.snippet.global) = counted_bytes(kArea);
    const Lanes at = offsets(bytes);
    const Lanes data = random_lanes(
        32, std::vector<int>(static_cast<std::size_t>(vector), register_width(type)), 113);
    for (std::size_t lane = 0; lane < 32; ++lane) {
        c.in.push_back(at[lane]);
        c.in.back().insert(c.in.back().end(), data[lane].begin(), data[lane].end());
    }
    c.expect = [=](const Lanes& lanes) {
        Expectation e;
        e.out.resize(lanes.size());
        Bytes memory = counted_bytes(kArea);
        for (const auto& lane : lanes)
            for (int i = 0; i < vector; ++i)
                store(memory,
                      static_cast<std::size_t>(lane[0]) +
                          static_cast<std::size_t>(i * width_of(type) / 8),
                      width_of(type), lane[static_cast<std::size_t>(i) + 1]);
        (space == "shared" ? e.shared : e.global) = memory;
        return e;
    };
    return c;
}

// Local memory is each thread's own: what it writes it reads back, whole and in part.
Case local_case(bool load, const std::string& prefix, int vector, const std::string& type) {
    const std::string form =
        prefix + (vector > 1 ? ".v" + std::to_string(vector) : "") + "." + type;
    const int width = register_width(type), part = width_of(type);
    Case c;
    c.form = form;
    c.snippet.declarations = "\t.local .align 16 .b8 scratch[32];\n";
    if (load) {
        c.snippet.in.assign(2, 64);
        c.snippet.out.assign(static_cast<std::size_t>(vector), width);
        c.snippet.body =
            "mov.u64 %l0, scratch;\nst.local.u64 [%l0+16], %i0;\nst.local.u64 [%l0+24], %i1;\n" +
            form + " " + list_of("o", vector) + ", [%l0+16];";
        c.in = random_lanes(32, {64, 64}, 115);
        c.expect = [=](const Lanes& lanes) {
            Expectation e;
            for (const auto& lane : lanes) {
                Bytes memory(16);
                store(memory, 0, 64, lane[0]);
                store(memory, 8, 64, lane[1]);
                e.out.emplace_back();
                for (int i = 0; i < vector; ++i)
                    e.out.back().push_back({extended(
                        type, stored(memory, static_cast<std::size_t>(i * part / 8), part),
                        width)});
            }
            return e;
        };
    } else {
        c.snippet.in.assign(static_cast<std::size_t>(vector), width);
        c.snippet.out = {64, 64};
        c.snippet.body =
            "mov.u64 %l0, scratch;\nmov.u64 %l1, 0;\nst.local.u64 [%l0], %l1;\nst.local.u64 "
            "[%l0+8], %l1;\n" +
            form + " [%l0], " + list_of("i", vector) +
            ";\nld.local.u64 %o0, [%l0];\nld.local.u64 %o1, [%l0+8];";
        c.in = random_lanes(32, c.snippet.in, 117);
        c.expect = [=](const Lanes& lanes) {
            Expectation e;
            for (const auto& lane : lanes) {
                Bytes memory(16);
                for (int i = 0; i < vector; ++i)
                    store(memory, static_cast<std::size_t>(i * part / 8), part,
                          lane[static_cast<std::size_t>(i)]);
                e.out.push_back({{stored(memory, 0, 64)}, {stored(memory, 8, 64)}});
            }
            return e;
        };
    }
    return c;
}

std::vector<Case> address_cases() {
    std::vector<Case> cases;
    const Lanes at = offsets(4);
    const Bytes content = counted_bytes(kArea);
    const LaneFunction word = [=](const std::vector<Word>& lane) {
        return std::vector<Expected>{{stored(content, static_cast<std::size_t>(lane[0]), 32)}};
    };
    const auto add = [&](const std::string& form, const std::string& body, bool in_shared) {
        Case c = lane_case(form, {32}, {32}, {}, at, word, body);
        (in_shared ? c.snippet.shared : c.snippet.global) = content;
        cases.push_back(c);
    };
    const std::string wide = "cvt.u64.u32 %l0, %i0;\n";
    add("cvta.global.u64",
        wide + "cvta.global.u64 %l1, %gmem;\nadd.s64 %l1, %l1, %l0;\nld.u32 %o0, [%l1];", false);
    add("cvta.to.global.u64",
        wide +
            "cvta.global.u64 %l1, %gmem;\ncvta.to.global.u64 %l1, %l1;\nadd.s64 %l1, %l1, "
            "%l0;\nld.global.u32 %o0, [%l1];",
        false);
    add("cvta.shared.u64",
        wide +
            "cvt.u64.u32 %l1, %smem;\ncvta.shared.u64 %l1, %l1;\nadd.s64 %l1, %l1, %l0;\nld.u32 "
            "%o0, [%l1];",
        true);
    add("cvta.to.shared.u64",
        wide +
            "cvt.u64.u32 %l1, %smem;\ncvta.shared.u64 %l1, %l1;\nadd.s64 %l1, %l1, "
            "%l0;\ncvta.to.shared.u64 %l1, %l1;\n"
            "cvt.u32.u64 %r0, %l1;\nld.shared.u32 %o0, [%r0];",
        true);
    // A local variable through its generic address.
    const LaneFunction same = [](const std::vector<Word>& lane) {
        return std::vector<Expected>{{lane[0]}};
    };
    for (const bool back : {false, true}) {
        Case c = lane_case(
            back ? "cvta.to.local.u64" : "cvta.local.u64", {32}, {32}, {},
            random_lanes(32, {32}, 119), same,
            std::string(
                "mov.u64 %l0, scratch;\nst.local.u32 [%l0+4], %i0;\ncvta.local.u64 %l1, %l0;\n") +
                (back ? "cvta.to.local.u64 %l1, %l1;\nld.local.u32 %o0, [%l1+4];"
                      : "ld.u32 %o0, [%l1+4];"));
        c.snippet.declarations = "\t.local .align 8 .b8 scratch[8];\n";
        cases.push_back(c);
    }
    for (const bool back : {false, true}) {
        Case c = lane_case(
            back ? "cvta.to.const.u64" : "cvta.const.u64", {32}, {32}, {}, at, word,
            wide + "mov.u64 %l1, table;\nadd.s64 %l1, %l1, %l0;\ncvta.const.u64 %l1, %l1;\n" +
                (back ? "cvta.to.const.u64 %l1, %l1;\nld.const.u32 %o0, [%l1];"
                      : "ld.u32 %o0, [%l1];"));
        c.snippet.module_declarations = constant_table(content);
        cases.push_back(c);
    }
    // A parameter through its generic address.
    for (const bool back : {false, true}) {
        Case c = lane_case(
            back ? "cvta.to.param.u64" : "cvta.param.u64", {}, {32}, {},
            Lanes(32, std::vector<Word>{}),
            [](const std::vector<Word>&) {
                return std::vector<Expected>{{stored(counted_bytes(64), 20, 32)}};
            },
            std::string("cvta.param.u64 %l1, extra;\n") +
                (back ? "cvta.to.param.u64 %l1, %l1;\nld.param.u32 %o0, [%l1+20];"
                      : "ld.u32 %o0, [%l1+20];"));
        c.snippet.parameters = counted_bytes(64);
        cases.push_back(c);
    }
    // Which window an address lies in.
    for (const std::string space : {"global", "shared", "local", "const"}) {
        Case c = lane_case(
            "isspacep." + space, {}, {1, 1, 1}, {}, Lanes(32, std::vector<Word>{}),
            [=](const std::vector<Word>&) {
                return std::vector<Expected>{{space == "global" ? 1U : 0U},
                                             {space == "shared" ? 1U : 0U},
                                             {space == "local" ? 1U : 0U}};
            },
            "cvta.global.u64 %l0, %gmem;\ncvt.u64.u32 %l1, %smem;\ncvta.shared.u64 %l1, %l1;\n"
            "mov.u64 %l2, scratch;\ncvta.local.u64 %l2, %l2;\nisspacep." +
                space + " %o0, %l0;\nisspacep." + space + " %o1, %l1;\nisspacep." + space +
                " %o2, %l2;");
        c.snippet.declarations = "\t.local .align 8 .b8 scratch[8];\n";
        c.snippet.shared = c.snippet.global = counted_bytes(16);
        cases.push_back(c);
    }
    return cases;
}

struct Prefix {
    std::string text, space;  // space: as address_in() takes it
    bool common = false;
};

// Where an access goes, as it is spelled, and what address_in() calls it.
const std::vector<std::pair<std::string, std::string>>& spaces() {
    static const std::vector<std::pair<std::string, std::string>> all = {
        {"", ""}, {".global", "global"}, {".shared", "shared"}, {".shared::cta", "shared"}};
    return all;
}

// Hints to the caches change nothing that can be read.
const std::vector<std::string>& cache_hints() {
    static const std::vector<std::string> all = {".L1::no_allocate",
                                                 ".L1::evict_first",
                                                 ".L1::evict_last",
                                                 ".L2::64B",
                                                 ".L2::128B",
                                                 ".L2::256B",
                                                 ".L1::no_allocate.L2::128B",
                                                 ".L1::no_allocate.L2::256B"};
    return all;
}

std::vector<Prefix> load_prefixes() {
    std::vector<Prefix> all = {{"ld.const", "const", true}};
    for (const auto& [spelled, space] : spaces()) {
        all.push_back({"ld" + spelled, space, true});
        for (const char* order : {".weak", ".volatile", ".relaxed.cta", ".relaxed.gpu",
                                  ".relaxed.sys", ".acquire.cta", ".acquire.gpu", ".acquire.sys"})
            all.push_back({"ld" + (order + spelled), space});
        if (space == "shared") continue;
        for (const char* cache : {".ca", ".cg", ".cs", ".lu", ".cv"})
            all.push_back({"ld" + spelled + cache, space});
        for (const std::string& hint : cache_hints()) all.push_back({"ld" + spelled + hint, space});
    }
    all.push_back({"ld.global.nc", "global", true});
    for (const char* cache : {".ca", ".cg", ".cs"})
        all.push_back({std::string("ld.global") + cache + ".nc", "global"});
    for (const std::string& hint : cache_hints()) all.push_back({"ld.global.nc" + hint, "global"});
    return all;
}

std::vector<Prefix> store_prefixes() {
    std::vector<Prefix> all;
    for (const auto& [spelled, space] : spaces()) {
        all.push_back({"st" + spelled, space});
        for (const char* order : {".weak", ".volatile", ".relaxed.cta", ".relaxed.gpu",
                                  ".relaxed.sys", ".release.cta", ".release.gpu", ".release.sys"})
            all.push_back({"st" + (order + spelled), space});
        if (space == "shared") continue;
        for (const char* cache : {".wb", ".cg", ".cs", ".wt", ".L1::no_allocate",
                                  ".L1::evict_first", ".L1::evict_last"})
            all.push_back({"st" + spelled + cache, space});
    }
    return all;
}

}  // namespace

std::vector<Case> memory_cases() {
    std::vector<Case> cases;
    const std::vector<Prefix> loads = load_prefixes(), stores = store_prefixes();
    for (const std::string& type : types())
        for (const int vector : {1, 2, 4}) {
            if (vector * width_of(type) > 128) continue;
            for (const Prefix& prefix : loads) {
                cases.push_back(
                    load_case(prefix.text, prefix.space, vector, type, register_width(type)));
                // nvcc also loads bytes and halves into wider registers.
                if (register_width(type) < 32 && prefix.common)
                    cases.push_back(load_case(prefix.text, prefix.space, vector, type, 32));
            }
            cases.push_back(parameter_case(vector, type));
            for (const Prefix& prefix : stores)
                cases.push_back(store_case(prefix.text, prefix.space, vector, type));
            cases.push_back(local_case(true, "ld.local", vector, type));
            cases.push_back(local_case(false, "st.local", vector, type));
        }
    append(cases, address_cases());
    for (const char* form : {"prefetch.global.L1", "prefetch.global.L2", "prefetchu.L1"}) {
        const bool generic = std::string(form) == "prefetchu.L1";
        Case c = lane_case(
            form, {}, {32}, {}, Lanes(32, std::vector<Word>{}),
            [](const std::vector<Word>&) { return std::vector<Expected>{{7}}; },
            std::string(generic ? "cvta.global.u64 %l0, %gmem;\n" : "mov.u64 %l0, %gmem;\n") +
                form + " [%l0];\nmov.u32 %o0, 7;");
        c.snippet.global = counted_bytes(128);
        cases.push_back(c);
    }
    return cases;
}

}  // namespace instructions
