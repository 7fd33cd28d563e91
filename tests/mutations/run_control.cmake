# Passes if the program's filtered tests pass, and there are some: PROGRAM, FILTER.
execute_process(COMMAND ${PROGRAM} --gtest_filter=${FILTER}
                RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output TIMEOUT 170)
if(NOT status STREQUAL "0" OR NOT output MATCHES "\\[  PASSED  \\] [1-9]")
    message("${output}")
    message(FATAL_ERROR "the unmutated program ends with ${status}")
endif()
