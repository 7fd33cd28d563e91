# Sets EVENKEEL_HAVE_SENTENCEPIECE. AUTO takes the SentencePiece library where it is found (Debian's and Ubuntu's
# libsentencepiece-dev), ON insists, OFF leaves it out.
set(EVENKEEL_HAVE_SENTENCEPIECE OFF)
if(NOT EVENKEEL_SENTENCEPIECE STREQUAL "OFF")
    find_path(EVENKEEL_SENTENCEPIECE_INCLUDE_DIR sentencepiece_processor.h)
    find_library(EVENKEEL_SENTENCEPIECE_LIBRARY sentencepiece)
    if(EVENKEEL_SENTENCEPIECE_INCLUDE_DIR AND EVENKEEL_SENTENCEPIECE_LIBRARY)
        set(EVENKEEL_HAVE_SENTENCEPIECE ON)
    elseif(EVENKEEL_SENTENCEPIECE STREQUAL "ON")
        message(FATAL_ERROR "EVENKEEL_SENTENCEPIECE is ON, but no sentencepiece_processor.h or no "
            "libsentencepiece was found; the package is libsentencepiece-dev")
    endif()
endif()
message(STATUS "SentencePiece: ${EVENKEEL_HAVE_SENTENCEPIECE}")
