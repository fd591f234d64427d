# cpack runs this before it packs: all may read the folders, whatever the packager's umask, which limits what
# CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS allows.
file(GLOB_RECURSE paths LIST_DIRECTORIES true "${CPACK_TEMPORARY_DIRECTORY}/*")
foreach(path IN LISTS paths)
  if(IS_DIRECTORY "${path}")
    file(CHMOD "${path}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
                                     WORLD_EXECUTE)
  endif()
endforeach()
