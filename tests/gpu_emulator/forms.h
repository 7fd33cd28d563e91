// The instructions the emulator knows, each with its whole opcode text. What is not listed is
// refused by link().
//
// To add one: a line in the forms_*.cpp where its kind lives. An arithmetic form is a function of
// values:
//     t.add<std::int32_t(std::int32_t, std::int32_t)>(
//         "min.s32", [](auto a, auto b) { return a < b ? a : b; });
// from whose types the operand check follows; others are handlers with a written signature (see
// Form).
#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/gpu_emulator/thread.h"

namespace gpu_emulator {

constexpr std::uint8_t kCountsShared = 1, kCountsGlobal = 2;

struct Form {
    // The operands, separated by spaces, destinations before '='. A letter is the size of a
    // register or immediate: p predicate, h 16, w 32, l 64 bits; capitals also take wider registers
    // (B from 8 bits); a number before it is a vector's length; a an address; L a label, T a table
    // of labels; w|p a register with an optional predicate beside it.
    std::string signature;
    Handler handler = nullptr;
    std::uint32_t mode = 0;    // for handlers that serve several forms
    std::uint8_t counted = 0;  // kCountsShared, kCountsGlobal: accesses counted warp by warp
};

template <class T>
constexpr char size_letter() {
    if (std::is_same_v<T, bool>) return 'p';
    return sizeof(T) == 1 ? 'B' : sizeof(T) == 2 ? 'h' : sizeof(T) == 4 ? 'w' : 'l';
}

template <class F, class D, class... A>
struct Apply {
    template <std::size_t... I>
    static void call(std::uint64_t* r, const Op& op, std::index_sequence<I...>) {
        put<D>(r, op.slots[0], static_cast<D>(F{}(get<A>(r, op.slots[I + 1])...)));
    }
    static Step step(Block&, std::uint64_t* r, const Op& op) {
        call(r, op, std::index_sequence_for<A...>());
        return Step::kNext;
    }
};

class FormTable {
  public:
    void add(const std::string& text, Form form) { forms_[text].push_back(std::move(form)); }

    // A form whose result is function(operands). wide: registers wider than the types will do
    // (cvt).
    template <class Signature, class F>
    void add(const std::string& text, F function, bool wide = false) {
        add_function(text, function, static_cast<Signature*>(nullptr), wide);
    }

    // The forms of this text that differ in their operands only; nullptr if there is none.
    const std::vector<Form>* find(const std::string& text) const {
        auto found = forms_.find(text);
        return found == forms_.end() ? nullptr : &found->second;
    }
    const std::unordered_map<std::string, std::vector<Form>>& all() const { return forms_; }

  private:
    template <class F, class D, class... A>
    void add_function(const std::string& text, F, D (*)(A...), bool wide) {
        std::string letters;
        for (char c : {size_letter<A>()...}) letters += std::string(" ") + widen(c, wide);
        add(text, Form{std::string(1, widen(size_letter<D>(), wide)) + " =" + letters,
                       &Apply<F, D, A...>::step, 0, 0});
    }
    static char widen(char c, bool wide) {
        return wide && (c == 'h' || c == 'w') ? static_cast<char>(c - 'a' + 'A') : c;
    }

    std::unordered_map<std::string, std::vector<Form>> forms_;
};

const FormTable& form_table();

// One function for each forms_*.cpp.
void add_integer_forms(FormTable& table);
void add_float_forms(FormTable& table);
void add_comparison_forms(FormTable& table);
void add_half_forms(FormTable& table);
void add_conversion_forms(FormTable& table);
void add_memory_forms(FormTable& table);
void add_warp_forms(FormTable& table);
void add_control_forms(FormTable& table);

}  // namespace gpu_emulator
