// Which keys a query sees, which queries see a key, and which blocks of keys (or queries) a tile of
// queries (or keys) has to visit. Device code only.
#pragma once

#include "attention/cuda/flash_attention.h"

namespace evenkeel::cuda {

// begin <= i < end; empty when begin >= end.
struct Interval {
    int begin, end;
};

// Keys that query t sees, 0 <= t < T. Neither end decreases with t.
__device__ __forceinline__ Interval visible_keys(const FlashMask& mask, int t) {
    const int position = t + mask.keys - mask.queries;
    Interval seen{0, mask.keys};
    if (mask.causal) seen.end = min(seen.end, position + 1);
    if (mask.window > 0) {
        seen.begin = max(seen.begin, position - mask.window + 1);
        seen.end = min(seen.end, position + mask.window);
    }
    if (mask.document_begin) {
        seen.begin = max(seen.begin, mask.document_begin[t]);
        seen.end = min(seen.end, mask.document_end[t]);
    }
    return {min(seen.begin, mask.keys), max(seen.end, 0)};
}

// Queries that see key j, 0 <= j < S. Neither end decreases with j.
__device__ __forceinline__ Interval seeing_queries(const FlashMask& mask, int j) {
    const int token = j - mask.keys + mask.queries;  // the query that stands at this key
    Interval seeing{0, mask.queries};
    if (mask.causal) seeing.begin = max(seeing.begin, token);
    if (mask.window > 0) {
        seeing.begin = max(seeing.begin, token - mask.window + 1);
        seeing.end = min(seeing.end, token + mask.window);
    }
    if (mask.document_begin) {
        seeing.begin = max(seeing.begin, mask.document_begin[j]);
        seeing.end = min(seeing.end, mask.document_end[j]);
    }
    return {min(seeing.begin, mask.queries), max(seeing.end, 0)};
}

// Blocks begin <= n < end have to be visited; of these, blocks whole_begin <= n < whole_end need no
// mask: every cell of them is visible and in range.
struct BlockRange {
    int begin, end, whole_begin, whole_end;
};

// From the intervals of the first and the last row of a tile, for blocks of `size`. A tile with
// rows beyond the last one takes the last one's interval: those rows are not stored, and it does
// not matter what they hold.
__device__ __forceinline__ BlockRange block_range(Interval first, Interval last, int size) {
    BlockRange range;
    range.begin = first.begin / size;
    range.end = last.end > first.begin ? (last.end + size - 1) / size : range.begin;
    range.whole_begin = min(max((last.begin + size - 1) / size, range.begin), range.end);
    range.whole_end = min(max(first.end / size, range.whole_begin), range.end);
    return range;
}

}  // namespace evenkeel::cuda
