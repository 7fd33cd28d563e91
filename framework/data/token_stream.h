// Token ids in a memory-mapped file, one after the other, and where documents begin among them. Which format a file
// has is seen from its name and its first bytes:
//   Megatron  PREFIX.bin with PREFIX.idx beside it (megatron_index.h)
//   llm.c     256 i32, the first three 20240520, 1 and the number of tokens, then u16 ids; or 20240801, 7 and u32 ids
//             (the number of tokens is taken as unsigned, and modulo 2^32 where the file holds more)
//   nanoGPT   u16 ids and nothing else; refused where PREFIX.json is beside it, the description of a Megatron pair
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "framework/data/megatron_index.h"
#include "framework/storage/mapped_file.h"

namespace evenkeel {

enum class TokenFormat { kMegatron, kLlmC, kNanoGpt };
const char* name_of(TokenFormat format);

// What stands before the ids of a .bin file without an .idx.
struct TokenHeader {
    TokenFormat format = TokenFormat::kNanoGpt;
    TokenType type = TokenType::kUint16;
    std::uint64_t bytes = 0;
};
// first: the file's first 1024 bytes, or all of a shorter one. Throws kIo naming `name` for a header that does not fit
// file_bytes, or a length that is no whole number of ids.
TokenHeader parse_token_header(std::span<const std::byte> first,
                               std::uint64_t file_bytes,
                               const std::string& name);

// Whether the path names tokens rather than text: it ends in .bin or .idx, or is the PREFIX of such a pair.
bool is_token_file(const std::string& path);
// PREFIX of PREFIX, PREFIX.bin and PREFIX.idx; that of the file that PREFIX.bin links to, where the .idx or the
// description is there and not beside the link.
std::string token_prefix(const std::string& path);

class TokenStream {
  public:
    // path: of the .bin or the .idx file, or the PREFIX. Reading throws kIo, naming file and place, for an id outside
    // [0, vocab_size). end_of_document: the token after which another document begins where no index says so; -1: none.
    TokenStream(const std::string& path, std::int64_t vocab_size, std::int64_t end_of_document);

    const std::string& path() const { return bin_.path(); }
    TokenFormat format() const { return format_; }
    TokenType type() const { return type_; }
    std::int64_t num_tokens() const { return num_tokens_; }
    const MegatronIndex* index() const { return index_ ? &*index_ : nullptr; }

    // The ids from token `first` on.
    void read(std::int64_t first, std::span<std::int32_t> ids) const;
    // Appends to `starts`, ascending, those of (first, first + ids.size()] where a document begins, relative to first;
    // ids: as read from there.
    void document_starts(std::int64_t first,
                         std::span<const std::int32_t> ids,
                         std::vector<std::int64_t>& starts) const;
    // Where the document that holds this token begins, as far as an index says so; else `token`.
    std::int64_t document_of(std::int64_t token) const;
    // Of the format, the index, the length and 64 pieces of the ids, spread evenly: a file of any size is told from
    // others without reading all of it.
    std::uint64_t fingerprint() const { return fingerprint_; }

  private:
    std::uint64_t make_fingerprint() const;

    MappedFile bin_, idx_;
    std::optional<MegatronIndex> index_;
    TokenFormat format_ = TokenFormat::kMegatron;
    TokenType type_ = TokenType::kUint16;
    std::uint64_t header_bytes_ = 0;
    std::int64_t num_tokens_ = 0;
    std::int64_t vocab_size_;
    std::int64_t end_of_document_;
    std::uint64_t fingerprint_ = 0;
};

}  // namespace evenkeel
