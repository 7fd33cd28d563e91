# evenkeel_isa_sources(NAME SOURCES...) compiles each source once for every instruction set of the target
# architecture into library NAME, with EVENKEEL_ISA naming the set. Such a source puts everything into
# namespace EVENKEEL_ISA, and includes no header with inline functions but those written for it: the linker
# keeps one copy of an inline function, and that one might be compiled for a newer processor.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(EVENKEEL_ISAS baseline avx2 avx512)
else()
    set(EVENKEEL_ISAS baseline)
endif()
set(EVENKEEL_ISA_FLAGS_baseline)
set(EVENKEEL_ISA_FLAGS_avx2 -mavx2 -mfma)
set(EVENKEEL_ISA_FLAGS_avx512 -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl
                              -mprefer-vector-width=512)

function(evenkeel_isa_sources name)
    foreach(isa ${EVENKEEL_ISAS})
        set(target evenkeel_${name}_${isa})
        add_library(${target} OBJECT ${ARGN})
        target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
        target_compile_definitions(${target} PRIVATE EVENKEEL_ISA=${isa})
        # Loops marked "omp simd" are vectorised in any build type that optimises; no comparison or
        # square root in them is watched for traps or errno.
        target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -fopenmp-simd -fno-math-errno
                                                 -fno-trapping-math ${EVENKEEL_ISA_FLAGS_${isa}})
        target_sources(evenkeel_${name} PRIVATE $<TARGET_OBJECTS:${target}>)
    endforeach()
endfunction()
