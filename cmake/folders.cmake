# Where an installation has its folders, and how its programs find the library.

# A folder inside the prefix that was given by its whole path is one below the prefix: it moves with it.
foreach(kind BIN LIB INCLUDE MAN)
  set(dir "${CMAKE_INSTALL_${kind}DIR}")
  string(FIND "${dir}/" "${CMAKE_INSTALL_PREFIX}/" at)
  if(IS_ABSOLUTE "${dir}" AND at EQUAL 0)
    file(RELATIVE_PATH CMAKE_INSTALL_${kind}DIR "${CMAKE_INSTALL_PREFIX}" "${dir}")
  endif()
endforeach()

# Programs find the library beside them, wherever the prefix is; a folder outside of it has one place. MPI and hwloc
# are found where they were for the build.
if(IS_ABSOLUTE "${CMAKE_INSTALL_BINDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  list(PREPEND CMAKE_INSTALL_RPATH "${CMAKE_INSTALL_FULL_LIBDIR}")
else()
  file(RELATIVE_PATH bin_to_lib "/${CMAKE_INSTALL_BINDIR}" "/${CMAKE_INSTALL_LIBDIR}")
  list(PREPEND CMAKE_INSTALL_RPATH "$ORIGIN/${bin_to_lib}")
endif()
if(NOT DEFINED CMAKE_INSTALL_RPATH_USE_LINK_PATH)
  set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
endif()
