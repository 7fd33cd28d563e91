// The list of methods: one line each, in the order of tables and help texts.
#pragma once

#include "model/method.h"

#define EVENKEEL_METHODS(METHOD) \
    METHOD(kPlain)               \
    METHOD(kRms)                 \
    METHOD(kRmsShared)           \
    METHOD(kRmsZeroCentred)      \
    METHOD(kLayerNorm)           \
    METHOD(kFullWidthRms)        \
    METHOD(kHenry)               \
    METHOD(kHenryModule)         \
    METHOD(kCosine)              \
    METHOD(kSoftcap)             \
    METHOD(kSink)                \
    METHOD(kOffByOne)            \
    METHOD(kQkClip)              \
    METHOD(kSigmaReparam)        \
    METHOD(kNgpt)

namespace evenkeel {

// Each is defined in the file of its name.
#define EVENKEEL_DECLARE_METHOD(name) extern const Method name;
EVENKEEL_METHODS(EVENKEEL_DECLARE_METHOD)
#undef EVENKEEL_DECLARE_METHOD

}  // namespace evenkeel
