# evenkeel_isa_sources(NAME [ISAS SET...] SOURCES SOURCE...) compiles each source once for every instruction
# set, with EVENKEEL_ISA naming the set, into library NAME. Such a source puts everything into namespace
# EVENKEEL_ISA, and includes no header with inline functions but those written for it: the linker keeps one
# copy of an inline function, and that one might be compiled for a newer processor.
#
# Without ISAS: what framework/isa.h chooses from. Its avx512 stands for the processors that also convert to
# bfloat16 (Cooper Lake, Sapphire Rapids, Zen 4 and later ones); older ones with AVX-512 run the AVX2 code.
# With ISAS the library chooses by itself. Other processors than x86-64 have the baseline only.
set(EVENKEEL_ISA_FLAGS_baseline)
set(EVENKEEL_ISA_FLAGS_avx2 -mavx2 -mfma)
set(EVENKEEL_ISA_FLAGS_avx512_fma ${EVENKEEL_ISA_FLAGS_avx2} -mavx512f -mavx512bw -mavx512dq
                                  -mavx512vl -mprefer-vector-width=512)
set(EVENKEEL_ISA_FLAGS_avx512_bf16 ${EVENKEEL_ISA_FLAGS_avx512_fma} -mavx512bf16)
set(EVENKEEL_ISA_FLAGS_avx512 ${EVENKEEL_ISA_FLAGS_avx512_bf16})

function(evenkeel_isa_sources name)
    cmake_parse_arguments(ARG "" "" "ISAS;SOURCES" ${ARGN})
    set(isas ${ARG_ISAS})
    if(NOT isas)
        set(isas baseline avx2 avx512)
    endif()
    if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
        set(isas baseline)
    endif()
    list(GET ARG_SOURCES 0 first)
    get_filename_component(stem ${first} NAME_WE)
    foreach(isa ${isas})
        set(target evenkeel_${stem}_${isa})
        add_library(${target} OBJECT ${ARG_SOURCES})
        target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
        target_compile_definitions(${target} PRIVATE EVENKEEL_ISA=${isa})
        # No comparison or square root in these loops is watched for traps or errno, which would keep
        # compilers from vectorising them. Vectors stay inside one object, so their passing convention,
        # which -Wpsabi warns about, does not matter. GCC 12 takes the undefined pass-through operands of
        # its own AVX-512 header for uninitialised variables.
        target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wno-psabi -Wno-uninitialized
                                                 -fno-math-errno -fno-trapping-math
                                                 ${EVENKEEL_ISA_FLAGS_${isa}})
        target_sources(evenkeel_${name} PRIVATE $<TARGET_OBJECTS:${target}>)
    endforeach()
endfunction()
