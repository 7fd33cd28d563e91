// What stands in the body of a kernel.
#include <algorithm>

#include "tests/gpu_emulator/parser.h"

namespace gpu_emulator {

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
    if (bytes == 0) fail_at(type.line, "unknown type " + in_quotes(type.text));
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
        if (!is_new) fail_at(name.line, "a second register " + in_quotes(name.text));
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
        fail_at(line, "the variable " + in_quotes(name) + " has no size, or a value");
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
        fail_at(name.line, "a second label " + in_quotes(name.text));
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
    if (!starts_like_one) fail_at(opcode.line, "unknown statement " + in_quotes(opcode.text));
    if (opcode.text == "call" || opcode.text.starts_with("call.")) {
        lexer_.take_if("(");
        std::string_view name = lexer_.take().text;  // of the result, or of the function
        if (lexer_.take_if(")") && lexer_.take_if(",")) name = lexer_.peek().text;
        fail_at(opcode.line,
                "a call of the function " + in_quotes(name) + ", which was not inlined");
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
            if (scopes_.empty()) fail_at(pending.line, "unknown label " + in_quotes(pending.label));
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
    if (operand.index < 0) fail_at(name.line, "unknown name " + in_quotes(name.text));
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
        fail_at(name.line, "got " + in_quotes(name.text) + ", want a predicate");
    }
    return index;
}

}  // namespace gpu_emulator
