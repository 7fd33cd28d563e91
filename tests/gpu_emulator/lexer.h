// The words of PTX.
#pragma once

#include <string>
#include <string_view>

namespace gpu_emulator {

// Throws std::runtime_error "ptx line N: what".
[[noreturn]] void fail_at(int line, const std::string& what);

struct Token {
    // kWord: a name, directive or whole opcode: "%tid.x", ".reg", "ld.global.L1::no_allocate.f32".
    enum class Kind { kEnd, kWord, kNumber, kString, kPunctuation };
    Kind kind = Kind::kEnd;
    std::string_view text;  // of a string: what is between the quotes
    int line = 0;

    bool is(std::string_view other) const { return text == other && kind != Kind::kString; }
};

// Leaves out comments. The text must outlive the tokens.
class Lexer {
  public:
    explicit Lexer(std::string_view text);

    const Token& peek() const { return next_; }
    const Token& peek_second();
    Token take();
    Token take_word(std::string_view what);
    bool take_if(std::string_view text);
    void expect(std::string_view text);

  private:
    Token read();
    void skip_blanks();

    std::string_view text_;
    std::size_t at_ = 0;
    int line_ = 1;
    Token next_, second_;
    bool has_second_ = false;
};

}  // namespace gpu_emulator
