# evenkeel_library(NAME SOURCES ... [CUDA_SOURCES ...] [NO_CUDA_SOURCES ...] [LINK ...] [PRIVATE_LINK ...]
#                  [PRECOMPILE ...])
# One library a folder. CUDA_SOURCES are built when there is a CUDA back end, NO_CUDA_SOURCES when there
# is none: code chooses by file, never by #ifdef. PRECOMPILE: see evenkeel_precompile.
function(evenkeel_library name)
    cmake_parse_arguments(ARG "" "" "SOURCES;CUDA_SOURCES;NO_CUDA_SOURCES;LINK;PRIVATE_LINK;PRECOMPILE" ${ARGN})
    set(target evenkeel_${name})
    add_library(${target} STATIC ${ARG_SOURCES})
    add_library(evenkeel::${name} ALIAS ${target})
    set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
    if(EVENKEEL_HAVE_CUDA)
        target_sources(${target} PRIVATE ${ARG_CUDA_SOURCES})
    else()
        target_sources(${target} PRIVATE ${ARG_NO_CUDA_SOURCES})
    endif()
    target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
                                                $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/evenkeel>)
    target_compile_features(${target} PUBLIC cxx_std_20)
    target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Werror=switch -Werror=return-type>)
    # Line numbers for profilers and for the emulator's reports, which also reads the PTX as it is.
    target_compile_options(${target} PRIVATE
        $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo --no-compress -Xcompiler=-Wall>)
    target_link_libraries(${target} PUBLIC ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK})
    evenkeel_precompile(${target} ${PROJECT_SOURCE_DIR}/framework/tensor.h
                        ${PROJECT_SOURCE_DIR}/framework/config.h ${ARG_PRECOMPILE})
endfunction()

# evenkeel_compile_together(TARGET GROUP SOURCE...): compiles these sources of the target as one, which reads headers and
# makes their templates once. Two of them must not give one name to different things, even in unnamed namespaces.
function(evenkeel_compile_together target group)
    set_source_files_properties(${ARGN} PROPERTIES UNITY_GROUP ${group})
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
