# Sets EVENKEEL_HAVE_CUDA. AUTO takes CUDA when nvcc is there, ON insists, OFF leaves it out.
set(EVENKEEL_HAVE_CUDA OFF)
if(NOT EVENKEEL_CUDA STREQUAL "OFF")
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
        if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
            # Fixed, so that a machine without a GPU builds the same code. The kernels use what sm_80 has:
            # one PTX, from which come the machine code for both and, when a program starts, that for later
            # GPUs; the emulator that runs the kernels in the tests reads it too. A PTX for each takes half
            # as long again to compile.
            set(CMAKE_CUDA_ARCHITECTURES OFF)
            string(APPEND CMAKE_CUDA_FLAGS
                " --generate-code=arch=compute_80,code=[sm_80,sm_90,compute_80]")
        endif()
        enable_language(CUDA)
        # CMake before 3.26 does not know that nvcc 12 and later take C++20.
        if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
            set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
            set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
        endif()
        set(CMAKE_CUDA_STANDARD 20)
        if(EVENKEEL_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
            set(CMAKE_CUDA_COMPILER_LAUNCHER ${EVENKEEL_CCACHE})
        endif()
        # The runtime library is chosen below, by the program that is linked.
        set(CMAKE_CUDA_RUNTIME_LIBRARY None)
        find_package(CUDAToolkit REQUIRED)
        if(TARGET CUDA::cublasLt)
            set(EVENKEEL_HAVE_CUDA ON)
        elseif(EVENKEEL_CUDA STREQUAL "ON")
            message(FATAL_ERROR "EVENKEEL_CUDA is ON, but no cuBLASLt was found beside nvcc")
        else()
            message(STATUS "No cuBLASLt was found beside nvcc: no CUDA back end")
        endif()
    elseif(EVENKEEL_CUDA STREQUAL "ON")
        message(FATAL_ERROR "EVENKEEL_CUDA is ON, but no nvcc was found")
    endif()
endif()

# The CUDA runtime and cuBLASLt that a program gets with the libraries it links: NVIDIA's, or for one with the
# property EVENKEEL_EMULATED_GPU the emulator of tests/gpu_emulator, which runs the same kernels on the CPU.
add_library(evenkeel_cuda_runtime INTERFACE)
set_target_properties(evenkeel_cuda_runtime PROPERTIES EXPORT_NAME cuda_runtime)
if(EVENKEEL_HAVE_CUDA)
    target_include_directories(evenkeel_cuda_runtime INTERFACE
        $<BUILD_INTERFACE:${CUDAToolkit_INCLUDE_DIRS}>)
    set(emulated $<BOOL:$<TARGET_PROPERTY:EVENKEEL_EMULATED_GPU>>)
    target_link_libraries(evenkeel_cuda_runtime INTERFACE
        $<BUILD_INTERFACE:$<IF:${emulated},evenkeel_gpu_emulator,CUDA::cudart_static>>
        $<BUILD_INTERFACE:$<$<NOT:${emulated}>:CUDA::cublasLt>>
        $<INSTALL_INTERFACE:CUDA::cudart_static> $<INSTALL_INTERFACE:CUDA::cublasLt>)
endif()

# Where the tests run device code.
set(EVENKEEL_TEST_GPU OFF CACHE BOOL "Run the device tests on a real GPU instead of the emulator")
message(STATUS "CUDA compiler: ${EVENKEEL_HAVE_CUDA}")
