# Sets EVENKEEL_HAVE_MPI. AUTO takes MPI when it is there, ON insists, OFF leaves it out.
set(EVENKEEL_HAVE_MPI OFF)
if(EVENKEEL_MPI STREQUAL "ON")
    find_package(MPI REQUIRED COMPONENTS CXX)
elseif(NOT EVENKEEL_MPI STREQUAL "OFF")
    find_package(MPI COMPONENTS CXX)
endif()
if(MPI_CXX_FOUND)
    set(EVENKEEL_HAVE_MPI ON)
endif()
message(STATUS "MPI: ${EVENKEEL_HAVE_MPI}")

# What a launch of several ranks on one machine needs: they may be root's (a container), may outnumber the
# cores, and talk through shared memory alone, so that no network has to be there.
set(EVENKEEL_MPI_ENVIRONMENT
    OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader OMPI_MCA_btl_vader_single_copy_mechanism=none
    OMP_NUM_THREADS=1)
# Emulated GPUs of the machine, for tests of CUDA code: one for each rank.
set(EVENKEEL_MPI_TEST_ENVIRONMENT ${EVENKEEL_MPI_ENVIRONMENT} EVENKEEL_EMULATED_GPUS=8)

# add_mpi_test(NAME SOURCES ... [LINK ...] [RANKS 1 2 4 8])
# A GoogleTest program whose main is tests/support/mpi_main.cpp, run under mpirun once for each number of
# ranks: CTest cases NAME_np1, NAME_np2, .. with the label mpi. The limit of time is for a machine that others use.
function(add_mpi_test name)
    cmake_parse_arguments(ARG "" "" "SOURCES;LINK;RANKS" ${ARGN})
    if(NOT ARG_RANKS)
        set(ARG_RANKS 1 2 4 8)
    endif()
    add_executable(${name} ${ARG_SOURCES})
    target_link_libraries(${name} PRIVATE evenkeel_mpi_main ${ARG_LINK})
    foreach(ranks ${ARG_RANKS})
        add_test(NAME ${name}_np${ranks}
            COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${MPIEXEC_PREFLAGS}
                    $<TARGET_FILE:${name}> ${MPIEXEC_POSTFLAGS})
        set_tests_properties(${name}_np${ranks} PROPERTIES LABELS mpi PROCESSORS ${ranks}
            TIMEOUT 600 ENVIRONMENT "${EVENKEEL_MPI_TEST_ENVIRONMENT}")
    endforeach()
endfunction()
