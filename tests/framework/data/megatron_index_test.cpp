#include "framework/data/megatron_index.h"

#include <gtest/gtest.h>

#include <functional>

#include "framework/error.h"
#include "tests/support/token_files.h"

namespace evenkeel {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
    return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

template <typename T>
void put(std::string& text, std::size_t at, T value) {
    std::memcpy(text.data() + at, &value, sizeof value);
}

// Three sequences of 5, 0 and 2 u16 ids; documents: the first two, none, the third.
std::string small_index() {
    std::string text = make_megatron_index(TokenType::kUint16, std::vector<std::int32_t>{5, 0, 2});
    put<std::int64_t>(text, 34 + 12 * 3 + 8, 2);
    put<std::int64_t>(text, 34 + 12 * 3 + 16, 2);
    return text;
}

TEST(MegatronIndexTest, TheLayoutIsTheOneThatOthersWrite) {
    // By hand: one sequence of 3 i32 ids, one document.
    const std::string want = std::string("MMIDIDX\0\0", 9) + std::string("\1\0\0\0\0\0\0\0", 8) +
                             "\4" + std::string("\1\0\0\0\0\0\0\0", 8) +
                             std::string("\2\0\0\0\0\0\0\0", 8) + std::string("\3\0\0\0", 4) +
                             std::string(8, '\0') + std::string(8, '\0') +
                             std::string("\1\0\0\0\0\0\0\0", 8);
    EXPECT_EQ(make_megatron_index(TokenType::kInt32, std::vector<std::int32_t>{3}), want);
    const MegatronIndex index(bytes_of(want), "x.idx", 12);
    EXPECT_EQ(index.type(), TokenType::kInt32);
    EXPECT_EQ(index.num_tokens(), 3);
    EXPECT_EQ(index.num_documents(), 1);
}

TEST(MegatronIndexTest, DocumentsOfSeveralSequencesAndOfNone) {
    const std::string text = small_index();
    const MegatronIndex index(bytes_of(text), "x.idx", 14);
    EXPECT_EQ(index.num_sequences(), 3);
    EXPECT_EQ(index.num_documents(), 3);
    EXPECT_EQ(index.num_tokens(), 7);
    EXPECT_EQ(index.document_start(0), 0);
    EXPECT_EQ(index.document_start(1), 5);
    EXPECT_EQ(index.document_start(2), 5);
    EXPECT_EQ(index.document_start(3), 7);
    EXPECT_EQ(index.document_after(-1), 0);
    EXPECT_EQ(index.document_after(0), 1);
    EXPECT_EQ(index.document_after(4), 1);
    EXPECT_EQ(index.document_after(5), 3);
    EXPECT_THROW(index.document_start(4), Error);
    EXPECT_THROW(index.document_start(-1), Error);
}

TEST(MegatronIndexTest, AnyAlignmentWillDo) {
    const std::string text = small_index();
    for (std::size_t shift = 0; shift < 8; ++shift) {
        const std::string moved = std::string(shift, 'x') + text;
        const MegatronIndex index(bytes_of(moved).subspan(shift), "x.idx", 14);
        EXPECT_EQ(index.document_start(3), 7);
    }
}

TEST(MegatronIndexTest, NoSequencesAreNoTokens) {
    const std::string text = make_megatron_index(TokenType::kUint8, {});
    const MegatronIndex index(bytes_of(text), "x.idx", 0);
    EXPECT_EQ(index.num_tokens(), 0);
    EXPECT_EQ(index.num_documents(), 0);
    EXPECT_EQ(index.document_start(0), 0);
}

TEST(MegatronIndexTest, HostileIndexesAreRefusedByPlace) {
    constexpr std::size_t kLengths = 34, kPointers = 34 + 12, kDocuments = 34 + 36;
    struct Case {
        const char* name;
        std::function<void(std::string&)> damage;
        const char* want;
        std::uint64_t bin_bytes = 14;
    };
    const Case cases[] = {
        {"empty", [](std::string& t) { t.clear(); }, "got 0 bytes, want 34"},
        {"half a header", [](std::string& t) { t.resize(33); }, "got 33 bytes, want 34"},
        {"other magic", [](std::string& t) { t[3] = 'X'; }, "MMIDIDX"},
        {"version 2", [](std::string& t) { put<std::uint64_t>(t, 9, 2); },
         "version: got 2, want 1"},
        {"float ids", [](std::string& t) { t[17] = 7; }, "got code 7"},
        {"double ids", [](std::string& t) { t[17] = 6; }, "got code 6"},
        {"no type", [](std::string& t) { t[17] = 0; }, "got code 0"},
        {"type 255", [](std::string& t) { t[17] = '\xff'; }, "got code 255"},
        {"wider ids", [](std::string& t) { t[17] = 4; },
         "place of sequence 1: got byte 10, want 20", 40},
        {"many sequences", [](std::string& t) { put<std::uint64_t>(t, 18, 1ull << 62); },
         "sequences at byte 18: got 4611686018427387904, too many"},
        {"sequences past 64 bits", [](std::string& t) { put<std::uint64_t>(t, 18, ~0ull); },
         "sequences at byte 18"},
        {"many documents", [](std::string& t) { put<std::uint64_t>(t, 26, ~0ull / 8 + 2); },
         "document boundaries at byte 26"},
        {"one sequence more", [](std::string& t) { put<std::uint64_t>(t, 18, 4); },
         "got 102 bytes, want 114"},
        {"one document less", [](std::string& t) { put<std::uint64_t>(t, 26, 3); },
         "got 102 bytes, want 94"},
        {"cut off", [](std::string& t) { t.pop_back(); }, "got 101 bytes, want 102"},
        {"one byte more", [](std::string& t) { t += 'x'; }, "got 103 bytes, want 102"},
        {"modes", [](std::string& t) { t += "\1\1\1"; }, "modes of sequences"},
        {"negative length", [](std::string& t) { put<std::int32_t>(t, kLengths, -1); },
         "length of sequence 0: got -1"},
        {"long length", [](std::string& t) { put<std::int32_t>(t, kLengths + 8, INT32_MAX); },
         "sequence 2: ends at byte 4294967304 of the .bin file, which has 14"},
        {"other start", [](std::string& t) { put<std::int64_t>(t, kPointers, 2); },
         "place of sequence 0: got byte 2, want 0"},
        {"negative place", [](std::string& t) { put<std::int64_t>(t, kPointers + 16, -10); },
         "place of sequence 2: got byte -10, want 10"},
        {"overlap", [](std::string& t) { put<std::int64_t>(t, kPointers + 16, 8); },
         "place of sequence 2: got byte 8, want 10"},
        {"place past 32 bits",
         [](std::string& t) { put<std::int64_t>(t, kPointers + 16, 10 + (1ll << 32)); },
         "place of sequence 2: got byte 4294967306"},
        {"shorter bin", [](std::string&) {},
         "sequence 2: ends at byte 14 of the .bin file, which has 12", 12},
        {"longer bin", [](std::string&) {},
         "sequences end at byte 14 of the .bin file, which has 16", 16},
        {"first document", [](std::string& t) { put<std::int64_t>(t, kDocuments, 1); },
         "document boundary 0: got sequence 1, want 0"},
        {"documents go back", [](std::string& t) { put<std::int64_t>(t, kDocuments + 16, 1); },
         "document boundary 2: got sequence 1, want 2 to 3"},
        {"document outside", [](std::string& t) { put<std::int64_t>(t, kDocuments + 16, 4); },
         "document boundary 2: got sequence 4, want 2 to 3"},
        {"negative document", [](std::string& t) { put<std::int64_t>(t, kDocuments + 8, -1); },
         "document boundary 1: got sequence -1"},
        {"last document", [](std::string& t) { put<std::int64_t>(t, kDocuments + 24, 2); },
         "last document boundary: got sequence 2, want 3"},
        {"no boundaries",
         [](std::string& t) {
             t = make_megatron_index(TokenType::kUint16, {}), put<std::uint64_t>(t, 26, 0),
             t.resize(34);
         },
         "document boundaries: got none", 0},
    };
    for (const Case& c : cases) {
        std::string text = small_index();
        c.damage(text);
        try {
            const MegatronIndex index(bytes_of(text), "x.idx", c.bin_bytes);
            ADD_FAILURE() << c.name << ": taken";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::kIo) << c.name;
            const std::string what = error.what();
            EXPECT_NE(what.find("x.idx"), std::string::npos) << c.name << ": " << what;
            EXPECT_NE(what.find(c.want), std::string::npos) << c.name << ": " << what;
        }
    }
}

TEST(MegatronIndexTest, AnyByteMayBeWrong) {
    const std::string good = small_index();
    for (std::size_t at = 0; at < good.size(); ++at) {
        for (const unsigned char bits : {0x01, 0x80, 0xff}) {
            std::string text = good;
            text[at] = static_cast<char>(text[at] ^ bits);
            try {
                const MegatronIndex index(bytes_of(text), "x.idx", 14);
                // A boundary may have come to be another one; what it says can be looked up.
                EXPECT_LE(index.document_start(index.num_documents()), 7);
                EXPECT_GE(at, 34u + 36u) << "byte " << at;
            } catch (const Error& error) {
                EXPECT_EQ(error.code(), ErrorCode::kIo) << at;
            }
        }
    }
}

TEST(MegatronIndexTest, TheFingerprintFollowsLengthsAndDocuments) {
    const auto fingerprint = [](const std::string& text, std::uint64_t bin_bytes) {
        return MegatronIndex(bytes_of(text), "x.idx", bin_bytes).fingerprint();
    };
    const std::string text = small_index();
    std::string other = text;
    put<std::int64_t>(other, 34 + 36 + 8, 1);
    EXPECT_EQ(fingerprint(text, 14), fingerprint(std::string(text), 14));
    EXPECT_NE(fingerprint(text, 14), fingerprint(other, 14));
    const auto lengths = [](std::vector<std::int32_t> values) {
        return make_megatron_index(TokenType::kUint16, values);
    };
    EXPECT_NE(fingerprint(lengths({3, 4}), 14), fingerprint(lengths({4, 3}), 14));
}

TEST(MegatronIndexTest, AnIndexIsMadeOnlyOfTypesThatTheFormatHas) {
    EXPECT_THROW(make_megatron_index(TokenType::kUint32, {}), Error);
}

}  // namespace
}  // namespace evenkeel
