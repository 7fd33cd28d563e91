// The list of studies: one line each, in the order of help texts.
#pragma once

#include <memory>

#include "launch/studies/study.h"

#define EVENKEEL_STUDIES(STUDY) \
    STUDY(drift)                \
    STUDY(half)                 \
    STUDY(quantize)             \
    STUDY(order)                \
    STUDY(dilution)             \
    STUDY(transplant)           \
    STUDY(temperature)          \
    STUDY(lr_sweep)             \
    STUDY(retrofit)

namespace evenkeel::study {

// Each is defined in the file of its name.
#define EVENKEEL_DECLARE_STUDY(name) std::unique_ptr<Study> make_##name();
EVENKEEL_STUDIES(EVENKEEL_DECLARE_STUDY)
#undef EVENKEEL_DECLARE_STUDY

}  // namespace evenkeel::study
