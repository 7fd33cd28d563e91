// The .idx file of a pair of files PREFIX.bin, PREFIX.idx as Megatron-LM's indexed data sets are kept: the .bin holds
// token ids back to back, the .idx says where its sequences and documents are. Little endian, nothing aligned:
//
//   0   "MMIDIDX", two zero bytes          18  S, u64: sequences
//   9   version, u64: 1                    26  D, u64: document boundaries, one more than documents
//   17  type of the ids, u8: 1 u8, 2 i8,   34  S lengths in tokens, i32
//       3 i16, 4 i32, 5 i64, 8 u16             S places in the .bin in bytes, i64
//                                              D numbers of sequences, i64: the first of each document, and S
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "framework/data/token_type.h"
#include "framework/storage/file.h"

namespace evenkeel {

// A view of the bytes of an .idx file, which must stay where they are. It has no memory of its own.
class MegatronIndex {
  public:
    // Throws kIo naming `name`, and the first place that is wrong, unless the bytes are an index of a .bin of
    // bin_bytes bytes: of version 1 and integer ids; as long as S and D say; the sequences lie in the .bin in order,
    // without gaps, from its first byte to its last; documents ascend from sequence 0 to S. Looks at every byte.
    MegatronIndex(std::span<const std::byte> bytes,
                  const std::string& name,
                  std::uint64_t bin_bytes);

    TokenType type() const { return type_; }
    std::int64_t num_sequences() const { return num_sequences_; }
    std::int64_t num_documents() const { return num_boundaries_ - 1; }
    std::int64_t num_tokens() const { return num_tokens_; }
    // First token of a document, of 0 to num_documents(): the last of these is num_tokens().
    std::int64_t document_start(std::int64_t document) const;
    // The first document that starts after that token; num_documents() if none does.
    std::int64_t document_after(std::int64_t token) const;
    // Of everything it says.
    std::uint64_t fingerprint() const { return fingerprint_; }

  private:
    const std::byte* lengths_ = nullptr;
    const std::byte* pointers_ = nullptr;
    const std::byte* documents_ = nullptr;
    TokenType type_ = TokenType::kInt32;
    std::int64_t num_sequences_ = 0, num_boundaries_ = 0, num_tokens_ = 0;
    std::uint64_t fingerprint_ = 0;
};

// The bytes of an index of documents of these lengths in tokens, each one sequence.
std::string make_megatron_index(TokenType type, std::span<const std::int32_t> lengths);
// The same into a file, piece by piece.
void write_megatron_index(File& file, TokenType type, std::span<const std::int32_t> lengths);

}  // namespace evenkeel
