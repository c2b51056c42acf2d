# Run by CPack between installation and packaging: arranges the installed files for Debian. The package must name no folder of the machine that
# built it, so LibTorch is found through the link /etc/based/libtorch, which the user makes.
set(usr "${CPACK_TEMPORARY_DIRECTORY}/usr")
set(lib "${usr}/${CPACK_BASED_LIBRARY_DIR}")

# The launcher in place of the program.
file(MAKE_DIRECTORY "${usr}/libexec/based")
file(RENAME "${usr}/bin/based" "${usr}/libexec/based/based")
file(COPY_FILE "${CPACK_BASED_LAUNCHER}" "${usr}/bin/based")

# The search for LibTorch: libbased.so and a program linked with it look in /usr/lib/libtorch, a link to the user's link.
file(MAKE_DIRECTORY "${CPACK_TEMPORARY_DIRECTORY}/etc/based")
file(CREATE_LINK /etc/based/libtorch "${lib}/libtorch" SYMBOLIC)
function(change_run_path file path)
  file(REAL_PATH "${file}" file)
  file(READ_ELF "${file}" RUNPATH old)
  list(JOIN old ":" old)
  file(RPATH_CHANGE FILE "${file}" OLD_RPATH "${old}" NEW_RPATH "${path}")
endfunction()
change_run_path("${usr}/libexec/based/based" "$ORIGIN/../../${CPACK_BASED_LIBRARY_DIR}/libtorch")
change_run_path("${lib}/libbased.so" "$ORIGIN:$ORIGIN/libtorch")
change_run_path("${lib}/libbased_kernels.so" "$ORIGIN/libtorch")
foreach(file cmake/Based/BasedConfig.cmake pkgconfig/based.pc)
  file(READ "${lib}/${file}" text)
  string(REPLACE "${CPACK_BASED_LIBTORCH}" "/usr/${CPACK_BASED_LIBRARY_DIR}/libtorch" changed "${text}")
  if(changed STREQUAL text)
    message(FATAL_ERROR "${file} does not name ${CPACK_BASED_LIBTORCH}")
  endif()
  file(WRITE "${lib}/${file}" "${changed}")
endforeach()

# The service, documents, and the compressed manual page.
file(READ "${CPACK_BASED_SOURCE_DIR}/packaging/based.service" unit)
string(REPLACE "/usr/local/bin/" "/usr/bin/" unit "${unit}")
file(WRITE "${usr}/lib/systemd/system/based.service" "${unit}")
file(MAKE_DIRECTORY "${usr}/share/doc/based")
foreach(file packaging/copyright docs/packages.md)
  file(COPY "${CPACK_BASED_SOURCE_DIR}/${file}" DESTINATION "${usr}/share/doc/based")
endforeach()
execute_process(COMMAND gzip -9nf "${usr}/share/man/man1/based.1" COMMAND_ERROR_IS_FATAL ANY)
