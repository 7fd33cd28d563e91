// Reads PTX. Internal: parse_ptx() of module.h is what others call.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/gpu_emulator/lexer.h"
#include "tests/gpu_emulator/module.h"
#include "tests/gpu_emulator/parser_scope.h"

namespace gpu_emulator {

inline std::string in_quotes(std::string_view text) { return "'" + std::string(text) + "'"; }

inline std::size_t align_up(std::size_t value, std::size_t alignment) {
    return (value + alignment - 1) / alignment * alignment;
}

class Parser {
  public:
    explicit Parser(std::string_view text) : lexer_(text) {}
    Module parse();

  private:
    // Module scope (parser.cpp)
    void parse_module_statement();
    void parse_file();
    void skip_debug_section();
    void parse_module_variable(bool is_external);
    void parse_entry();
    void parse_parameters();
    void parse_entry_directives();
    [[noreturn]] void refuse_function();

    // Declarations (parser.cpp)
    Variable parse_variable(Space space, std::string_view& name);
    std::size_t parse_alignment();
    std::size_t parse_number(std::string_view what);
    void parse_initial(Variable& variable, std::size_t element_bytes);
    void parse_pragma();

    // Function bodies (parser_body.cpp)
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

    // Operands (parser_body.cpp)
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

}  // namespace gpu_emulator
