#include "framework/data/megatron_index.h"

#include <limits>

#include "framework/error.h"

namespace evenkeel {
namespace {

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr std::uint64_t kHeaderBytes = 34;

struct TypeCode {
    std::uint8_t code;
    TokenType type;
};
constexpr TypeCode kTypeCodes[] = {{1, TokenType::kUint8}, {2, TokenType::kInt8},
                                   {3, TokenType::kInt16}, {4, TokenType::kInt32},
                                   {5, TokenType::kInt64}, {8, TokenType::kUint16}};

std::uint64_t mix(std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ (hash >> 29);
}

}  // namespace

MegatronIndex::MegatronIndex(std::span<const std::byte> bytes,
                             const std::string& name,
                             std::uint64_t bin_bytes) {
    const auto check = [&](bool condition, const auto&... what) {
        EVENKEEL_CHECK_CODE(condition, ErrorCode::kIo, "data", name, ": ", what...);
    };
    check(bytes.size() >= kHeaderBytes, "got ", bytes.size(), " bytes, want ", kHeaderBytes,
          " of a header at least");
    check(std::memcmp(bytes.data(), kMagic, sizeof kMagic) == 0,
          "got other bytes than MMIDIDX at the start; this is no index of a Megatron data set");
    const auto version = load_unaligned<std::uint64_t>(bytes.data() + 9);
    check(version == 1, "version: got ", version, ", want 1");
    const auto code = static_cast<std::uint8_t>(bytes[17]);
    bool known = false;
    for (const TypeCode& entry : kTypeCodes) {
        if (entry.code == code) known = true, type_ = entry.type;
    }
    check(known, "type of ids at byte 17: got code ", int{code},
          ", want 1, 2, 3, 4, 5 or 8 (u8, i8, i16, i32, i64, u16)");
    const auto sequences = load_unaligned<std::uint64_t>(bytes.data() + 18);
    const auto boundaries = load_unaligned<std::uint64_t>(bytes.data() + 26);
    // So that no product below can pass 2^64.
    const std::uint64_t room = bytes.size() - kHeaderBytes;
    check(sequences <= room / 12, "sequences at byte 18: got ", sequences, ", too many for ",
          bytes.size(), " bytes");
    check(boundaries <= room / 8, "document boundaries at byte 26: got ", boundaries,
          ", too many for ", bytes.size(), " bytes");
    const std::uint64_t want = kHeaderBytes + 12 * sequences + 8 * boundaries;
    check(bytes.size() != want + sequences || sequences == 0, "got ", bytes.size(),
          " bytes, as with modes of sequences (of images and text); want ", want, ", without");
    check(bytes.size() == want, "got ", bytes.size(), " bytes, want ", want, " for ", sequences,
          " sequences and ", boundaries, " document boundaries");
    num_sequences_ = static_cast<std::int64_t>(sequences);
    num_boundaries_ = static_cast<std::int64_t>(boundaries);
    lengths_ = bytes.data() + kHeaderBytes;
    pointers_ = lengths_ + 4 * num_sequences_;
    documents_ = pointers_ + 8 * num_sequences_;

    const std::uint64_t id_bytes = size_of(type_);
    std::uint64_t end = 0, hash = mix(code, sequences);
    for (std::int64_t s = 0; s < num_sequences_; ++s) {
        const auto length = load_unaligned<std::int32_t>(lengths_ + 4 * s);
        const auto pointer = load_unaligned<std::int64_t>(pointers_ + 8 * s);
        check(length >= 0, "length of sequence ", s, ": got ", length, ", want 0 or more");
        check(pointer >= 0 && static_cast<std::uint64_t>(pointer) == end, "place of sequence ", s,
              ": got byte ", pointer, ", want ", end, ", where the one before it ends");
        end += static_cast<std::uint64_t>(length) * id_bytes;
        check(end <= bin_bytes, "sequence ", s, ": ends at byte ", end,
              " of the .bin file, which has ", bin_bytes);
        hash = mix(hash, static_cast<std::uint64_t>(length));
    }
    check(end == bin_bytes, "sequences end at byte ", end, " of the .bin file, which has ",
          bin_bytes, ": the two do not belong together");
    num_tokens_ = static_cast<std::int64_t>(end / id_bytes);

    check(boundaries >= 1, "document boundaries: got none, want 1 or more");
    std::int64_t before = 0;
    for (std::int64_t d = 0; d < num_boundaries_; ++d) {
        const auto at = load_unaligned<std::int64_t>(documents_ + 8 * d);
        check(d > 0 || at == 0, "document boundary 0: got sequence ", at, ", want 0");
        check(at >= before && at <= num_sequences_, "document boundary ", d, ": got sequence ", at,
              ", want ", before, " to ", num_sequences_);
        before = at;
        hash = mix(hash, static_cast<std::uint64_t>(at));
    }
    check(before == num_sequences_, "last document boundary: got sequence ", before, ", want ",
          num_sequences_);
    fingerprint_ = hash;
}

std::int64_t MegatronIndex::document_start(std::int64_t document) const {
    EVENKEEL_CHECK(document >= 0 && document < num_boundaries_, "data", "document: got ", document,
                   ", want 0 to ", num_boundaries_ - 1);
    const auto sequence = load_unaligned<std::int64_t>(documents_ + 8 * document);
    if (sequence == num_sequences_) return num_tokens_;
    return load_unaligned<std::int64_t>(pointers_ + 8 * sequence) /
           static_cast<std::int64_t>(size_of(type_));
}

std::int64_t MegatronIndex::document_after(std::int64_t token) const {
    std::int64_t low = 0, high = num_documents();
    while (low < high) {
        const std::int64_t middle = low + (high - low) / 2;
        if (document_start(middle) > token) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

namespace {

// Calls write(bytes) with one piece after the other.
template <typename Write>
void make_index(TokenType type, std::span<const std::int32_t> lengths, Write&& write) {
    constexpr std::size_t kPiece = 1 << 20;
    std::string piece(kMagic, sizeof kMagic);
    const auto put = [&](auto value) {
        piece.append(reinterpret_cast<const char*>(&value), sizeof value);
        if (piece.size() < kPiece) return;
        write(piece);
        piece.clear();
    };
    std::uint8_t code = 0;
    for (const TypeCode& entry : kTypeCodes) {
        if (entry.type == type) code = entry.code;
    }
    EVENKEEL_CHECK(code != 0, "data", "type of ids: got ", name_of(type),
                   ", which this format has not");
    put(std::uint64_t{1});
    put(code);
    put(std::uint64_t{lengths.size()});
    put(std::uint64_t{lengths.size() + 1});
    for (const std::int32_t length : lengths) put(length);
    std::int64_t at = 0;
    for (const std::int32_t length : lengths) {
        put(at);
        at += length * static_cast<std::int64_t>(size_of(type));
    }
    for (std::size_t d = 0; d <= lengths.size(); ++d) put(static_cast<std::int64_t>(d));
    write(piece);
}

}  // namespace

std::string make_megatron_index(TokenType type, std::span<const std::int32_t> lengths) {
    std::string out;
    make_index(type, lengths, [&](const std::string& piece) { out += piece; });
    return out;
}

void write_megatron_index(File& file, TokenType type, std::span<const std::int32_t> lengths) {
    make_index(type, lengths,
               [&](const std::string& piece) { file.write(piece.data(), piece.size()); });
}

}  // namespace evenkeel
