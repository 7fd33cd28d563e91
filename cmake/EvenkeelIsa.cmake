# evenkeel_isa_sources(NAME SOURCES...) compiles each source once for every instruction set of the target
# architecture into library NAME, with EVENKEEL_ISA naming the set. Such a source puts everything into
# namespace EVENKEEL_ISA, and includes no header with inline functions but those written for it: the linker
# keeps one copy of an inline function, and that one might be compiled for a newer processor.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    set(EVENKEEL_ISAS baseline avx2 avx512)
else()
    set(EVENKEEL_ISAS baseline)
endif()
# avx512 stands for the processors that also convert to bfloat16: Cooper Lake, Sapphire Rapids, Zen 4 and
# later ones. Older ones with AVX-512 run the AVX2 code.
set(EVENKEEL_ISA_FLAGS_baseline)
set(EVENKEEL_ISA_FLAGS_avx2 -mavx2 -mfma)
set(EVENKEEL_ISA_FLAGS_avx512 -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16
                              -mprefer-vector-width=512)

function(evenkeel_isa_sources name)
    foreach(isa ${EVENKEEL_ISAS})
        set(target evenkeel_${name}_${isa})
        add_library(${target} OBJECT ${ARGN})
        target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
        target_compile_definitions(${target} PRIVATE EVENKEEL_ISA=${isa})
        # No comparison or square root in these loops is watched for traps or errno, which would keep
        # compilers from vectorising them. Vectors stay inside one object, so their passing convention,
        # which -Wpsabi warns about, does not matter.
        target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wno-psabi -fno-math-errno
                                                 -fno-trapping-math ${EVENKEEL_ISA_FLAGS_${isa}})
        target_sources(evenkeel_${name} PRIVATE $<TARGET_OBJECTS:${target}>)
    endforeach()
endfunction()
