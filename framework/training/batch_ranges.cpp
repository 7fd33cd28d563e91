#include "framework/training/batch_ranges.h"

#include <charconv>

#include "framework/error.h"

namespace evenkeel {
namespace {

constexpr std::int64_t kMost = std::int64_t{1}
                               << 32;  // times batch_size (at most 2^30) is below 2^63

[[noreturn]] void refuse(const std::string& text, const std::string& part) {
    throw_error(
        ErrorCode::kConfig, "TrainerConfig",
        concat("trainer.skip_batches: got ", part.empty() ? "an empty part" : part, " in \"", text,
               "\", want batches FROM-TO or a single one, counted from 1, up to 2^32"));
}

bool parse(const char* begin, const char* end, std::int64_t& value) {
    const auto [stop, error] = std::from_chars(begin, end, value);
    return error == std::errc() && stop == end && value >= 1 && value <= kMost;
}

}  // namespace

std::vector<BatchRange> parse_batch_ranges(const std::string& text) {
    std::vector<BatchRange> ranges;
    if (text.empty()) return ranges;
    for (std::size_t begin = 0; begin <= text.size();) {
        const std::size_t comma = std::min(text.find(',', begin), text.size());
        const std::string part = text.substr(begin, comma - begin);
        const char *first = part.data(), *end = first + part.size();
        const std::size_t dash = part.find('-');
        BatchRange range;
        if (dash == std::string::npos) {
            if (!parse(first, end, range.first)) refuse(text, part);
            range.last = range.first;
        } else if (!parse(first, first + dash, range.first) ||
                   !parse(first + dash + 1, end, range.last) || range.last < range.first) {
            refuse(text, part);
        }
        ranges.push_back(range);
        begin = comma + 1;
    }
    return ranges;
}

std::int64_t first_sample_outside(const std::vector<BatchRange>& ranges,
                                  std::int64_t sample,
                                  std::int64_t batch_size) {
    for (bool moved = true; moved;) {
        moved = false;
        for (const BatchRange& range : ranges) {
            const std::int64_t begin = (range.first - 1) * batch_size;
            const std::int64_t end = range.last * batch_size;
            if (sample + batch_size <= begin || sample >= end) continue;
            sample = end;
            moved = true;
        }
    }
    return sample;
}

}  // namespace evenkeel
