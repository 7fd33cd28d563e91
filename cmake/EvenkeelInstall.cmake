# `cmake --install` and find_package(evenkeel): the program, one library a folder, their headers, the
# configurations.
include(CMakePackageConfigHelpers)

set(EVENKEEL_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/evenkeel)

install(TARGETS evenkeel RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS evenkeel_framework evenkeel_parallel evenkeel_attention evenkeel_model
                evenkeel_scaling
                evenkeel_cuda_runtime
        EXPORT evenkeelTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
foreach(folder framework parallel attention model scaling)
    install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/evenkeel
            FILES_MATCHING PATTERN "*.h")
endforeach()
install(DIRECTORY configs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/evenkeel/configs)

install(EXPORT evenkeelTargets NAMESPACE evenkeel:: DESTINATION ${EVENKEEL_CMAKE_DIR})
configure_package_config_file(cmake/evenkeelConfig.cmake.in
    ${PROJECT_BINARY_DIR}/evenkeelConfig.cmake INSTALL_DESTINATION ${EVENKEEL_CMAKE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/evenkeelConfigVersion.cmake
    COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/evenkeelConfig.cmake
              ${PROJECT_BINARY_DIR}/evenkeelConfigVersion.cmake
        DESTINATION ${EVENKEEL_CMAKE_DIR})
