#include "tests/kernel_resources/cubin.h"

#include <cxxabi.h>
#include <elf.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <stdexcept>

namespace kernel_resources {
namespace {

// Of .nv.info: entries of a format, an attribute and a size or value (fatbinary's own tools print
// them so).
constexpr int kSizedFormat = 4;
constexpr int kRegisterCount = 0x2F, kFrameSize = 0x11, kMinimumStack = 0x12;

// The low 12 bits of a 16-byte instruction of sm_80 and sm_90, as nvdisasm -hex shows them.
constexpr int kInstructionBytes = 16;
constexpr int kHmma = 0x23C, kLdsm = 0x83B, kLdgsts = 0xFAE, kLdl = 0x983, kStl = 0x387;

class File {
  public:
    explicit File(std::string_view bytes) : bytes_(bytes) {
        const auto header = at<Elf64_Ehdr>(0);
        if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 ||
            header.e_ident[EI_CLASS] != ELFCLASS64)
            throw std::runtime_error("cubin: not a 64-bit ELF file");
        for (int i = 0; i < header.e_shnum; ++i)
            sections_.push_back(at<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr)));
        names_ = header.e_shstrndx;
    }

    const std::vector<Elf64_Shdr>& sections() const { return sections_; }
    std::string name(const Elf64_Shdr& section) const { return text(names_, section.sh_name); }
    std::string text(std::size_t strings, std::size_t offset) const {
        const std::string_view table = content(sections_.at(strings));
        return std::string(table.substr(offset, table.find('\0', offset) - offset));
    }
    std::string_view content(const Elf64_Shdr& section) const {
        return bytes_.substr(section.sh_offset, section.sh_size);
    }
    template <class T>
    T at(std::size_t offset) const {
        return read<T>(bytes_, offset);
    }
    template <class T>
    static T read(std::string_view from, std::size_t offset) {
        T value;
        if (offset + sizeof(T) > from.size()) throw std::runtime_error("cubin: cut short");
        std::memcpy(&value, from.data() + offset, sizeof(T));
        return value;
    }

  private:
    std::string_view bytes_;
    std::vector<Elf64_Shdr> sections_;
    std::size_t names_ = 0;
};

std::vector<std::string> symbol_names(const File& file) {
    std::vector<std::string> names;
    for (const Elf64_Shdr& section : file.sections()) {
        if (section.sh_type != SHT_SYMTAB) continue;
        const std::string_view content = file.content(section);
        for (std::size_t at = 0; at < content.size(); at += sizeof(Elf64_Sym))
            names.push_back(file.text(section.sh_link, File::read<Elf64_Sym>(content, at).st_name));
    }
    return names;
}

void read_info(std::string_view info,
               const std::vector<std::string>& symbols,
               std::map<std::string, Kernel>& kernels) {
    for (std::size_t at = 0; at < info.size();) {
        const auto format = File::read<std::uint8_t>(info, at);
        const auto attribute = File::read<std::uint8_t>(info, at + 1);
        const auto size = File::read<std::uint16_t>(info, at + 2);
        at += 4;
        if (format != kSizedFormat) continue;
        if (attribute == kRegisterCount || attribute == kFrameSize || attribute == kMinimumStack) {
            const auto found = kernels.find(symbols.at(File::read<std::uint32_t>(info, at)));
            const auto value = static_cast<int>(File::read<std::uint32_t>(info, at + 4));
            if (found != kernels.end()) {
                if (attribute == kRegisterCount)
                    found->second.registers = value;
                else
                    found->second.stack_bytes = std::max(found->second.stack_bytes, value);
            }
        }
        at += size;
    }
}

void count_instructions(std::string_view text, Kernel& kernel) {
    for (std::size_t at = 0; at < text.size(); at += kInstructionBytes) {
        const int opcode = File::read<std::uint16_t>(text, at) & 0xFFF;
        kernel.tensor_products += opcode == kHmma;
        kernel.matrix_loads += opcode == kLdsm;
        kernel.async_copies += opcode == kLdgsts;
        kernel.local_accesses += opcode == kLdl || opcode == kStl;
    }
}

void erase_all(std::string& text, const std::string& part) {
    for (std::size_t at; (at = text.find(part)) != std::string::npos;) text.erase(at, part.size());
}

}  // namespace

std::string short_name(const std::string& mangled) {
    int status = 0;
    const std::unique_ptr<char, void (*)(void*)> demangled(
        abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), std::free);
    std::string name = status == 0 ? demangled.get() : mangled;
    for (const char* part : {"(anonymous namespace)::", "evenkeel::", "cuda::"})
        erase_all(name, part);
    // Up to the parameters: the parenthesis outside of template arguments.
    int depth = 0;
    for (std::size_t at = 0; at < name.size(); ++at) {
        depth += name[at] == '<';
        depth -= name[at] == '>';
        if (name[at] != '(' || depth > 0) continue;
        name.resize(at);
        break;
    }
    if (name.rfind("void ", 0) == 0) name.erase(0, 5);
    return name;
}

std::vector<Kernel> kernels_of(std::string_view cubin) {
    const File file(cubin);
    const std::string text = ".text.", shared = ".nv.shared.";
    std::map<std::string, Kernel> kernels;  // by mangled name
    for (const Elf64_Shdr& section : file.sections())
        if (const std::string name = file.name(section); name.rfind(text, 0) == 0) {
            Kernel& kernel = kernels[name.substr(text.size())];
            kernel.name = short_name(name.substr(text.size()));
            count_instructions(file.content(section), kernel);
        }
    const std::vector<std::string> symbols = symbol_names(file);
    for (const Elf64_Shdr& section : file.sections()) {
        const std::string name = file.name(section);
        if (name == ".nv.info") read_info(file.content(section), symbols, kernels);
        if (name.rfind(shared, 0) != 0) continue;
        const auto found = kernels.find(name.substr(shared.size()));
        if (found != kernels.end())
            found->second.static_shared_bytes = static_cast<int>(section.sh_size);
    }
    std::vector<Kernel> all;
    for (auto& [name, kernel] : kernels) all.push_back(std::move(kernel));
    return all;
}

}  // namespace kernel_resources
