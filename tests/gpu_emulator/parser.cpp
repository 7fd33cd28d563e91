// PTX text as nvcc writes it, into a Module. Whatever is not listed here is an error: a directive that is
// skipped is one that hardware obeys and the emulator does not.
#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>

#include "tests/gpu_emulator/lexer.h"
#include "tests/gpu_emulator/module.h"
#include "tests/gpu_emulator/parser_scope.h"

namespace gpu_emulator {
namespace {

std::string quoted(std::string_view text) { return "'" + std::string(text) + "'"; }

std::size_t align_up(std::size_t value, std::size_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
}

class Parser {
  public:
    explicit Parser(std::string_view text) : lexer_(text) {}
    Module parse();

  private:
    // Module scope
    void parse_module_statement();
    void parse_file();
    void skip_debug_section();
    void parse_module_variable(bool is_external);
    void parse_entry();
    void parse_parameters();
    void parse_entry_directives();
    [[noreturn]] void refuse_function();

    // Declarations
    Variable parse_variable(Space space, std::string_view& name);
    std::size_t parse_alignment();
    std::size_t parse_number(std::string_view what);
    void parse_initial(Variable& variable, std::size_t element_bytes);
    void parse_pragma();

    // Function bodies
    void parse_body();
    void parse_statement();
    void parse_registers();
    void parse_function_variable(Space space);
    void parse_location();
    void parse_label();
    void parse_branch_targets(std::string_view name);
    void parse_instruction();
    void close_scope();
    void place_shared_memory();

    // Operands
    Operand parse_operand();
    Operand parse_address();
    Operand parse_name();
    Operand parse_branch_target(std::size_t operand);
    int find_register(std::string_view name) const;
    int find_shared_of_module(std::string_view name);
    int predicate_register();

    Lexer lexer_;
    Module module_;
    std::map<std::string_view, int> module_variables_;
    std::map<std::string_view, Variable> module_shared_;

    // Of the function that is being read
    Function function_;
    std::map<std::string_view, int> parameters_;
    std::vector<Scope> scopes_;
    SourceLine place_;
    std::map<std::tuple<int, int, int>, SourceLine> places_;  // by file, line, column
    std::map<std::tuple<int, int, int>, int> call_sites_;     // by file, line, inlined_at
};

Module Parser::parse() {
    while (lexer_.peek().kind != Token::Kind::kEnd) parse_module_statement();
    return std::move(module_);
}

// ---- Module scope

void Parser::parse_module_statement() {
    bool is_external = false;
    const int line = lexer_.peek().line;
    while (lexer_.peek().is(".visible") || lexer_.peek().is(".weak") ||
           lexer_.peek().is(".extern")) {
        is_external = lexer_.take().is(".extern") || is_external;
    }
    const Token& next = lexer_.peek();
    if (next.is(".version")) {
        lexer_.take();
        lexer_.take();
    } else if (next.is(".target")) {
        lexer_.take();
        do {
            lexer_.take_word("a target");
        } while (lexer_.take_if(","));
    } else if (next.is(".address_size")) {
        lexer_.take();
        if (parse_number("an address size") != 64) fail_at(line, "addresses must have 64 bits");
    } else if (next.is(".file")) {
        parse_file();
    } else if (next.is(".section")) {
        skip_debug_section();
    } else if (next.is(".pragma")) {
        parse_pragma();
    } else if (next.is(".entry")) {
        if (is_external) fail_at(line, "an .entry that is not in this module");
        parse_entry();
    } else if (next.is(".func")) {
        refuse_function();
    } else {
        parse_module_variable(is_external);
    }
}

// .file 1 "name.cu" [, time, size]
void Parser::parse_file() {
    lexer_.take();
    const std::size_t number = parse_number("a file number");
    const Token name = lexer_.take();
    if (name.kind != Token::Kind::kString || number > 100000) fail_at(name.line, "bad .file");
    if (lexer_.take_if(",")) {
        parse_number("a time");
        lexer_.expect(",");
        parse_number("a size");
    }
    if (module_.files.size() <= number) module_.files.resize(number + 1);
    module_.files[number] = name.text;
}

void Parser::skip_debug_section() {
    lexer_.take();
    const Token name = lexer_.take_word("a section's name");
    if (!name.text.starts_with(".debug_")) {
        fail_at(name.line, "unknown section " + quoted(name.text));
    }
    lexer_.expect("{");
    while (!lexer_.take_if("}")) {
        if (lexer_.peek().kind == Token::Kind::kEnd) fail_at(name.line, "a section without end");
        lexer_.take();
    }
}

void Parser::parse_module_variable(bool is_external) {
    const Token& next = lexer_.peek();
    Space space = Space::kGlobal;
    if (next.is(".const")) {
        space = Space::kConst;
    } else if (next.is(".shared")) {
        space = Space::kShared;
    } else if (!next.is(".global")) {
        fail_at(next.line, "unknown statement " + quoted(next.text));
    }
    const int line = lexer_.take().line;
    std::string_view name;
    Variable variable = parse_variable(space, name);
    const bool is_dynamic = space == Space::kShared && is_external && variable.bytes == 0;
    if (!is_dynamic && (is_external || variable.bytes == 0)) {
        fail_at(line, "the variable " + quoted(name) + " is not in this module");
    }
    lexer_.expect(";");
    if (space == Space::kShared) {
        module_shared_.emplace(name, std::move(variable));
    } else {
        module_variables_.emplace(name, static_cast<int>(module_.variables.size()));
        module_.variables.push_back(std::move(variable));
    }
}

// .func [(result)] name (parameters)
void Parser::refuse_function() {
    const int line = lexer_.take().line;
    if (lexer_.take_if("(")) {
        while (lexer_.peek().kind != Token::Kind::kEnd && !lexer_.take_if(")")) lexer_.take();
    }
    fail_at(line, "the function " + quoted(lexer_.peek().text) +
                      " was not inlined; functions other than kernels are not supported");
}

void Parser::parse_entry() {
    lexer_.take();
    function_ = Function();
    parameters_.clear();
    scopes_.clear();
    place_ = SourceLine();
    places_.clear();
    function_.name = lexer_.take_word("a kernel's name").text;
    if (lexer_.peek().is("(")) parse_parameters();
    parse_entry_directives();
    parse_body();
    place_shared_memory();
    module_.functions.push_back(std::move(function_));
}

// .param .u64 [.ptr [.space] .align 8] name, .param .align 8 .b8 name[48]
void Parser::parse_parameters() {
    lexer_.expect("(");
    if (lexer_.take_if(")")) return;
    std::size_t offset = 0;
    do {
        lexer_.expect(".param");
        std::string_view name;
        Variable parameter = parse_variable(Space::kParam, name);
        if (parameter.bytes == 0) fail_at(lexer_.peek().line, "a parameter without a size");
        offset = align_up(offset, parameter.alignment);
        parameter.offset = offset;
        offset += parameter.bytes;
        parameters_.emplace(name, static_cast<int>(function_.parameters.size()));
        function_.parameters.push_back(std::move(parameter));
    } while (lexer_.take_if(","));
    lexer_.expect(")");
    function_.parameter_bytes = offset;
}

void Parser::parse_entry_directives() {
    while (!lexer_.peek().is("{")) {
        const Token directive = lexer_.take();
        if (directive.is(".pragma")) {
            fail_at(directive.line, ".pragma outside of a body");
        } else if (directive.is(".maxntid") || directive.is(".reqntid")) {
            std::vector<std::uint32_t> sizes;
            do {
                sizes.push_back(static_cast<std::uint32_t>(parse_number("a block size")));
            } while (lexer_.take_if(","));
            sizes.resize(3, 1);
            function_.max_threads = sizes[0] * sizes[1] * sizes[2];
            if (directive.is(".reqntid")) function_.required_block = sizes;
        } else if (directive.is(".minnctapersm") || directive.is(".maxnreg")) {
            parse_number("a number");  // advice for the register allocator
        } else {
            fail_at(directive.line, "unknown directive " + quoted(directive.text));
        }
    }
}

// ---- Declarations

std::size_t Parser::parse_number(std::string_view what) {
    const Token token = lexer_.take();
    if (token.kind != Token::Kind::kNumber) {
        fail_at(token.line, "got " + quoted(token.text) + ", want " + std::string(what));
    }
    return parse_immediate(token.text, false, token.line);
}

std::size_t Parser::parse_alignment() {
    const int line = lexer_.peek().line;
    const std::size_t alignment = parse_number("an alignment");
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) fail_at(line, "bad alignment");
    return alignment;
}

// What follows the space: [.align 16] .b8 name[4][8] [= value]. The name lives as long as the PTX text.
Variable Parser::parse_variable(Space space, std::string_view& name) {
    Variable variable;
    variable.space = space;
    std::size_t alignment = 0;
    if (lexer_.take_if(".align")) alignment = parse_alignment();
    const Token type = lexer_.take_word("a type");
    const std::size_t element_bytes = bytes_of_type(type.text);
    if (element_bytes == 0 || type.is(".pred")) {
        fail_at(type.line, "unknown type " + quoted(type.text));
    }
    if (space == Space::kParam && lexer_.take_if(".ptr")) {  // says where the pointer may point
        for (const char* in : {".global", ".shared", ".const", ".local"}) lexer_.take_if(in);
        if (lexer_.take_if(".align")) parse_alignment();
    }
    variable.alignment = alignment == 0 ? element_bytes : alignment;
    name = lexer_.take_word("a name").text;
    variable.name = name;
    std::size_t count = 1;
    while (lexer_.take_if("[")) {
        if (lexer_.take_if("]")) {
            count = 0;
            break;
        }
        count *= parse_number("a length");
        lexer_.expect("]");
    }
    variable.bytes = count * element_bytes;
    if (lexer_.take_if("=")) parse_initial(variable, element_bytes);
    return variable;
}

// 7, or {1, 2, 3} with zeros after the last one.
void Parser::parse_initial(Variable& variable, std::size_t element_bytes) {
    const bool is_list = lexer_.take_if("{");
    std::size_t at = 0;
    variable.initial.assign(variable.bytes, std::byte{0});
    do {
        const bool negative = lexer_.take_if("-");
        const Token token = lexer_.take();
        if (token.kind != Token::Kind::kNumber) {
            fail_at(token.line, "only numbers can be initial values, got " + quoted(token.text));
        }
        const std::uint64_t value = parse_immediate(token.text, negative, token.line);
        if (at + element_bytes > variable.bytes || element_bytes > sizeof value) {
            fail_at(token.line, "more initial values than " + quoted(variable.name) + " holds");
        }
        for (std::size_t i = 0; i < element_bytes; ++i) {
            variable.initial[at++] = static_cast<std::byte>(value >> (8 * i));
        }
    } while (is_list && lexer_.take_if(","));
    if (is_list) lexer_.expect("}");
}

// Advice for the compiler that makes machine code; an unknown one might be more than that.
void Parser::parse_pragma() {
    lexer_.expect(".pragma");
    do {
        const Token text = lexer_.take();
        const bool known = text.kind == Token::Kind::kString &&
                           (text.text == "nounroll" || text.text == "enable_smem_spilling" ||
                            text.text.starts_with("used_bytes_mask"));
        if (!known) fail_at(text.line, "unknown .pragma " + quoted(text.text));
    } while (lexer_.take_if(","));
    lexer_.expect(";");
}

// ---- Function bodies

void Parser::parse_body() {
    lexer_.expect("{");
    scopes_.emplace_back();
    while (!scopes_.empty()) parse_statement();
}

void Parser::parse_statement() {
    const Token& next = lexer_.peek();
    if (next.kind == Token::Kind::kEnd) fail_at(next.line, "a kernel without end");
    if (lexer_.take_if("{")) {
        scopes_.emplace_back();
    } else if (lexer_.take_if("}")) {
        close_scope();
    } else if (lexer_.take_if(";")) {
        // Inline assembly often ends in an empty statement.
    } else if (next.is(".reg")) {
        parse_registers();
    } else if (lexer_.take_if(".shared")) {
        parse_function_variable(Space::kShared);
    } else if (lexer_.take_if(".local")) {
        parse_function_variable(Space::kLocal);
    } else if (next.is(".loc")) {
        parse_location();
    } else if (next.is(".pragma")) {
        parse_pragma();
    } else if (next.kind == Token::Kind::kWord && lexer_.peek_second().is(":")) {
        parse_label();
    } else {
        parse_instruction();
    }
}

void Parser::parse_registers() {
    lexer_.take();
    const Token type = lexer_.take_word("a type");
    const std::size_t bytes = bytes_of_type(type.text);
    if (bytes == 0) fail_at(type.line, "unknown type " + quoted(type.text));
    do {
        const Token name = lexer_.take_word("a register");
        const int first = static_cast<int>(function_.registers.size());
        std::size_t count = 1;
        bool is_new = false;
        if (lexer_.take_if("<")) {
            count = parse_number("a number of registers");
            lexer_.expect(">");
            const Scope::Range range = {first, static_cast<int>(count)};
            is_new = scopes_.back().ranges.emplace(name.text, range).second;
        } else {
            is_new = scopes_.back().registers.emplace(name.text, first).second;
        }
        if (!is_new) fail_at(name.line, "a second register " + quoted(name.text));
        function_.registers.insert(function_.registers.end(), count,
                                   static_cast<std::uint8_t>(bytes));
    } while (lexer_.take_if(","));
    lexer_.expect(";");
}

void Parser::parse_function_variable(Space space) {
    const int line = lexer_.peek().line;
    std::string_view name;
    Variable variable = parse_variable(space, name);
    if (variable.bytes == 0 || !variable.initial.empty()) {
        fail_at(line, "the variable " + quoted(name) + " has no size, or a value");
    }
    lexer_.expect(";");
    std::size_t& end =
        space == Space::kShared ? function_.static_shared_bytes : function_.local_bytes;
    variable.offset = align_up(end, variable.alignment);
    end = variable.offset + variable.bytes;
    scopes_.back().variables.emplace(name, static_cast<int>(function_.variables.size()));
    function_.variables.push_back(std::move(variable));
}

// .loc file line column [, function_name label[+offset], inlined_at file line column]
void Parser::parse_location() {
    lexer_.take();
    const auto parse_place = [&] {
        const int file = static_cast<int>(parse_number("a file number"));
        const int line = static_cast<int>(parse_number("a line"));
        const int column = static_cast<int>(parse_number("a column"));
        return std::tuple(file, line, column);
    };
    const auto place = parse_place();
    place_ = {std::get<0>(place), std::get<1>(place), -1};
    if (lexer_.take_if(",")) {
        lexer_.expect("function_name");
        lexer_.take_word("a label");
        if (lexer_.take_if("+")) parse_number("an offset");
        lexer_.expect(",");
        lexer_.expect("inlined_at");
        const auto outer = parse_place();
        // The .loc of the outer place stands before this one and says where that one was inlined.
        const auto seen = places_.find(outer);
        const SourceLine site = seen != places_.end()
                                    ? seen->second
                                    : SourceLine{std::get<0>(outer), std::get<1>(outer), -1};
        const auto [entry, is_new] =
            call_sites_.emplace(std::tuple(site.file, site.line, site.inlined_at),
                                static_cast<int>(module_.call_sites.size()));
        if (is_new) module_.call_sites.push_back(site);
        place_.inlined_at = entry->second;
    }
    places_.insert_or_assign(place, place_);
}

void Parser::parse_label() {
    const Token name = lexer_.take();
    lexer_.expect(":");
    if (lexer_.peek().is(".branchtargets")) return parse_branch_targets(name.text);
    const int at = static_cast<int>(function_.instructions.size());
    if (!scopes_.back().labels.emplace(name.text, at).second) {
        fail_at(name.line, "a second label " + quoted(name.text));
    }
}

void Parser::parse_branch_targets(std::string_view name) {
    lexer_.take();
    std::vector<std::string_view> labels;
    do {
        labels.push_back(lexer_.take_word("a label").text);
    } while (lexer_.take_if(","));
    lexer_.expect(";");
    scopes_.back().targets.emplace(name, std::move(labels));
}

void Parser::parse_instruction() {
    Instruction instruction;
    instruction.source = place_;
    instruction.ptx_line = lexer_.peek().line;
    if (lexer_.take_if("@")) {
        instruction.guard_negated = lexer_.take_if("!");
        instruction.guard = predicate_register();
    }
    const Token opcode = lexer_.take();
    const bool starts_like_one =
        opcode.kind == Token::Kind::kWord && ((opcode.text[0] >= 'a' && opcode.text[0] <= 'z'));
    if (!starts_like_one) fail_at(opcode.line, "unknown statement " + quoted(opcode.text));
    if (opcode.text == "call" || opcode.text.starts_with("call.")) {
        lexer_.take_if("(");
        std::string_view name = lexer_.take().text;  // of the result, or of the function
        if (lexer_.take_if(")") && lexer_.take_if(",")) name = lexer_.peek().text;
        fail_at(opcode.line, "a call of the function " + quoted(name) + ", which was not inlined");
    }
    instruction.text = opcode.text;
    const bool is_branch = opcode.text.starts_with("bra") || opcode.text.starts_with("brx");
    if (!lexer_.peek().is(";")) {
        do {
            const bool is_label = is_branch && lexer_.peek_second().is(";");
            instruction.operands.push_back(
                is_label ? parse_branch_target(instruction.operands.size()) : parse_operand());
        } while (lexer_.take_if(","));
    }
    lexer_.expect(";");
    function_.instructions.push_back(std::move(instruction));
}

// Labels can be used before they are there, but not outside of their braces.
void Parser::close_scope() {
    Scope scope = std::move(scopes_.back());
    scopes_.pop_back();
    for (const Scope::Pending& pending : scope.pending) {
        const auto found = scope.labels.find(pending.label);
        if (found == scope.labels.end()) {
            if (scopes_.empty()) fail_at(pending.line, "unknown label " + quoted(pending.label));
            scopes_.back().pending.push_back(pending);
            continue;
        }
        Operand& operand = function_.instructions[pending.instruction].operands[pending.operand];
        (pending.element < 0 ? operand : operand.elements[pending.element]).index = found->second;
    }
}

void Parser::place_shared_memory() {
    for (Variable& variable : function_.variables) {
        if (variable.space == Space::kShared && variable.bytes == 0) {
            variable.offset = align_up(function_.static_shared_bytes,
                                       std::max<std::size_t>(variable.alignment, 16));
        }
    }
}

// ---- Operands

Operand Parser::parse_branch_target(std::size_t operand_number) {
    const Token name = lexer_.take_word("a label");
    const auto pend = [&](std::string_view label, int element) {
        scopes_.back().pending.push_back(
            {label, name.line, function_.instructions.size(), operand_number, element});
        Operand operand;
        operand.kind = Operand::Kind::kLabel;
        return operand;
    };
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
        const auto found = scope->targets.find(name.text);
        if (found == scope->targets.end()) continue;
        Operand operand;
        operand.kind = Operand::Kind::kVector;
        for (std::size_t i = 0; i < found->second.size(); ++i) {
            operand.elements.push_back(pend(found->second[i], static_cast<int>(i)));
        }
        return operand;
    }
    return pend(name.text, -1);
}

Operand Parser::parse_operand() {
    const Token& next = lexer_.peek();
    if (next.is("[")) return parse_address();
    Operand operand;
    if (lexer_.take_if("{")) {
        operand.kind = Operand::Kind::kVector;
        do {
            operand.elements.push_back(parse_operand());
        } while (lexer_.take_if(","));
        lexer_.expect("}");
        return operand;
    }
    if (lexer_.take_if("!")) {
        operand.kind = Operand::Kind::kRegister;
        operand.negated = true;
        operand.index = predicate_register();
        return operand;
    }
    const bool negative = lexer_.take_if("-");
    if (negative || lexer_.peek().kind == Token::Kind::kNumber) {
        const Token number = lexer_.take();
        if (number.kind != Token::Kind::kNumber) fail_at(number.line, "a minus without a number");
        operand.immediate = parse_immediate(number.text, negative, number.line);
        return operand;
    }
    operand = parse_name();
    if (lexer_.take_if("|")) {
        if (!lexer_.take_if("_")) operand.pair = predicate_register();
    }
    return operand;
}

// [base], [base+8], [base+-8]
Operand Parser::parse_address() {
    lexer_.expect("[");
    Operand operand;
    operand.kind = Operand::Kind::kAddress;
    if (lexer_.peek().kind == Token::Kind::kNumber) {
        operand.elements.push_back(parse_operand());
    } else {
        operand.elements.push_back(parse_name());
    }
    const Operand::Kind base = operand.elements[0].kind;
    if (base == Operand::Kind::kSink || base == Operand::Kind::kSpecial) {
        fail_at(lexer_.peek().line, "an address without a base");
    }
    if (lexer_.take_if("+")) {
        const bool negative = lexer_.take_if("-");
        const Token number = lexer_.take();
        if (number.kind != Token::Kind::kNumber) fail_at(number.line, "want a byte offset");
        operand.immediate = parse_immediate(number.text, negative, number.line);
    }
    lexer_.expect("]");
    return operand;
}

Operand Parser::parse_name() {
    const Token name = lexer_.take_word("an operand");
    Operand operand;
    operand.kind = Operand::Kind::kRegister;
    if ((operand.index = find_register(name.text)) >= 0) return operand;
    if (name.is("_")) {
        operand.kind = Operand::Kind::kSink;
        return operand;
    }
    operand.kind = Operand::Kind::kSpecial;
    if ((operand.index = special_register(name.text)) >= 0) return operand;
    if (name.is("WARP_SZ")) {
        operand.kind = Operand::Kind::kImmediate;
        operand.immediate = 32;
        return operand;
    }
    operand.kind = Operand::Kind::kVariable;
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
        const auto found = scope->variables.find(name.text);
        if (found == scope->variables.end()) continue;
        operand.index = found->second;
        return operand;
    }
    if (const auto found = parameters_.find(name.text); found != parameters_.end()) {
        operand.kind = Operand::Kind::kParameter;
        operand.index = found->second;
        return operand;
    }
    if (const auto found = module_variables_.find(name.text); found != module_variables_.end()) {
        operand.index = found->second;
        operand.module_wide = true;
        return operand;
    }
    operand.index = find_shared_of_module(name.text);
    if (operand.index < 0) fail_at(name.line, "unknown name " + quoted(name.text));
    return operand;
}

int Parser::find_register(std::string_view name) const {
    const std::size_t digits = name.find_last_not_of("0123456789") + 1;
    const std::string_view prefix = name.substr(0, digits);
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
        if (const auto found = scope->registers.find(name); found != scope->registers.end()) {
            return found->second;
        }
        if (digits == name.size() || name.size() - digits > 7) continue;
        const auto found = scope->ranges.find(prefix);
        if (found == scope->ranges.end()) continue;
        int number = 0;
        for (const char c : name.substr(digits)) number = 10 * number + (c - '0');
        if (number < found->second.count) return found->second.first + number;
    }
    return -1;
}

// The function gets its own entry for a .shared variable that stands outside: every block has one.
int Parser::find_shared_of_module(std::string_view name) {
    const auto found = module_shared_.find(name);
    if (found == module_shared_.end()) return -1;
    Variable variable = found->second;
    if (variable.bytes != 0) {
        variable.offset = align_up(function_.static_shared_bytes, variable.alignment);
        function_.static_shared_bytes = variable.offset + variable.bytes;
    }
    const int index = static_cast<int>(function_.variables.size());
    function_.variables.push_back(std::move(variable));
    scopes_.front().variables.emplace(name, index);
    return index;
}

int Parser::predicate_register() {
    const Token name = lexer_.take_word("a predicate");
    const int index = find_register(name.text);
    if (index < 0 || function_.registers[index] != 1) {
        fail_at(name.line, "got " + quoted(name.text) + ", want a predicate");
    }
    return index;
}

}  // namespace

Module parse_ptx(std::string_view text) { return Parser(text).parse(); }

}  // namespace gpu_emulator
