# A loadable module libsheaf-NAME.so, beside libsheaf in the build tree and in the installed one, which is where the
# library looks for it (src/backend/module_search.h). The library that tests link finds it through a link.
# The target sheaf_modules builds all of them.
add_custom_target(sheaf_modules)

# How the sources of modules are compiled.
function(sheaf_module_options target)
  set_target_properties(${target} PROPERTIES C_VISIBILITY_PRESET hidden)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PRIVATE sheaf_options)
  if(SHEAF_HARDENING) # arrays of kernels have constant sizes and indices; they run for every block of a row
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C>:-fno-stack-protector>)
  endif()
endfunction()

function(sheaf_add_module name)
  add_library(sheaf-${name} MODULE ${ARGN})
  sheaf_module_options(sheaf-${name})
  set_target_properties(sheaf-${name} PROPERTIES INSTALL_RPATH "$ORIGIN")
  add_custom_command(TARGET sheaf-${name} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/unhidden
    COMMAND ${CMAKE_COMMAND} -E create_symlink
            ../$<TARGET_FILE_NAME:sheaf-${name}> ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/unhidden/$<TARGET_FILE_NAME:sheaf-${name}>
    VERBATIM)
  add_dependencies(sheaf_modules sheaf-${name})
  set(component lib)
  if(name STREQUAL cuda)
    set(component cuda)
  endif()
  install(TARGETS sheaf-${name} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component})
endfunction()
