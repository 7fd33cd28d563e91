// The list of families: one line each, in the order in which export tries them.
#pragma once

#include "model/hugging_face/family.h"

#define EVENKEEL_FAMILIES(FAMILY) \
    FAMILY(kLlama)                \
    FAMILY(kMistral)              \
    FAMILY(kQwen2)                \
    FAMILY(kQwen3)                \
    FAMILY(kOlmo2)                \
    FAMILY(kGemma3Text)           \
    FAMILY(kStableLm)             \
    FAMILY(kCohere)               \
    FAMILY(kGptOss)               \
    FAMILY(kEvenkeel)

namespace evenkeel::hugging_face {

// Each is defined in the file of its name.
#define EVENKEEL_DECLARE_FAMILY(name) extern const Family name;
EVENKEEL_FAMILIES(EVENKEEL_DECLARE_FAMILY)
#undef EVENKEEL_DECLARE_FAMILY

}  // namespace evenkeel::hugging_face
