// For builds without SentencePiece.
#include "framework/data/tokenizer.h"
#include "framework/error.h"

namespace evenkeel {

bool has_sentencepiece() { return false; }

std::unique_ptr<Tokenizer> make_sentencepiece_tokenizer(const std::string& path) {
    throw_error(ErrorCode::kNotBuilt, "tokenizer",
                path +
                    ": this build has no SentencePiece; install libsentencepiece-dev and build "
                    "again (-DEVENKEEL_SENTENCEPIECE=ON insists on it)");
}

}  // namespace evenkeel
