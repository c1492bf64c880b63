# What `cmake --install` lays down besides the tool and the simulated device, which install themselves.
include(CMakePackageConfigHelpers)

install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/cudamempool DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.h" PATTERN "*.def" PATTERN "*.json")

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cudamempool)
install(EXPORT cudamempool NAMESPACE cudamempool:: FILE cudamempool-targets.cmake DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_SOURCE_DIR}/tools/cmake/cudamempool-config.cmake.in
    ${CMAKE_BINARY_DIR}/cudamempool-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/cudamempool-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/cudamempool-config.cmake ${CMAKE_BINARY_DIR}/cudamempool-config-version.cmake
    DESTINATION ${package_dir})

# Relative, so that the file is right wherever `cmake --install --prefix` puts it.
file(RELATIVE_PATH prefix_from_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(${CMAKE_SOURCE_DIR}/tools/cmake/cudamempool.pc.in ${CMAKE_BINARY_DIR}/cudamempool.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/cudamempool.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

file(GLOB man_pages CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/man/*.1)
if(man_pages)
    install(FILES ${man_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
