# What a fault of ours is worth to an attacker is less with these. The flags of the linker are always on; those of the
# compiler are for what is installed elsewhere (scripts/package and the recipes set SHEAF_HARDENING).
include(CheckPIESupported)
check_pie_supported(LANGUAGES C)
add_link_options(LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
if(SHEAF_HARDENING)
  set(optimised "$<CONFIG:Release,RelWithDebInfo,MinSizeRel>")
  target_compile_options(sheaf_options INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-fstack-protector-strong>)
  if(NOT SHEAF_SANITIZE) # sanitizers check the same calls
    target_compile_options(sheaf_options INTERFACE
      $<$<AND:${optimised},$<COMPILE_LANGUAGE:C,CXX>>:-U_FORTIFY_SOURCE>
      $<$<AND:${optimised},$<COMPILE_LANGUAGE:C,CXX>>:-D_FORTIFY_SOURCE=2>)
  endif()
endif()
