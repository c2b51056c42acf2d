# Part of `cmake --install`: installs the completion scripts and the manual page, which PROGRAM prints, below DATA_DIR and MAN_DIR of the
# prefix. They are kept in WORK_DIR.
cmake_policy(PUSH)
cmake_policy(VERSION 3.22)
set(zsh_folder "zsh/site-functions")
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(zsh_folder "zsh/vendor-completions")  # Debian keeps site-functions for the administrator
endif()
# install_output(FILE FOLDER ARGUMENTS...): what the program prints, as FOLDER/FILE.
function(install_output file folder)
  file(MAKE_DIRECTORY "${WORK_DIR}")
  execute_process(COMMAND "${PROGRAM}" ${ARGN} OUTPUT_FILE "${WORK_DIR}/${file}" RESULT_VARIABLE failed ERROR_VARIABLE error)
  if(failed)
    message(FATAL_ERROR "${PROGRAM} ${ARGN} failed: ${error}")
  endif()
  file(INSTALL "${WORK_DIR}/${file}" DESTINATION "${CMAKE_INSTALL_PREFIX}/${folder}")
endfunction()
install_output(based "${DATA_DIR}/bash-completion/completions" completion bash)
install_output(_based "${DATA_DIR}/${zsh_folder}" completion zsh)
install_output(based.fish "${DATA_DIR}/fish/vendor_completions.d" completion fish)
install_output(based.1 "${MAN_DIR}/man1" man)
cmake_policy(POP)
