#include "tests/gpu_emulator/kernel_code.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <stdexcept>
#include <tuple>

#include "tests/gpu_emulator/forms.h"
#include "tests/gpu_emulator/machine.h"

namespace gpu_emulator {
namespace {

constexpr std::uint32_t kSharedGap = 16;

// One operand of a signature: "w", "4w", "w|p", "a" ...
struct Want {
    int count = 0;  // of a vector, 0: a single one
    char letter = 0;
    bool pair = false;
    bool destination = false;
};

std::vector<Want> wanted(const std::string& signature) {
    std::vector<Want> result;
    Want want;
    bool any = false;
    auto finish = [&] {
        if (any) result.push_back(want);
        want = Want();
        any = false;
    };
    for (std::size_t i = 0; i < signature.size(); ++i) {
        const char c = signature[i];
        if (c == ' ') {
            finish();
        } else if (c == '=') {
            finish();
            for (Want& w : result) w.destination = true;
        } else if (c >= '0' && c <= '9') {
            want.count = want.count * 10 + (c - '0');
        } else if (c == '|') {
            want.pair = true;
            ++i;
        } else {
            want.letter = c;
            any = true;
        }
    }
    finish();
    return result;
}

bool register_fits(std::uint8_t bytes, char letter, bool predicate) {
    switch (letter) {
        case 'p':
            return predicate;
        case 'h':
            return bytes == 2;
        case 'w':
            return bytes == 4;
        case 'l':
            return bytes == 8;
        case 'B':
            return !predicate;
        case 'H':
            return bytes >= 2;
        case 'W':
            return bytes >= 4;
        default:
            return false;
    }
}

// Specials are 32-bit, some 64; variables' addresses 32 or 64 bits as the register they go to.
bool single_fits(const Function& f, const Operand& o, const Want& want) {
    switch (o.kind) {
        case Operand::Kind::kRegister: {
            const std::uint8_t bytes = f.registers.at(static_cast<std::size_t>(o.index));
            if (o.pair >= 0 && !want.pair) return false;
            if (o.negated && want.letter != 'p') return false;
            return register_fits(bytes, want.letter, bytes == 1);
        }
        case Operand::Kind::kSink:
            return want.destination;
        case Operand::Kind::kImmediate:
            return !want.destination && want.letter != 'a';
        case Operand::Kind::kSpecial:
            return !want.destination &&
                   (want.letter == 'w' || want.letter == 'l' || want.letter == 'W');
        case Operand::Kind::kVariable:
        case Operand::Kind::kParameter:
            return !want.destination && (want.letter == 'w' || want.letter == 'l');
        default:
            return false;
    }
}

bool operand_fits(const Function& f, const Operand& o, const Want& want) {
    if (want.letter == 'a') return o.kind == Operand::Kind::kAddress && o.elements.size() == 1;
    if (want.letter == 'L') return o.kind == Operand::Kind::kLabel;
    if (want.letter == 'T') {
        return o.kind == Operand::Kind::kVector && !o.elements.empty() &&
               o.elements.front().kind == Operand::Kind::kLabel;
    }
    if (want.count > 0) {
        if (o.kind != Operand::Kind::kVector || static_cast<int>(o.elements.size()) != want.count) {
            return false;
        }
        for (const Operand& e : o.elements) {
            if (!single_fits(f, e, want)) return false;
        }
        return true;
    }
    return single_fits(f, o, want);
}

bool fits(const Function& f, const Instruction& instruction, const Form& form) {
    const std::vector<Want> want = wanted(form.signature);
    if (want.size() != instruction.operands.size()) return false;
    for (std::size_t i = 0; i < want.size(); ++i) {
        if (!operand_fits(f, instruction.operands[i], want[i])) return false;
    }
    return true;
}

class Builder {
  public:
    Builder(const Module& module, const Function& function) : function_(function) {
        code_.module = &module;
        code_.function = &function;
        code_.initial.assign(function.registers.size() + 1, 0);
        sink_ = static_cast<std::uint32_t>(function.registers.size());
        code_.first_constant = sink_ + 1;
    }

    KernelCode build() {
        lay_out_shared();
        std::vector<std::size_t> first;  // of each instruction's slots
        for (const Instruction& instruction : function_.instructions) {
            first.push_back(code_.slots.size());
            add(instruction);
        }
        Op exit;
        exit.handler = form_table().find("exit")->front().handler;
        code_.ops.push_back(exit);
        for (std::size_t i = 0; i < first.size(); ++i) {
            code_.ops[i].slots = code_.slots.data() + first[i];
        }
        return std::move(code_);
    }

  private:
    void lay_out_shared() {
        std::uint32_t at = 0;
        for (const Variable& v : function_.variables) {
            if (v.space != Space::kShared || v.bytes == 0) {
                shared_at_.push_back(0);
                continue;
            }
            const std::uint32_t alignment =
                static_cast<std::uint32_t>(std::max<std::size_t>(v.alignment, 1));
            at = (at + alignment - 1) / alignment * alignment;
            shared_at_.push_back(at);
            code_.shared_variables.push_back({at, at + static_cast<std::uint32_t>(v.bytes)});
            at += static_cast<std::uint32_t>(v.bytes) + kSharedGap;
        }
        std::uint32_t alignment = 16;
        auto widest = [&](const std::vector<Variable>& variables) {
            for (const Variable& v : variables) {
                if (v.space == Space::kShared && v.bytes == 0) {
                    alignment = std::max(alignment, static_cast<std::uint32_t>(v.alignment));
                }
            }
        };
        widest(function_.variables);
        widest(code_.module->variables);
        code_.dynamic_shared_at = (at + alignment - 1) / alignment * alignment;
    }

    std::uint32_t constant(std::uint64_t value) {
        auto [it, added] = constants_.try_emplace(value, 0);
        if (added) it->second = new_slot(value);
        return it->second;
    }

    std::uint32_t new_slot(std::uint64_t value) {
        code_.initial.push_back(value);
        return static_cast<std::uint32_t>(code_.initial.size() - 1);
    }

    std::uint32_t slot(const Operand& o) {
        switch (o.kind) {
            case Operand::Kind::kRegister:
                return static_cast<std::uint32_t>(o.index);
            case Operand::Kind::kSink:
                return sink_;
            case Operand::Kind::kImmediate:
                return constant(o.immediate);
            case Operand::Kind::kSpecial: {
                auto [it, added] = specials_.try_emplace(o.index, 0);
                if (added) {
                    it->second = new_slot(0);
                    code_.specials.push_back({it->second, static_cast<SpecialRegister>(o.index)});
                }
                return it->second;
            }
            case Operand::Kind::kVariable:
                return variable(o);
            case Operand::Kind::kParameter:
                return constant(function_.parameters.at(static_cast<std::size_t>(o.index)).offset +
                                o.immediate);
            default:
                throw std::logic_error("gpu emulator: operand without a slot");
        }
    }

    std::uint32_t variable(const Operand& o) {
        const std::vector<Variable>& table =
            o.module_wide ? code_.module->variables : function_.variables;
        const Variable& v = table.at(static_cast<std::size_t>(o.index));
        switch (v.space) {
            case Space::kShared:
                return constant((v.bytes == 0 ? code_.dynamic_shared_at
                                              : shared_at_.at(static_cast<std::size_t>(o.index))) +
                                o.immediate);
            case Space::kLocal:
            case Space::kParam:
                return constant(v.offset + o.immediate);
            default: {
                auto [it, added] = module_wide_.try_emplace({o.index, o.immediate}, 0);
                if (added) {
                    it->second = new_slot(o.immediate);
                    code_.module_wide.push_back({it->second, static_cast<std::uint32_t>(o.index)});
                }
                return it->second;
            }
        }
    }

    void add(const Instruction& instruction) {
        const Form& form = *instruction.form;
        Op op;
        op.handler = form.handler;
        op.mode = form.mode;
        if (instruction.guard >= 0) {
            op.guard = static_cast<std::uint32_t>(instruction.guard);
            op.guard_skips = instruction.guard_negated;
        }
        const std::vector<Want> want = wanted(form.signature);
        const std::size_t before = code_.slots.size();
        bool have_address = false;
        for (std::size_t i = 0; i < instruction.operands.size(); ++i) {
            const Operand& o = instruction.operands[i];
            if (o.kind == Operand::Kind::kLabel) {
                op.target = static_cast<std::uint32_t>(o.index);
            } else if (o.kind == Operand::Kind::kAddress) {
                code_.slots.push_back(slot(o.elements.front()));
                (have_address ? op.offset2 : op.offset) = o.immediate;
                have_address = true;
            } else if (o.kind == Operand::Kind::kVector) {
                for (const Operand& e : o.elements) {
                    code_.slots.push_back(e.kind == Operand::Kind::kLabel
                                              ? static_cast<std::uint32_t>(e.index)
                                              : slot(e));
                }
            } else {
                code_.slots.push_back(slot(o));
                if (o.negated) op.negated = true;
                if (want[i].pair) {
                    code_.slots.push_back(o.pair >= 0 ? static_cast<std::uint32_t>(o.pair) : sink_);
                }
            }
        }
        op.slot_count = static_cast<std::uint16_t>(code_.slots.size() - before);
        op.counted = form.counted;
        if (form.counted != 0) {
            op.memory_op = code_.memory_ops++;
            code_.memory_op_pc.push_back(static_cast<std::uint32_t>(code_.ops.size()));
        }
        code_.ops.push_back(op);
    }

    const Function& function_;
    KernelCode code_;
    std::uint32_t sink_ = 0;
    std::map<std::uint64_t, std::uint32_t> constants_;
    std::map<int, std::uint32_t> specials_;
    std::map<std::pair<int, std::uint64_t>, std::uint32_t> module_wide_;
    std::vector<std::uint32_t> shared_at_;
};

std::string describe_operands(const Function& f, const Instruction& instruction) {
    std::string text;
    for (const Operand& o : instruction.operands) {
        text += text.empty() ? " (" : ", ";
        switch (o.kind) {
            case Operand::Kind::kRegister:
                text += "r" + std::to_string(8 * f.registers.at(static_cast<std::size_t>(o.index)));
                if (o.pair >= 0) text += "|p";
                break;
            case Operand::Kind::kImmediate:
                text += "immediate";
                break;
            case Operand::Kind::kSpecial:
                text += "special";
                break;
            case Operand::Kind::kVariable:
                text += "variable";
                break;
            case Operand::Kind::kParameter:
                text += "parameter";
                break;
            case Operand::Kind::kLabel:
                text += "label";
                break;
            case Operand::Kind::kVector:
                text += "vector of " + std::to_string(o.elements.size());
                break;
            case Operand::Kind::kAddress:
                text += "address";
                break;
            case Operand::Kind::kSink:
                text += "_";
                break;
        }
    }
    return text + (text.empty() ? "" : ")");
}

}  // namespace

const Form* find_form(const Function& function, const Instruction& instruction) {
    const std::vector<Form>* forms = form_table().find(instruction.text);
    if (forms == nullptr) return nullptr;
    for (const Form& form : *forms) {
        if (fits(function, instruction, form)) return &form;
    }
    return nullptr;
}

KernelCode make_program(const Module& module, const Function& function) {
    return Builder(module, function).build();
}

std::string KernelCode::place(std::uint32_t pc) const {
    if (pc >= function->instructions.size()) return "end of kernel";
    return describe(*module, function->instructions[pc].source);
}

std::string short_name(const std::string& mangled) {
    int status = 0;
    char* text = abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
    if (status != 0 || text == nullptr) return mangled;
    std::string name = text;
    std::free(text);
    if (name.rfind("void ", 0) == 0) name.erase(0, 5);
    for (std::size_t at; (at = name.find("(anonymous namespace)::")) != std::string::npos;) {
        name.erase(at, 23);
    }
    // The arguments begin at the last parenthesis on the outside of all angle brackets.
    int depth = 0;
    for (std::size_t i = 0; i < name.size(); ++i) {
        if (name[i] == '<') ++depth;
        if (name[i] == '>') --depth;
        if (name[i] == '(' && depth == 0) return name.substr(0, i);
    }
    return name;
}

void link(Module& module) {
    std::set<std::string> unknown;
    for (Function& function : module.functions) {
        forget_program(function);
        for (Instruction& instruction : function.instructions) {
            instruction.form = find_form(function, instruction);
            if (instruction.form != nullptr) continue;
            const bool known_text = form_table().find(instruction.text) != nullptr;
            unknown.insert(known_text
                               ? instruction.text + describe_operands(function, instruction) +
                                     " as in ptx line " + std::to_string(instruction.ptx_line)
                               : instruction.text);
        }
    }
    if (unknown.empty()) return;
    std::string text = "gpu emulator: instruction forms that are not in the table:";
    for (const std::string& form : unknown) text += "\n    " + form;
    throw std::runtime_error(text);
}

}  // namespace gpu_emulator
