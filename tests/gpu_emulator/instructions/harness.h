// Runs a few PTX instructions on every lane of a warp or more and returns what they left behind.
// Only the public CUDA runtime is used, so the same snippets run on the emulator and on a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace instructions {

using Word = std::uint64_t;
using Bytes = std::vector<std::byte>;
// [thread][operand]; the value sits in the low bits.
using Lanes = std::vector<std::vector<Word>>;

// The body may use, besides what `declarations` adds:
//   %i0 ..  the inputs, %o0 .. the outputs: .pred, .b16, .b32, .b64 by their width (1, 16, 32, 64)
//   %lane   .b32, the thread's number in its block
//   %smem   .b32, address of the shared bytes;  %gmem  .b64, global address of the global bytes
//   extra   a parameter that holds `parameters`, for ld.param
//   %p<8> .pred, %h<16> .b16, %r<32> .b32, %l<16> .b64: registers
struct Snippet {
    std::string body;
    std::vector<int> in, out;
    int arch = 80;   // of the GPU it needs
    int block = 32;  // threads of a block; the grid covers the inputs, whose number it must divide
    Bytes shared, global, parameters;
    std::string declarations;         // at the top of the kernel: .reg, .local
    std::string module_declarations;  // before the kernel: .const, .global
};

struct Result {
    Lanes out;
    Bytes shared;  // of block 0, at the end
    Bytes global;
};

// A module that holds the bodies of all these snippets, for an assembler to check; it can't be run.
std::string assembly_check(const std::vector<const Snippet*>& snippets, int arch);

// Runs the snippet once for each row of inputs. Throws std::runtime_error with CUDA's words and the
// PTX if the module can't be loaded or the kernel fails.
Result run(const Snippet& snippet, const Lanes& in);

// "add.s32" of "  @%p0 add.s32 %o0, %i0, %i1;", for each instruction of the body.
std::vector<std::string> opcodes(const std::string& body);

}  // namespace instructions
