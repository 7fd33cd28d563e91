#include "framework/data/token_stream.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "framework/data/tokenizer.h"
#include "framework/error.h"
#include "framework/rng.h"

namespace evenkeel {
namespace {

constexpr std::uint64_t kHeaderBytes = 1024;

bool is_file(const std::string& path) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(path, ignored);
}

}  // namespace

const char* name_of(TokenFormat format) {
    constexpr const char* kNames[] = {"Megatron", "llm.c", "nanoGPT"};
    return kNames[static_cast<int>(format)];
}

TokenHeader parse_token_header(std::span<const std::byte> first,
                               std::uint64_t file_bytes,
                               const std::string& name) {
    struct Kind {
        std::int32_t magic, version;
        TokenType type;
    };
    constexpr Kind kKinds[] = {{20240520, 1, TokenType::kUint16},
                               {20240801, 7, TokenType::kUint32}};
    const auto check = [&](bool condition, const auto&... what) {
        EVENKEEL_CHECK_CODE(condition, ErrorCode::kIo, "data", name, ": ", what...);
    };
    check(file_bytes > 0, "got an empty file, want tokens");
    const auto word = [&](int index) { return load_unaligned<std::int32_t>(&first[4 * index]); };
    for (const Kind& kind : kKinds) {
        if (first.size() < 4 || word(0) != kind.magic) continue;
        check(first.size() >= kHeaderBytes, "got ", file_bytes, " bytes, want ", kHeaderBytes,
              " of llm.c's header at least");
        check(word(1) == kind.version, "version: got ", word(1), ", want ", kind.version,
              " after the magic number ", kind.magic);
        const std::uint64_t id_bytes = size_of(kind.type), rest = file_bytes - kHeaderBytes;
        check(rest % id_bytes == 0, "got ", rest, " bytes after the header, want a multiple of ",
              id_bytes);
        const auto stated = static_cast<std::uint32_t>(word(2));
        check(stated == static_cast<std::uint32_t>(rest / id_bytes), "got ", rest / id_bytes,
              " tokens, want ", stated, " as the header says");
        return {TokenFormat::kLlmC, kind.type, kHeaderBytes};
    }
    check(file_bytes % 2 == 0, "got ", file_bytes,
          " bytes, want an even number, of u16 ids (there is neither an .idx file beside it nor a "
          "header that is known)");
    return {};
}

std::string token_prefix(const std::string& path) {
    const bool is_suffixed = path.ends_with(".bin") || path.ends_with(".idx");
    const std::string prefix = is_suffixed ? path.substr(0, path.size() - 4) : path;
    std::error_code error;
    if (is_file(prefix + ".idx") || !std::filesystem::is_symlink(prefix + ".bin", error)) {
        return prefix;
    }
    // A link to the ids alone: what belongs to them is where they are.
    const std::string target = std::filesystem::canonical(prefix + ".bin", error).string();
    if (error || !target.ends_with(".bin")) return prefix;
    const std::string stem = target.substr(0, target.size() - 4);
    return is_file(stem + ".idx") || is_file(stem + ".json") ? stem : prefix;
}

bool is_token_file(const std::string& path) {
    if (path.ends_with(".bin") || path.ends_with(".idx")) return true;
    std::error_code ignored;
    return !std::filesystem::exists(path, ignored) && is_file(path + ".idx");
}

TokenStream::TokenStream(const std::string& path,
                         std::int64_t vocab_size,
                         std::int64_t end_of_document)
    : vocab_size_(vocab_size), end_of_document_(end_of_document) {
    const std::string prefix = token_prefix(path);
    bin_ = MappedFile(prefix + ".bin");
    if (path.ends_with(".idx") || is_file(prefix + ".idx")) {
        idx_ = MappedFile(prefix + ".idx");
        idx_.expect_in_order(true);
        index_.emplace(idx_.all(), idx_.path(), bin_.size());
        idx_.release(0, idx_.size());
        idx_.expect_in_order(false);
        type_ = index_->type();
    } else {
        const std::uint64_t first = std::min(bin_.size(), kHeaderBytes);
        const TokenHeader header =
            parse_token_header(bin_.bytes(0, first), bin_.size(), bin_.path());
        // Ids of 16 bits by default only where nothing says that the file is one of another format.
        EVENKEEL_CHECK_CODE(
            header.format != TokenFormat::kNanoGpt || !read_token_description(path).has_value(),
            ErrorCode::kIo, "data", prefix, ".idx: is missing, but ", prefix,
            ".json is the description of a pair of .bin and .idx files; want the .idx file "
            "beside ",
            bin_.path());
        format_ = header.format;
        type_ = header.type;
        header_bytes_ = header.bytes;
    }
    num_tokens_ = static_cast<std::int64_t>((bin_.size() - header_bytes_) / size_of(type_));
    fingerprint_ = make_fingerprint();
}

std::uint64_t TokenStream::make_fingerprint() const {
    constexpr std::uint64_t kPieces = 64, kPieceBytes = 4096;
    std::uint64_t of_pieces = 0;
    const std::uint64_t size = bin_.size();
    for (std::uint64_t i = 0; i < kPieces; ++i) {
        const std::uint64_t begin =
            size > kPieces * kPieceBytes
                ? i * ((size - kPieceBytes) / (kPieces - 1)) / kPieceBytes * kPieceBytes
                : i * kPieceBytes;
        if (begin >= size) break;
        const auto piece = bin_.bytes(begin, std::min(kPieceBytes, size - begin));
        const std::uint64_t hash =
            purpose(std::string_view(reinterpret_cast<const char*>(piece.data()), piece.size()));
        of_pieces = (of_pieces ^ hash) * 0x100000001b3u;
        bin_.release(begin, piece.size());
    }
    return purpose(concat(name_of(format_), " ", name_of(type_), " ", size, " ", of_pieces, " ",
                          index_ ? index_->fingerprint() : 0));
}

void TokenStream::read(std::int64_t first, std::span<std::int32_t> ids) const {
    const auto count = static_cast<std::int64_t>(ids.size());
    EVENKEEL_CHECK(first >= 0 && first <= num_tokens_ && count <= num_tokens_ - first, "data",
                   path(), ": got ", num_tokens_, " tokens, want ", count, " from token ", first);
    const std::uint64_t id_bytes = size_of(type_);
    const std::uint64_t begin = header_bytes_ + static_cast<std::uint64_t>(first) * id_bytes;
    const auto bytes = bin_.bytes(begin, ids.size() * id_bytes);
    for_token_type(type_, [&]<typename T>() {
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const auto id = static_cast<std::int64_t>(load_unaligned<T>(&bytes[i * sizeof(T)]));
            EVENKEEL_CHECK_CODE(id >= 0 && id < vocab_size_, ErrorCode::kIo, "data", path(),
                                ": token ", first + static_cast<std::int64_t>(i), " (byte ",
                                begin + i * sizeof(T), "): got id ", id, ", want 0 to ",
                                vocab_size_ - 1, " (model.vocab_size ", vocab_size_, ")");
            ids[i] = static_cast<std::int32_t>(id);
        }
    });
    bin_.release(begin, bytes.size());
}

void TokenStream::document_starts(std::int64_t first,
                                  std::span<const std::int32_t> ids,
                                  std::vector<std::int64_t>& starts) const {
    const auto count = static_cast<std::int64_t>(ids.size());
    if (index_) {
        std::int64_t before = first;
        for (std::int64_t d = index_->document_after(first); d < index_->num_documents(); ++d) {
            const std::int64_t start = index_->document_start(d);
            if (start > first + count) break;
            if (start > before) starts.push_back(start - first);  // none for an empty document
            before = start;
        }
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) {
        if (ids[static_cast<std::size_t>(i)] == end_of_document_) starts.push_back(i + 1);
    }
}

std::int64_t TokenStream::document_of(std::int64_t token) const {
    if (!index_) return token;
    const std::int64_t after = index_->document_after(token);
    return after == 0 ? 0 : index_->document_start(after - 1);
}

}  // namespace evenkeel
