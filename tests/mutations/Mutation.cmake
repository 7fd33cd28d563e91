# evenkeel_mutation(NAME
#     FILE     path of the mutated source, from the project's root
#     FIND     text that occurs in it exactly once
#     REPLACE  what stands there instead; may be empty
#     SOURCE   the .cu that is recompiled; default: FILE
#     CUT      triples of path, text and replacement that leave instantiations out which the test does not need
#     TEST     test program that must notice, a target that the emulator runs
#     FILTER   its --gtest_filter
#     EXPECT   regular expression that its output must match: a report's words, a failed test's name)
#
# Adds two tests. SOURCE, mutated and compiled to PTX, runs on the emulator in place of TEST's own: TEST must then
# fail in the way that is named; and it must pass as it is, with the same filter. Only device code can be mutated.
# What is mutated is compiled by the tests, not by the build: it is of no use to anything else.
function(evenkeel_mutation name)
    cmake_parse_arguments(PARSE_ARGV 1 ARG "" "FILE;FIND;REPLACE;SOURCE;TEST;FILTER;EXPECT" "CUT")
    if(ARG_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "mutation ${name}: unknown arguments ${ARG_UNPARSED_ARGUMENTS}")
    endif()
    foreach(argument FILE FIND TEST FILTER EXPECT)
        if("${ARG_${argument}}" STREQUAL "")
            message(FATAL_ERROR "mutation ${name}: no ${argument}")
        endif()
    endforeach()
    if(NOT ARG_SOURCE)
        set(ARG_SOURCE ${ARG_FILE})
    endif()

    # Copies of what changes and of the source; includes find the copies first.
    set(folder ${CMAKE_CURRENT_BINARY_DIR}/${name})
    set(files "")
    evenkeel_replace_once(${name} ${ARG_SOURCE} "" "")
    evenkeel_replace_once(${name} ${ARG_FILE} "${ARG_FIND}" "${ARG_REPLACE}")
    while(ARG_CUT)
        list(POP_FRONT ARG_CUT path find replace)
        evenkeel_replace_once(${name} ${path} "${find}" "${replace}")
    endwhile()
    foreach(path IN LISTS files)
        evenkeel_write_if_different(${folder}/${path} "${text_of_${path}}")
    endforeach()

    # PTX alone: the emulator runs it in place of what TEST holds.
    add_library(mutated_${name} OBJECT EXCLUDE_FROM_ALL ${folder}/${ARG_SOURCE})
    add_dependencies(evenkeel_mutations mutated_${name})
    set_target_properties(mutated_${name} PROPERTIES
        CUDA_ARCHITECTURES 80-virtual CUDA_PTX_COMPILATION ON)
    target_compile_options(mutated_${name} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-lineinfo>)
    target_include_directories(mutated_${name} BEFORE PRIVATE ${folder})
    target_link_libraries(mutated_${name} PRIVATE evenkeel::framework)

    add_test(NAME Mutation.${name} COMMAND ${CMAKE_COMMAND}
        -DPROGRAM=$<TARGET_FILE:${ARG_TEST}> -DPTX=$<TARGET_OBJECTS:mutated_${name}> "-DFILTER=${ARG_FILTER}" "-DEXPECT=${ARG_EXPECT}"
        -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/run_mutant.cmake)
    set_tests_properties(Mutation.${name} PROPERTIES TIMEOUT 180 FIXTURES_REQUIRED mutations)

    set(control "MutationControl.${ARG_TEST}.${ARG_FILTER}")
    get_property(controls GLOBAL PROPERTY EVENKEEL_MUTATION_CONTROLS)
    if(NOT control IN_LIST controls)
        set_property(GLOBAL APPEND PROPERTY EVENKEEL_MUTATION_CONTROLS ${control})
        add_test(NAME "${control}" COMMAND ${CMAKE_COMMAND}
            -DPROGRAM=$<TARGET_FILE:${ARG_TEST}> "-DFILTER=${ARG_FILTER}"
            -P ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/run_control.cmake)
        set_tests_properties("${control}" PROPERTIES TIMEOUT 180)
    endif()
endfunction()

# In the caller: adds path to `files`, with find replaced in text_of_PATH. An empty find replaces nothing.
function(evenkeel_replace_once name path find replace)
    set(text "${text_of_${path}}")
    if(NOT "${path}" IN_LIST files)
        set(files ${files} "${path}" PARENT_SCOPE)
        file(READ ${PROJECT_SOURCE_DIR}/${path} text)
        # A change of the source makes the copies anew.
        set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${path})
    endif()
    if(NOT "${find}" STREQUAL "")
        string(FIND "${text}" "${find}" first)
        string(FIND "${text}" "${find}" last REVERSE)
        if(first EQUAL -1)
            message(FATAL_ERROR "mutation ${name}: ${path} does not hold the text\n${find}")
        elseif(NOT first EQUAL last)
            message(FATAL_ERROR "mutation ${name}: ${path} holds more than once the text\n${find}")
        endif()
        string(LENGTH "${find}" length)
        string(SUBSTRING "${text}" 0 ${first} before)
        math(EXPR after "${first} + ${length}")
        string(SUBSTRING "${text}" ${after} -1 rest)
        set(text "${before}${replace}${rest}")
    endif()
    set(text_of_${path} "${text}" PARENT_SCOPE)
endfunction()

function(evenkeel_write_if_different path text)
    if(EXISTS ${path})
        file(READ ${path} before)
        if(before STREQUAL "${text}")
            return()
        endif()
    endif()
    file(WRITE ${path} "${text}")
endfunction()
