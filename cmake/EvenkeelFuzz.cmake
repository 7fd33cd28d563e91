# A build of tests/fuzz alone, which needs neither CUDA nor MPI nor OpenMP.
if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    message(FATAL_ERROR "EVENKEEL_FUZZ is ON, but the compiler is ${CMAKE_CXX_COMPILER_ID}; libFuzzer comes with "
        "clang, -DCMAKE_CXX_COMPILER=clang++")
endif()
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_FLAGS -std=c++20)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(Threads REQUIRED)
add_subdirectory(tests/fuzz)
