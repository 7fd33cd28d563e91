// PTX text as nvcc writes it, into a Module: what stands outside of kernels, and declarations.
// Whatever is not listed here is an error: a directive that is skipped is one that hardware obeys
// and the emulator does not.
#include "tests/gpu_emulator/parser.h"

namespace gpu_emulator {

Module parse_ptx(std::string_view text) { return Parser(text).parse(); }

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
        fail_at(name.line, "unknown section " + in_quotes(name.text));
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
        fail_at(next.line, "unknown statement " + in_quotes(next.text));
    }
    const int line = lexer_.take().line;
    std::string_view name;
    Variable variable = parse_variable(space, name);
    const bool is_dynamic = space == Space::kShared && is_external && variable.bytes == 0;
    if (!is_dynamic && (is_external || variable.bytes == 0)) {
        fail_at(line, "the variable " + in_quotes(name) + " is not in this module");
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
    fail_at(line, "the function " + in_quotes(lexer_.peek().text) +
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
            fail_at(directive.line, "unknown directive " + in_quotes(directive.text));
        }
    }
}

// ---- Declarations

std::size_t Parser::parse_number(std::string_view what) {
    const Token token = lexer_.take();
    if (token.kind != Token::Kind::kNumber) {
        fail_at(token.line, "got " + in_quotes(token.text) + ", want " + std::string(what));
    }
    return parse_immediate(token.text, false, token.line);
}

std::size_t Parser::parse_alignment() {
    const int line = lexer_.peek().line;
    const std::size_t alignment = parse_number("an alignment");
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) fail_at(line, "bad alignment");
    return alignment;
}

// What follows the space: [.align 16] .b8 name[4][8] [= value]. The name lives as long as the PTX
// text.
Variable Parser::parse_variable(Space space, std::string_view& name) {
    Variable variable;
    variable.space = space;
    std::size_t alignment = 0;
    if (lexer_.take_if(".align")) alignment = parse_alignment();
    const Token type = lexer_.take_word("a type");
    const std::size_t element_bytes = bytes_of_type(type.text);
    if (element_bytes == 0 || type.is(".pred")) {
        fail_at(type.line, "unknown type " + in_quotes(type.text));
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
            fail_at(token.line, "only numbers can be initial values, got " + in_quotes(token.text));
        }
        const std::uint64_t value = parse_immediate(token.text, negative, token.line);
        if (at + element_bytes > variable.bytes || element_bytes > sizeof value) {
            fail_at(token.line, "more initial values than " + in_quotes(variable.name) + " holds");
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
        if (!known) fail_at(text.line, "unknown .pragma " + in_quotes(text.text));
    } while (lexer_.take_if(","));
    lexer_.expect(";");
}

}  // namespace gpu_emulator
