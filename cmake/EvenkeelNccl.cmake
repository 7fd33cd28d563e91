# Sets EVENKEEL_HAVE_NCCL. AUTO takes NCCL when there are CUDA, MPI (which brings its ranks together) and
# NCCL 2.14 or later, ON insists, OFF leaves it out. NCCL_ROOT says where to look first; then the CUDA
# toolkit's folders are searched.
set(EVENKEEL_HAVE_NCCL OFF)
set(nccl_problem "")
if(NOT EVENKEEL_NCCL STREQUAL "OFF")
    if(NOT EVENKEEL_HAVE_CUDA OR NOT EVENKEEL_HAVE_MPI)
        set(nccl_problem "NCCL needs CUDA and MPI")
    else()
        find_path(EVENKEEL_NCCL_INCLUDE_DIR nccl.h
            HINTS ${NCCL_ROOT} ENV NCCL_ROOT PATH_SUFFIXES include
            PATHS ${CUDAToolkit_INCLUDE_DIRS})
        find_library(EVENKEEL_NCCL_LIBRARY nccl
            HINTS ${NCCL_ROOT} ENV NCCL_ROOT PATH_SUFFIXES lib lib64
            PATHS ${CUDAToolkit_LIBRARY_DIR})
        if(EVENKEEL_NCCL_INCLUDE_DIR AND EVENKEEL_NCCL_LIBRARY)
            file(STRINGS ${EVENKEEL_NCCL_INCLUDE_DIR}/nccl.h nccl_lines
                REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) ")
            string(REGEX REPLACE "[^0-9;]" "" nccl_version "${nccl_lines}")
            string(REPLACE ";" "." nccl_version "${nccl_version}")
            if(nccl_version VERSION_LESS 2.14)
                set(nccl_problem "NCCL ${nccl_version} is too old, want 2.14 or later")
            else()
                set(EVENKEEL_HAVE_NCCL ON)
            endif()
        else()
            set(nccl_problem "no nccl.h or no libnccl was found; NCCL_ROOT says where they are")
        endif()
    endif()
    if(nccl_problem AND EVENKEEL_NCCL STREQUAL "ON")
        message(FATAL_ERROR "EVENKEEL_NCCL is ON, but ${nccl_problem}")
    endif()
endif()

# Beside the CUDA runtime: NCCL itself, or the emulator's for a program that it runs.
if(EVENKEEL_HAVE_NCCL)
    target_link_libraries(evenkeel_cuda_runtime INTERFACE
        $<BUILD_INTERFACE:$<$<NOT:$<BOOL:$<TARGET_PROPERTY:EVENKEEL_EMULATED_GPU>>>:${EVENKEEL_NCCL_LIBRARY}>>
        $<INSTALL_INTERFACE:${EVENKEEL_NCCL_LIBRARY}>)
    message(STATUS "NCCL: ${nccl_version}")
else()
    message(STATUS "NCCL: OFF")
endif()
