# evenkeel_precompile(TARGET [HEADER...]): headers that most of the target's C++ sources read, and more of them,
# compiled once for all: a third of the time that a source takes. Sources with options of their own leave them
# out (SKIP_PRECOMPILE_HEADERS). With ccache the compiler's results are kept instead: it takes a precompiled header
# for a change.
function(evenkeel_precompile target)
    if(EVENKEEL_CCACHE)
        return()
    endif()
    target_precompile_headers(${target} PRIVATE
        <algorithm> <chrono> <cmath> <cstdint> <filesystem> <functional> <map> <memory> <optional>
        <span> <string> <vector> ${ARGN})
    # GCC 12 mistakes strings for arrays when their header was precompiled.
    target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CXX>:-Wno-stringop-overflow -Wno-restrict>)
endfunction()
