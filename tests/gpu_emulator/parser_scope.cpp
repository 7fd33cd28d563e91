#include "tests/gpu_emulator/parser_scope.h"

#include <charconv>

#include "tests/gpu_emulator/lexer.h"

namespace gpu_emulator {

std::uint64_t parse_immediate(std::string_view text, bool negative, int line) {
    std::string_view digits = text;
    int base = 10;
    const bool is_float =
        digits.size() > 1 && digits[0] == '0' &&
        (digits[1] == 'f' || digits[1] == 'F' || digits[1] == 'd' || digits[1] == 'D');
    if (is_float) {
        const std::size_t expected = digits[1] == 'f' || digits[1] == 'F' ? 8 : 16;
        digits.remove_prefix(2);
        base = 16;
        if (negative || digits.size() != expected) {
            fail_at(line, "cannot read the number '" + std::string(text) + "'");
        }
    } else {
        if (!digits.empty() && digits.back() == 'U') digits.remove_suffix(1);
        const std::string_view prefix = digits.substr(0, 2);
        if (prefix == "0x" || prefix == "0X") {
            base = 16;
            digits.remove_prefix(2);
        } else if (prefix == "0b" || prefix == "0B") {
            base = 2;
            digits.remove_prefix(2);
        } else if (digits.size() > 1 && digits[0] == '0') {
            base = 8;
        }
    }
    std::uint64_t value = 0;
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value, base);
    if (error != std::errc() || stop != end) {
        fail_at(line, "cannot read the number '" + std::string(text) + "'");
    }
    return negative ? 0 - value : value;
}

std::size_t bytes_of_type(std::string_view type) {
    static const std::unordered_map<std::string_view, std::size_t> kBytes = {
        {".pred", 1}, {".b8", 1},  {".u8", 1},  {".s8", 1},    {".b16", 2},
        {".u16", 2},  {".s16", 2}, {".f16", 2}, {".bf16", 2},  {".b32", 4},
        {".u32", 4},  {".s32", 4}, {".f32", 4}, {".f16x2", 4}, {".b64", 8},
        {".u64", 8},  {".s64", 8}, {".f64", 8}, {".b128", 16}};
    const auto found = kBytes.find(type);
    return found == kBytes.end() ? 0 : found->second;
}

int special_register(std::string_view name) {
    using Special = SpecialRegister;
    static const std::unordered_map<std::string_view, Special> kSpecial = {
        {"%tid.x", Special::kTidX},
        {"%tid.y", Special::kTidY},
        {"%tid.z", Special::kTidZ},
        {"%ntid.x", Special::kNtidX},
        {"%ntid.y", Special::kNtidY},
        {"%ntid.z", Special::kNtidZ},
        {"%ctaid.x", Special::kCtaidX},
        {"%ctaid.y", Special::kCtaidY},
        {"%ctaid.z", Special::kCtaidZ},
        {"%nctaid.x", Special::kNctaidX},
        {"%nctaid.y", Special::kNctaidY},
        {"%nctaid.z", Special::kNctaidZ},
        {"%laneid", Special::kLaneId},
        {"%warpid", Special::kWarpId},
        {"%nwarpid", Special::kNwarpId},
        {"%clock", Special::kClock},
        {"%clock64", Special::kClock64},
        {"%smid", Special::kSmId},
        {"%dynamic_smem_size", Special::kDynamicSmemSize},
        {"%total_smem_size", Special::kTotalSmemSize},
        {"%lanemask_eq", Special::kLanemaskEq},
        {"%lanemask_lt", Special::kLanemaskLt},
        {"%lanemask_le", Special::kLanemaskLe},
        {"%lanemask_gt", Special::kLanemaskGt},
        {"%lanemask_ge", Special::kLanemaskGe}};
    const auto found = kSpecial.find(name);
    return found == kSpecial.end() ? -1 : static_cast<int>(found->second);
}

}  // namespace gpu_emulator
