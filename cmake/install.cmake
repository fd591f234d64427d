# `cmake --install` lays down headers, libsheaf, libsheaf-model, and their descriptions for CMake and pkg-config.
# The tools install themselves (tools/CMakeLists.txt).
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sheaf)

install(TARGETS sheaf sheaf-model EXPORT sheafTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT lib NAMELINK_COMPONENT dev)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/sheaf DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        COMPONENT dev FILES_MATCHING PATTERN *.h)
install(EXPORT sheafTargets NAMESPACE sheaf:: DESTINATION ${package_dir} COMPONENT dev)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/sheafConfig.cmake.in
  ${PROJECT_BINARY_DIR}/sheafConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/sheafConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/sheafConfig.cmake ${PROJECT_BINARY_DIR}/sheafConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT dev)

# ${pcfiledir} keeps the file right when the prefix is moved; a library outside the prefix does not move with it.
set(pc_prefix ${CMAKE_INSTALL_PREFIX})
if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  set(pc_prefix \${pcfiledir}/${pc_to_prefix})
endif()
foreach(kind LIB INCLUDE)
  set(pc_${kind} ${CMAKE_INSTALL_${kind}DIR})
  if(NOT IS_ABSOLUTE "${pc_${kind}}")
    string(PREPEND pc_${kind} \${prefix}/)
  endif()
endforeach()
foreach(pc sheaf sheaf-model)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${pc}.pc.in ${PROJECT_BINARY_DIR}/${pc}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${pc}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT dev)
endforeach()
