#include "tests/gpu_emulator/instructions/harness.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <set>
#include <sstream>
#include <stdexcept>

namespace instructions {
namespace {

constexpr std::size_t kSlot = 8;  // bytes of global memory per operand and thread

const char* register_type(int width) {
    switch (width) {
        case 1:
            return ".pred";
        case 16:
            return ".b16";
        case 32:
            return ".b32";
        case 64:
            return ".b64";
    }
    throw std::runtime_error("a snippet's operand is 1, 16, 32 or 64 bits wide, not " +
                             std::to_string(width));
}

void append_operands(std::ostream& text, const char* letter, const std::vector<int>& widths) {
    for (std::size_t i = 0; i < widths.size(); ++i)
        text << "\t.reg " << register_type(widths[i]) << " %" << letter << i << ";\n";
}

// Copies whole 16-byte groups, a group per thread and turn.
void append_copy(std::ostream& text, const std::string& label, std::size_t bytes, bool to_shared) {
    text << "\tshl.b32 %at, %lane, 4;\n"
         << "$" << label << ":\n"
         << "\tsetp.ge.u32 %done, %at, " << bytes << ";\n"
         << "\t@%done bra $" << label << "_end;\n"
         << "\tcvt.u64.u32 %wide, %at;\n"
         << "\tadd.s64 %wide, %copy, %wide;\n"
         << "\tadd.s32 %word4, %smem, %at;\n";
    if (to_shared)
        text << "\tld.global.v4.u32 {%word0, %word1, %word2, %word3}, [%wide];\n"
             << "\tst.shared.v4.u32 [%word4], {%word0, %word1, %word2, %word3};\n";
    else
        text << "\tld.shared.v4.u32 {%word0, %word1, %word2, %word3}, [%word4];\n"
             << "\tst.global.v4.u32 [%wide], {%word0, %word1, %word2, %word3};\n";
    text << "\tshl.b32 %word0, %threads, 4;\n"
         << "\tadd.s32 %at, %at, %word0;\n"
         << "\tbra $" << label << ";\n"
         << "$" << label << "_end:\n";
}

std::size_t padded(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

std::string module_heading(int arch) {
    return ".version 8.0\n.target sm_" + std::to_string(arch) + "\n.address_size 64\n\n";
}

// Those that bodies use, and the frame's own.
void append_registers(std::ostream& text) {
    text << "\t.reg .pred %p<8>;\n\t.reg .b16 %h<16>;\n\t.reg .b32 %r<32>;\n\t.reg .b64 %l<16>;\n"
         << "\t.reg .pred %done;\n\t.reg .b32 %word<5>;\n";
    for (const char* name : {"lane", "threads", "index", "smem", "at"})
        text << "\t.reg .b32 %" << name << ";\n";
    for (const char* name : {"gmem", "from", "to", "copy", "wide"})
        text << "\t.reg .b64 %" << name << ";\n";
}

std::string kernel_text(const Snippet& snippet, const std::string& name, std::size_t threads) {
    std::ostringstream text;
    const std::size_t shared = padded(snippet.shared.size());
    text << ".visible .entry " << name << "(\n"
         << "\t.param .u64 " << name << "_in,\n"
         << "\t.param .u64 " << name << "_out,\n"
         << "\t.param .u64 " << name << "_shared,\n"
         << "\t.param .u64 " << name << "_global";
    if (!snippet.parameters.empty())
        text << ",\n\t.param .align 16 .b8 extra[" << snippet.parameters.size() << "]";
    text << "\n)\n{\n";
    append_operands(text, "i", snippet.in);
    append_operands(text, "o", snippet.out);
    append_registers(text);
    text << snippet.declarations;
    if (shared) text << "\t.shared .align 1024 .b8 arena[" << shared << "];\n";
    text << "\n\tld.param.u64 %from, [" << name << "_in];\n"
         << "\tld.param.u64 %to, [" << name << "_out];\n"
         << "\tld.param.u64 %copy, [" << name << "_shared];\n"
         << "\tld.param.u64 %gmem, [" << name << "_global];\n"
         << "\tcvta.to.global.u64 %from, %from;\n\tcvta.to.global.u64 %to, %to;\n"
         << "\tcvta.to.global.u64 %copy, %copy;\n\tcvta.to.global.u64 %gmem, %gmem;\n"
         << "\tmov.u32 %lane, %tid.x;\n\tmov.u32 %threads, %ntid.x;\n\tmov.u32 %at, %ctaid.x;\n"
         << "\tmad.lo.s32 %index, %at, %threads, %lane;\n"
         << "\tmul.wide.u32 %wide, %index, 8;\n"
         << "\tadd.s64 %from, %from, %wide;\n\tadd.s64 %to, %to, %wide;\n";
    if (shared) {
        text << "\tmov.u32 %smem, arena;\n";
        append_copy(text, name + "_fill", shared, true);
        text << "\tbar.sync 0;\n";
    }
    for (std::size_t i = 0; i < snippet.in.size(); ++i) {
        const std::string address = "[%from+" + std::to_string(i * threads * kSlot) + "];\n";
        const int width = snippet.in[i];
        if (width == 1)
            text << "\tld.global.u32 %word0, " << address << "\tsetp.ne.s32 %i" << i
                 << ", %word0, 0;\n";
        else
            text << "\tld.global.u" << width << " %i" << i << ", " << address;
    }
    text << "\n" << snippet.body << "\n\n";
    for (std::size_t i = 0; i < snippet.out.size(); ++i) {
        const std::string address = "[%to+" + std::to_string(i * threads * kSlot) + "], ";
        const int width = snippet.out[i];
        if (width == 1)
            text << "\tselp.b32 %word0, 1, 0, %o" << i << ";\n\tst.global.u32 " << address
                 << "%word0;\n";
        else
            text << "\tst.global.u" << width << " " << address << "%o" << i << ";\n";
    }
    if (shared) {
        // Block 0's is the one that is returned.
        text << "\tbar.sync 0;\n\tmov.u32 %at, %ctaid.x;\n\tsetp.ne.s32 %done, %at, 0;\n"
             << "\t@%done bra $" << name << "_exit;\n";
        append_copy(text, name + "_save", shared, false);
        text << "$" << name << "_exit:\n";
    }
    text << "\tret;\n}\n\n";
    return text.str();
}

void require(cudaError_t error, const char* call, const std::string& ptx) {
    if (error == cudaSuccess) return;
    cudaDeviceReset();  // else every later call would return the same error
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error) + "\n" + ptx);
}

struct Free {
    void operator()(void* memory) const { cudaFree(memory); }
};
using DeviceBytes = std::unique_ptr<void, Free>;

DeviceBytes device_bytes(const void* from, std::size_t bytes) {
    void* memory = nullptr;
    require(cudaMalloc(&memory, std::max<std::size_t>(bytes, 16)), "cudaMalloc", "");
    DeviceBytes owner(memory);
    if (bytes) require(cudaMemcpy(memory, from, bytes, cudaMemcpyHostToDevice), "cudaMemcpy", "");
    return owner;
}

struct Library {
    cudaLibrary_t handle = nullptr;
    ~Library() {
        if (handle) cudaLibraryUnload(handle);
    }
};

}  // namespace

Result run(const Snippet& snippet, const Lanes& in) {
    const std::size_t threads = in.size();
    if (threads == 0 || threads % static_cast<std::size_t>(snippet.block) != 0)
        throw std::runtime_error("the number of inputs must be a multiple of the block");
    const std::string ptx = module_heading(snippet.arch) + snippet.module_declarations +
                            kernel_text(snippet, "snippet", threads);

    std::vector<Word> values(std::max<std::size_t>(1, snippet.in.size()) * threads);
    for (std::size_t thread = 0; thread < threads; ++thread) {
        if (in[thread].size() != snippet.in.size())
            throw std::runtime_error("a lane must have one value for each input of its snippet");
        for (std::size_t i = 0; i < snippet.in.size(); ++i)
            values[i * threads + thread] = in[thread][i];
    }
    // What the snippet does not write must not come back as if it had.
    std::vector<Word> results(std::max<std::size_t>(1, snippet.out.size()) * threads,
                              0xDEADBEEFDEADBEEF);
    Bytes shared = snippet.shared;
    shared.resize(padded(shared.size()));

    const DeviceBytes device_in = device_bytes(values.data(), values.size() * kSlot);
    const DeviceBytes device_out = device_bytes(results.data(), results.size() * kSlot);
    const DeviceBytes device_shared = device_bytes(shared.data(), shared.size());
    const DeviceBytes device_global = device_bytes(snippet.global.data(), snippet.global.size());

    Library library;
    require(
        cudaLibraryLoadData(&library.handle, ptx.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cudaLibraryLoadData", ptx);
    cudaKernel_t kernel = nullptr;
    require(cudaLibraryGetKernel(&kernel, library.handle, "snippet"), "cudaLibraryGetKernel", ptx);

    void* pointers[4] = {device_in.get(), device_out.get(), device_shared.get(),
                         device_global.get()};
    Bytes extra = snippet.parameters;
    void* arguments[5] = {&pointers[0], &pointers[1], &pointers[2], &pointers[3], extra.data()};
    const auto block = static_cast<unsigned>(snippet.block);
    require(cudaLaunchKernel(reinterpret_cast<const void*>(kernel),
                             dim3(static_cast<unsigned>(threads) / block), dim3(block), arguments,
                             0, nullptr),
            "cudaLaunchKernel", ptx);
    require(cudaDeviceSynchronize(), "cudaDeviceSynchronize", ptx);

    const auto fetch = [&](void* to, const DeviceBytes& from, std::size_t bytes) {
        if (bytes)
            require(cudaMemcpy(to, from.get(), bytes, cudaMemcpyDeviceToHost), "cudaMemcpy", ptx);
    };
    fetch(results.data(), device_out, results.size() * kSlot);
    Result result;
    result.shared = std::move(shared);
    fetch(result.shared.data(), device_shared, result.shared.size());
    result.shared.resize(snippet.shared.size());
    result.global.resize(snippet.global.size());
    fetch(result.global.data(), device_global, result.global.size());
    result.out.assign(threads, std::vector<Word>(snippet.out.size()));
    for (std::size_t thread = 0; thread < threads; ++thread)
        for (std::size_t i = 0; i < snippet.out.size(); ++i) {
            const int width = snippet.out[i] == 1 ? 32 : snippet.out[i];
            const Word mask = width == 64 ? ~Word{0} : (Word{1} << width) - 1;
            result.out[thread][i] = results[i * threads + thread] & mask;
        }
    return result;
}

std::string assembly_check(const std::vector<const Snippet*>& snippets, int arch) {
    constexpr std::size_t kBodiesPerKernel = 20;
    std::set<std::string> declared;
    std::ostringstream kernels;
    for (std::size_t i = 0; i < snippets.size(); ++i) {
        if (i % kBodiesPerKernel == 0) {
            kernels << ".visible .entry kernel" << i
                    << "(\n\t.param .u64 global,\n\t.param .align 16 .b8 extra[64]\n)\n{\n";
            append_registers(kernels);
            kernels << "\t.shared .align 16 .b8 arena[1024];\n\tmov.u32 %smem, arena;\n"
                    << "\tmov.u32 %lane, %tid.x;\n\tld.param.u64 %gmem, [global];\n";
        }
        const Snippet& snippet = *snippets[i];
        declared.insert(snippet.module_declarations);
        kernels << "{\n" << snippet.declarations;
        append_operands(kernels, "i", snippet.in);
        append_operands(kernels, "o", snippet.out);
        kernels << snippet.body << "\n}\n";
        if ((i + 1) % kBodiesPerKernel == 0 || i + 1 == snippets.size()) kernels << "\tret;\n}\n";
    }
    std::string text = module_heading(arch);
    for (const std::string& declaration : declared) text += declaration;
    return text + kernels.str();
}

std::vector<std::string> opcodes(const std::string& body) {
    std::vector<std::string> found;
    std::istringstream lines(body);
    for (std::string statement; std::getline(lines, statement, ';');) {
        std::istringstream words(statement);
        std::string word;
        while (words >> word) {
            if (word[0] == '@' || word[0] == '{' || word[0] == '}' || word.back() == ':') continue;
            if (word == ".pragma") word = "pragma";
            if (word[0] != '.') found.push_back(word);
            break;
        }
    }
    return found;
}

}  // namespace instructions
