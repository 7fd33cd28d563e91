#include "tests/gpu_emulator/lexer.h"

#include <stdexcept>

namespace gpu_emulator {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_word_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' ||
           c == '$' || c == '%' || c == '.';
}

}  // namespace

void fail_at(int line, const std::string& what) {
    throw std::runtime_error("ptx line " + std::to_string(line) + ": " + what);
}

Lexer::Lexer(std::string_view text) : text_(text) { next_ = read(); }

void Lexer::skip_blanks() {
    while (at_ < text_.size()) {
        const char c = text_[at_];
        if (c == '\n') {
            ++line_;
            ++at_;
        } else if (c == ' ' || c == '\t' || c == '\r') {
            ++at_;
        } else if (text_.substr(at_, 2) == "//") {
            at_ = std::min(text_.find('\n', at_), text_.size());
        } else if (text_.substr(at_, 2) == "/*") {
            const std::size_t end = text_.find("*/", at_ + 2);
            if (end == std::string_view::npos) fail_at(line_, "a comment without end");
            for (; at_ < end + 2; ++at_) line_ += text_[at_] == '\n';
        } else {
            break;
        }
    }
}

Token Lexer::read() {
    skip_blanks();
    Token token;
    token.line = line_;
    if (at_ == text_.size()) return token;
    const std::size_t start = at_;
    const char first = text_[at_];
    if (first == '"') {
        const std::size_t end = text_.find_first_of("\"\n", at_ + 1);
        if (end == std::string_view::npos || text_[end] == '\n') {
            fail_at(line_, "a string without end");
        }
        token.kind = Token::Kind::kString;
        token.text = text_.substr(start + 1, end - start - 1);
        at_ = end + 1;
        return token;
    }
    if (is_word_character(first)) {
        token.kind = is_digit(first) ? Token::Kind::kNumber : Token::Kind::kWord;
        while (at_ < text_.size()) {
            if (is_word_character(text_[at_])) {
                ++at_;
            } else if (text_.substr(at_, 2) == "::") {
                at_ += 2;
            } else {
                break;
            }
        }
    } else {
        token.kind = Token::Kind::kPunctuation;
        ++at_;
    }
    token.text = text_.substr(start, at_ - start);
    return token;
}

const Token& Lexer::peek_second() {
    if (!has_second_) {
        second_ = read();
        has_second_ = true;
    }
    return second_;
}

Token Lexer::take() {
    const Token token = next_;
    if (has_second_) {
        next_ = second_;
        has_second_ = false;
    } else {
        next_ = read();
    }
    return token;
}

Token Lexer::take_word(std::string_view what) {
    if (next_.kind != Token::Kind::kWord) {
        fail_at(next_.line, "got '" + std::string(next_.text) + "', want " + std::string(what));
    }
    return take();
}

bool Lexer::take_if(std::string_view text) {
    if (!next_.is(text)) return false;
    take();
    return true;
}

void Lexer::expect(std::string_view text) {
    if (!take_if(text)) {
        fail_at(next_.line,
                "got '" + std::string(next_.text) + "', want '" + std::string(text) + "'");
    }
}

}  // namespace gpu_emulator
