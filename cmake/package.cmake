# `cpack -G DEB` makes four packages, five with CUDA, `cpack -G TGZ` a tarball; scripts/package configures a build for
# them and checks what it made. Each component of `install` is a package: lib, dev, tools, ggml, cuda.
set(doc share/doc)
set(PACKAGES lib:libsheaf0 dev:libsheaf-dev tools:sheaf-tools ggml:ggml-backend-sheaf cuda:sheaf-cuda)
set(CPACK_COMPONENTS_ALL lib dev tools ggml)
if(TARGET sheaf-cuda)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
endif()

# Manual pages come from what the programs print (scripts/make-man); a build without Python has none.
find_package(Python3 COMPONENTS Interpreter)
file(GLOB mains RELATIVE ${PROJECT_SOURCE_DIR}/tools CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/*/sheaf-*.c)
set(pages)
set(programs)
foreach(main ${mains})
  get_filename_component(name ${main} NAME_WE)
  list(APPEND programs ${name})
  list(APPEND pages ${PROJECT_BINARY_DIR}/man/${name}.1.gz)
  set(component tools)
  if(name STREQUAL "sheaf-worker")
    set(component ggml)
  else() # the arguments of sheaf-worker are another program
    install(FILES ${PROJECT_SOURCE_DIR}/packaging/completion.bash DESTINATION share/bash-completion/completions
            RENAME ${name} COMPONENT tools)
  endif()
  if(Python3_FOUND)
    install(FILES ${PROJECT_BINARY_DIR}/man/${name}.1.gz DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${component})
  endif()
endforeach()
if(Python3_FOUND)
  add_custom_command(OUTPUT ${pages}
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/make-man ${PROJECT_BINARY_DIR}/bin ${PROJECT_BINARY_DIR}/man
    DEPENDS ${PROJECT_SOURCE_DIR}/scripts/make-man ${programs} COMMENT "Manual pages" VERBATIM)
  add_custom_target(sheaf_man ALL DEPENDS ${pages})
  add_dependencies(sheaf_installed sheaf_man)
endif()

# Licence, notices and a changelog for each package.
find_program(SHEAF_GZIP gzip)
set(logs ${PROJECT_BINARY_DIR}/package)
set(CPACK_PACKAGE_CONTACT "the sheaf authors <sheaf@localhost>")
if(SHEAF_GZIP)
  file(WRITE ${logs}/changelog.Debian "sheaf (${PROJECT_VERSION}-1) unstable; urgency=medium\n\n"
       "  * Packages made by cpack; changelog.gz has the changes.\n\n"
       " -- ${CPACK_PACKAGE_CONTACT}  Mon, 23 Nov 2026 12:00:00 +0000\n")
  execute_process(COMMAND ${SHEAF_GZIP} -9nc ${PROJECT_SOURCE_DIR}/CHANGELOG.md OUTPUT_FILE ${logs}/changelog.gz)
  execute_process(COMMAND ${SHEAF_GZIP} -9nc ${logs}/changelog.Debian OUTPUT_FILE ${logs}/changelog.Debian.gz)
endif()
foreach(pair ${PACKAGES})
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 component)
  list(GET pair 1 package)
  if(NOT component IN_LIST CPACK_COMPONENTS_ALL)
    continue()
  endif()
  install(FILES ${PROJECT_SOURCE_DIR}/packaging/debian/copyright DESTINATION ${doc}/${package} COMPONENT ${component})
  if(SHEAF_GZIP)
    install(FILES ${logs}/changelog.gz ${logs}/changelog.Debian.gz DESTINATION ${doc}/${package} COMPONENT ${component})
  endif()
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${doc}/sheaf-tools COMPONENT tools)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs/ DESTINATION ${doc}/sheaf-tools/docs COMPONENT tools
        FILES_MATCHING PATTERN *.md PATTERN *.svg)
install(FILES ${PROJECT_SOURCE_DIR}/examples/generate.c ${PROJECT_SOURCE_DIR}/examples/split_a_graph.c
        DESTINATION ${doc}/libsheaf-dev/examples COMPONENT dev)

if(NOT PROJECT_IS_TOP_LEVEL) # the packages are those of the project around
  return()
endif()
set(CPACK_PACKAGE_NAME sheaf)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR "the sheaf authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "one backend device out of every CPU and GPU of an MPI job")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_FILE_NAME sheaf-${PROJECT_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_ARCHIVE_COMPONENT_INSTALL OFF)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/packed-folders.cmake)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(same "libsheaf0 (= ${PROJECT_VERSION}-1)")

set(about "Slices tensors over the members of a job, runs the slices, and sums\n where the result needs it.")
macro(describe component package section depends summary)
  string(TOUPPER ${component} key)
  set(CPACK_DEBIAN_${key}_PACKAGE_NAME ${package})
  set(CPACK_DEBIAN_${key}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${key}_PACKAGE_DEPENDS "${depends}")
  set(CPACK_COMPONENT_${key}_DESCRIPTION "${summary}\n ${about}\n ${ARGN}")
endmacro()
describe(lib libsheaf0 libs "" "one device out of all CPUs and GPUs of an MPI job"
         "The libraries, and the CPU's kernels as modules.")
describe(dev libsheaf-dev libdevel "${same}" "one device out of all CPUs and GPUs of an MPI job, headers"
         "Headers, and descriptions for CMake and pkg-config.")
set(launcher openmpi-bin) # of the MPI that the library was built with: another one's starts jobs of one rank each
if(MPI_C_LIBRARIES MATCHES mpich)
  set(launcher mpich)
endif()
describe(tools sheaf-tools science "${same}, ${launcher}" "language models on all CPUs and GPUs of an MPI job"
         "Programs that run, measure, convert and examine GGUF models.")
describe(ggml ggml-backend-sheaf science "${same}" "all ranks of an MPI job as a device of ggml"
         "A backend that programs of llama.cpp load, and the worker for\n the other ranks.")
describe(cuda sheaf-cuda libs "${same}" "CUDA devices for libsheaf"
         "The module that drives GPUs, for any driver of its CUDA generation.")
# Plugins, not libraries that programs link: the shlibs file has the two libraries only.
set(CPACK_DEBIAN_LIB_PACKAGE_CONTROL_EXTRA
    "${PROJECT_SOURCE_DIR}/packaging/debian/triggers;${PROJECT_BINARY_DIR}/package/shlibs")
file(WRITE ${PROJECT_BINARY_DIR}/package/shlibs
     "libsheaf ${PROJECT_VERSION_MAJOR} ${same}\nlibsheaf-model ${PROJECT_VERSION_MAJOR} ${same}\n")
include(CPack)
