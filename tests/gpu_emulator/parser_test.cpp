#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "tests/gpu_emulator/module.h"

namespace gpu_emulator {
namespace {

using Kind = Operand::Kind;

constexpr const char* kHead = ".version 9.0\n.target sm_80\n.address_size 64\n";

Module parse(const std::string& text) { return parse_ptx(kHead + text); }

// A kernel with some registers, a parameter and this body.
Module parse_body(const std::string& body) {
    return parse(
        ".visible .entry k(.param .u64 k_param_0) {\n"
        ".reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<4>; .reg .f32 %f<4>;\n" +
        body + "\n}");
}

const Instruction& only_instruction(const Module& module) {
    EXPECT_EQ(module.functions.size(), 1u);
    EXPECT_EQ(module.functions[0].instructions.size(), 1u);
    return module.functions[0].instructions[0];
}

void expect_refused(const std::string& text, const std::string& reason) {
    try {
        parse_ptx(text);
        ADD_FAILURE() << "not refused: " << text;
    } catch (const std::runtime_error& error) {
        EXPECT_NE(std::string(error.what()).find(reason), std::string::npos)
            << "got \"" << error.what() << "\", want a message with \"" << reason << '"';
    }
}

void expect_body_refused(const std::string& body, const std::string& reason) {
    expect_refused(std::string(kHead) +
                       ".entry k() {\n.reg .pred %p<4>; .reg .b32 %r<8>; .reg .b64 %rd<4>;\n" +
                       body + "\n}",
                   reason);
}

TEST(Parser, LaysOutParametersAsHostCodePassesThem) {
    const Module module = parse(
        ".visible .entry k(\n.param .u32 a,\n.param .align 8 .b8 b[20],\n.param .u16 c,\n"
        ".param .u64 .ptr .global .align 4 d\n)\n.maxntid 32, 4, 2\n.minnctapersm 2\n{ ret; }");
    const Function& function = module.functions.at(0);
    EXPECT_EQ(function.name, "k");
    ASSERT_EQ(function.parameters.size(), 4u);
    const std::uint64_t offsets[] = {0, 8, 28, 32};
    const std::size_t bytes[] = {4, 20, 2, 8};
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(function.parameters[i].offset, offsets[i]) << "parameter " << i;
        EXPECT_EQ(function.parameters[i].bytes, bytes[i]) << "parameter " << i;
    }
    EXPECT_EQ(function.parameter_bytes, 40u);
    EXPECT_EQ(function.max_threads, 256u);
    EXPECT_TRUE(function.required_block.empty());
}

TEST(Parser, KeepsARequiredBlockSize) {
    const Module module = parse(".entry k()\n.reqntid 64, 2\n{ ret; }");
    EXPECT_EQ(module.functions.at(0).max_threads, 128u);
    EXPECT_EQ(module.functions.at(0).required_block, (std::vector<std::uint32_t>{64, 2, 1}));
}

TEST(Parser, NumbersRegistersOfAllDeclarations) {
    const Module module = parse(
        ".entry k() {\n.reg .pred %p<3>;\n.reg .b16 %rs<2>;\n.reg .b64 %SP;\n.reg .f32 a, b;\n"
        "mov.f32 b, a; mov.b64 %SP, %SP; mov.b16 %rs1, %rs0;\n}");
    const Function& function = module.functions.at(0);
    EXPECT_EQ(function.registers, (std::vector<std::uint8_t>{1, 1, 1, 2, 2, 8, 4, 4}));
    EXPECT_EQ(function.instructions[0].operands[0].index, 7);
    EXPECT_EQ(function.instructions[0].operands[1].index, 6);
    EXPECT_EQ(function.instructions[1].operands[0].index, 5);
    EXPECT_EQ(function.instructions[2].operands[0].index, 4);
}

TEST(Parser, ReadsImmediates) {
    const struct {
        const char* text;
        std::uint64_t bits;
    } cases[] = {{"7", 7},
                 {"-1", ~std::uint64_t{0}},
                 {"4294967295", 0xffffffffU},
                 {"0x1F", 0x1f},
                 {"0b101", 5},
                 {"017", 15},
                 {"5U", 5},
                 {"0f3F800000", 0x3f800000},
                 {"0fBF800000", 0xbf800000},
                 {"0d3FB999999999999A", 0x3fb999999999999aULL},
                 {"WARP_SZ", 32}};
    for (const auto& each : cases) {
        const Module module = parse_body(std::string("mov.b64 %rd1, ") + each.text + ";");
        const Operand& operand = only_instruction(module).operands.at(1);
        EXPECT_EQ(operand.kind, Kind::kImmediate) << each.text;
        EXPECT_EQ(operand.immediate, each.bits) << each.text;
    }
}

TEST(Parser, ReadsAddressesWithTheirOffsets) {
    const Module module = parse(
        ".global .align 4 .b8 table[8];\n"
        ".visible .entry k(.param .u64 p) {\n.reg .b64 %rd<2>;\n"
        ".shared .align 4 .b8 tile[16];\n"
        "a [%rd1]; a [%rd1+16]; a [%rd1+-8]; a [p+4]; a [tile+12]; a [table]; a [64];\n}");
    const auto& code = module.functions.at(0).instructions;
    const struct {
        Kind base;
        int index;
        std::uint64_t offset;
        bool module_wide;
    } expected[] = {{Kind::kRegister, 1, 0, false},
                    {Kind::kRegister, 1, 16, false},
                    {Kind::kRegister, 1, std::uint64_t(-8), false},
                    {Kind::kParameter, 0, 4, false},
                    {Kind::kVariable, 0, 12, false},
                    {Kind::kVariable, 0, 0, true},
                    {Kind::kImmediate, -1, 0, false}};
    for (std::size_t i = 0; i < code.size(); ++i) {
        const Operand& address = code[i].operands.at(0);
        ASSERT_EQ(address.kind, Kind::kAddress) << i;
        const Operand& base = address.elements.at(0);
        EXPECT_EQ(base.kind, expected[i].base) << i;
        EXPECT_EQ(base.index, expected[i].index) << i;
        EXPECT_EQ(base.module_wide, expected[i].module_wide) << i;
        EXPECT_EQ(address.immediate, expected[i].offset) << i;
    }
    EXPECT_EQ(code.at(6).operands[0].elements[0].immediate, 64u);
}

TEST(Parser, ReadsGuardsPairsVectorsAndSinks) {
    const Module module = parse_body(
        "@%p1 shfl.sync.bfly.b32 %r1|%p2, %r3, 16, 31, -1;\n"
        "@!%p3 ld.global.L1::no_allocate.L2::128B.v2.u32 {%r1, _}, [%rd1];\n"
        "setp.lt.and.s32 %p1|%p2, %r1, %r2, !%p3;\n"
        "mov.u32 %r1, %ctaid.y;\n");
    const auto& code = module.functions.at(0).instructions;
    EXPECT_EQ(code[0].text, "shfl.sync.bfly.b32");
    EXPECT_EQ(code[0].guard, 1);
    EXPECT_FALSE(code[0].guard_negated);
    EXPECT_EQ(code[0].operands.at(0).index, 5);
    EXPECT_EQ(code[0].operands.at(0).pair, 2);
    EXPECT_EQ(code[1].text, "ld.global.L1::no_allocate.L2::128B.v2.u32");
    EXPECT_EQ(code[1].guard, 3);
    EXPECT_TRUE(code[1].guard_negated);
    ASSERT_EQ(code[1].operands.at(0).kind, Kind::kVector);
    EXPECT_EQ(code[1].operands[0].elements.at(0).index, 5);
    EXPECT_EQ(code[1].operands[0].elements.at(1).kind, Kind::kSink);
    EXPECT_EQ(code[2].operands.at(0).pair, 2);
    EXPECT_TRUE(code[2].operands.at(3).negated);
    EXPECT_EQ(code[3].operands.at(1).kind, Kind::kSpecial);
    EXPECT_EQ(code[3].operands[1].index, static_cast<int>(SpecialRegister::kCtaidY));
}

TEST(Parser, TellsWholeOpcodesApart) {
    const Module module = parse_body(
        "cp.async.cg.shared.global [%r1], [%rd1], 16;\ncp.async.commit_group;\n"
        "cp.async.wait_group 1;\ncp.async.wait_all;");
    const auto& code = module.functions.at(0).instructions;
    ASSERT_EQ(code.size(), 4u);
    EXPECT_EQ(code[0].text, "cp.async.cg.shared.global");
    EXPECT_EQ(code[0].operands.size(), 3u);
    EXPECT_EQ(code[1].text, "cp.async.commit_group");
    EXPECT_TRUE(code[1].operands.empty());
    EXPECT_EQ(code[2].text, "cp.async.wait_group");
    EXPECT_EQ(code[3].text, "cp.async.wait_all");
}

TEST(Parser, GivesBracesTheirOwnNames) {
    const Module module = parse_body(
        "{ .reg .b32 t; mov.b32 t, %r1; }\n"
        "{ .reg .b64 t; mov.b64 t, %rd1; WAIT: @%p1 bra DONE; bra WAIT; DONE: }\n"
        "{ WAIT: @%p1 bra DONE; bra WAIT; DONE: }\nbra OUT; OUT: ret;");
    const Function& function = module.functions.at(0);
    const auto& code = function.instructions;
    EXPECT_EQ(function.registers.at(static_cast<std::size_t>(code[0].operands[0].index)), 4);
    EXPECT_EQ(function.registers.at(static_cast<std::size_t>(code[1].operands[0].index)), 8);
    EXPECT_EQ(code[2].operands[0].index, 4);  // DONE, past the end of the block
    EXPECT_EQ(code[3].operands[0].index, 2);
    EXPECT_EQ(code[4].operands[0].index, 6);
    EXPECT_EQ(code[5].operands[0].index, 4);
    EXPECT_EQ(code[6].operands[0].index, 7);
}

TEST(Parser, ReadsTablesOfBranches) {
    const Module module = parse_body(
        "$L_table: .branchtargets $L1, $L2, $L1;\nbrx.idx %r1, $L_table;\n$L1: ret;\n$L2: ret;");
    const Operand& table = module.functions.at(0).instructions.at(0).operands.at(1);
    ASSERT_EQ(table.kind, Kind::kVector);
    ASSERT_EQ(table.elements.size(), 3u);
    const int targets[] = {1, 2, 1};
    for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(table.elements[i].kind, Kind::kLabel);
        EXPECT_EQ(table.elements[i].index, targets[i]);
    }
}

TEST(Parser, PlacesLocalSharedAndDynamicVariables) {
    const Module module = parse(
        ".extern .shared .align 16 .b8 dynamic[];\n.shared .align 8 .b8 outside[24];\n"
        ".entry k() {\n.reg .b32 %r<3>;\n.local .align 16 .b8 __local_depot0[20];\n"
        ".local .align 8 .b8 more[8];\n.shared .align 4 .b8 tile[12];\n"
        "mov.u32 %r1, dynamic; mov.u32 %r2, outside; mov.u32 %r0, tile;\n}\n"
        ".entry other() { ret; }");
    const Function& function = module.functions.at(0);
    const auto variable = [&](const char* name) {
        for (const Variable& each : function.variables) {
            if (each.name == name) return each;
        }
        ADD_FAILURE() << "no variable " << name;
        return Variable();
    };
    EXPECT_EQ(variable("__local_depot0").offset, 0u);
    EXPECT_EQ(variable("more").offset, 24u);
    EXPECT_EQ(function.local_bytes, 32u);
    EXPECT_EQ(variable("tile").offset, 0u);
    EXPECT_EQ(variable("outside").offset, 16u);
    EXPECT_EQ(function.static_shared_bytes, 40u);
    EXPECT_EQ(variable("dynamic").bytes, 0u);
    EXPECT_EQ(variable("dynamic").offset, 48u);
    EXPECT_TRUE(module.variables.empty());
    EXPECT_TRUE(module.functions.at(1).variables.empty());
}

TEST(Parser, ReadsInitialValues) {
    const Module module = parse(
        ".const .align 4 .b8 bytes[6] = {1, 255, 3};\n.global .align 4 .u32 number = 305419896;\n"
        ".global .align 4 .f32 floats[2] = {0f3F800000, 0fC0000000};\n.global .align 8 .u64 zero;\n"
        ".weak .global .align 2 .s16 negative = -2;\n");
    const auto bytes_of = [&](std::size_t i) {
        std::vector<int> bytes;
        for (const std::byte byte : module.variables.at(i).initial) {
            bytes.push_back(std::to_integer<int>(byte));
        }
        return bytes;
    };
    EXPECT_EQ(module.variables.at(0).space, Space::kConst);
    EXPECT_EQ(bytes_of(0), (std::vector<int>{1, 255, 3, 0, 0, 0}));
    EXPECT_EQ(bytes_of(1), (std::vector<int>{0x78, 0x56, 0x34, 0x12}));
    EXPECT_EQ(bytes_of(2), (std::vector<int>{0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}));
    EXPECT_TRUE(bytes_of(3).empty());
    EXPECT_EQ(module.variables.at(3).bytes, 8u);
    EXPECT_EQ(bytes_of(4), (std::vector<int>{0xfe, 0xff}));
}

TEST(Parser, FollowsInlinedFunctionsToTheirCallers) {
    const Module module = parse(
        ".entry k() {\n.loc 1 44 30\n"
        ".loc 2 608 5, function_name $L__info_string0, inlined_at 1 44 30\n"
        ".loc 3 449 9, function_name $L__info_string1+4, inlined_at 2 608 5\nret;\n"
        ".loc 1 50 1\nret;\n.pragma \"nounroll\";\n}\n"
        ".file 1 \"/home/me/kernel.cu\"\n.file 2 \"/home/me/mma.cuh\", 1700000000, 1234\n"
        ".file 3 \"/opt/cuda/bin/../include/sm_30_intrinsics.hpp\"\n"
        ".section .debug_str\n{\n$L__info_string0:\n.b8 95,90,0\n\n}\n");
    const auto& code = module.functions.at(0).instructions;
    EXPECT_EQ(code.at(0).source.file, 3);
    EXPECT_EQ(code.at(0).source.line, 449);
    EXPECT_EQ(module.files.at(3), "/opt/cuda/bin/../include/sm_30_intrinsics.hpp");
    EXPECT_EQ(describe(module, code[0].source), "mma.cuh:608, inlined at kernel.cu:44");
    EXPECT_EQ(describe(module, code.at(1).source), "kernel.cu:50");
    EXPECT_EQ(describe(module, {3, 7, -1}), "sm_30_intrinsics.hpp:7");
    EXPECT_EQ(describe(module, SourceLine()), "unknown source line");
}

TEST(Parser, NamesTheLineOfWhatItRefuses) {
    expect_refused(".version 9.0\n.target sm_80\n\n.mystery 3;\n", "ptx line 4: ");
    expect_body_refused("ret;\nmov.u32 %r1, %r99;\n", "ptx line 7: unknown name '%r99'");
}

TEST(Parser, RefusesFunctionsThatWereNotInlined) {
    expect_refused(".version 9.0\n.func (.param .b32 r) _Z1fi(.param .b32 a) { ret; }", "'_Z1fi'");
    expect_refused(".extern .func vprintf (.param .b64 a);", "'vprintf'");
    expect_body_refused("call.uni (retval0), _Z1fi, (param0);", "'_Z1fi'");
    expect_body_refused("call _Z1gv;", "'_Z1gv'");
}

TEST(Parser, RefusesWhatItDoesNotKnow) {
    expect_refused(".address_size 32\n", "64 bits");
    expect_refused(".section .nv_mystery { }", "unknown section");
    expect_refused(".global .align 8 .u64 p = generic(q);", "only numbers");
    expect_refused(".global .align 4 .u32 p[1] = {1, 2};", "more initial values");
    expect_refused(".extern .global .align 4 .u32 p;", "not in this module");
    expect_refused(".global .texref t;", "unknown type");
    expect_refused(".entry k() .maxclusterrank 2 { ret; }", "unknown directive");
    expect_refused(".entry k() { ret;", "without end");
    expect_body_refused(".locale 1 2 3\n", "unknown statement");
    expect_body_refused(".pragma \"mystery\";", "unknown .pragma");
    expect_body_refused(".reg .b7 x;", "unknown type");
    expect_body_refused(".reg .b32 %r<2>;", "a second register");
    expect_body_refused("mov.u32 %r1, %envreg3;", "unknown name");
    expect_body_refused("mov.u32 %r1, 12x;", "cannot read the number");
    expect_body_refused("mov.f32 %r1, 0f3F8000;", "cannot read the number");
    expect_body_refused("mov.f32 %r1, 1.5;", "cannot read the number");
    expect_body_refused("bra NOWHERE;", "unknown label");
    expect_body_refused("{ L: } bra L;", "unknown label");
    expect_body_refused("@%r1 ret;", "want a predicate");
    expect_body_refused("ld.global.u32 %r1, [%rd1+%r2];", "byte offset");
    expect_body_refused("ld.global.u32 %r1, [%tid.x];", "without a base");
    expect_body_refused("mov.u32 %r1, %r2", "want ';'");
    expect_body_refused("mov.u32 %r1, \"text\";", "want an operand");
}

}  // namespace
}  // namespace gpu_emulator
