// Files of tokens, written by hand.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "framework/data/megatron_index.h"
#include "tests/support/temporary_directory.h"

namespace evenkeel::testing {

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Documents of u16 ids as PREFIX.bin and PREFIX.idx; returns PREFIX.
inline std::string write_documents(const TemporaryDirectory& directory,
                                   const std::string& name,
                                   const std::vector<std::vector<std::uint16_t>>& documents) {
    std::string bin;
    std::vector<std::int32_t> lengths;
    for (const auto& document : documents) {
        bin += bytes_of(document);
        lengths.push_back(static_cast<std::int32_t>(document.size()));
    }
    directory.write(name + ".bin", bin);
    directory.write(name + ".idx", make_megatron_index(TokenType::kUint16, lengths));
    return directory.file(name);
}

// llm.c's header, before ids of which it says that there are so many.
inline std::string llm_c_header(std::int32_t magic, std::int32_t version, std::uint32_t tokens) {
    std::vector<std::int32_t> words(256, 0);
    words[0] = magic, words[1] = version;
    std::memcpy(&words[2], &tokens, 4);
    return bytes_of(words);
}

}  // namespace evenkeel::testing
