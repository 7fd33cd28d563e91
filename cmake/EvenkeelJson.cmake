# evenkeel_json_sources(NAME SOURCE...): sources of library NAME that read or write JSON. Nothing in them is worth the
# time that JSON's templates take to be optimised further. They share one precompiled header, unless ccache is there.
add_library(evenkeel_json_headers OBJECT ${PROJECT_SOURCE_DIR}/framework/json.cpp)

function(evenkeel_json_object target)
    target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
    target_link_libraries(${target} PRIVATE nlohmann_json::nlohmann_json)
    target_compile_options(${target} PRIVATE
        -Wall -Wextra -Wshadow -Werror=switch -Werror=return-type -Wno-stringop-overflow -Wno-restrict
        $<$<CONFIG:Release>:-O1>)
endfunction()

evenkeel_json_object(evenkeel_json_headers)
if(NOT EVENKEEL_CCACHE)
    target_precompile_headers(evenkeel_json_headers PRIVATE
        <algorithm> <cmath> <filesystem> <functional> <map> <optional> <vector>
        ${PROJECT_SOURCE_DIR}/framework/json.h ${PROJECT_SOURCE_DIR}/framework/error.h)
endif()

function(evenkeel_json_sources name)
    set(target evenkeel_${name}_json)
    add_library(${target} OBJECT ${ARGN})
    evenkeel_json_object(${target})
    if(NOT EVENKEEL_CCACHE)
        target_precompile_headers(${target} REUSE_FROM evenkeel_json_headers)
    endif()
    target_sources(evenkeel_${name} PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()
