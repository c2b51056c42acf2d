# Installs BUILD below a folder of its own. Then it copies tests/consumer, and configures, builds and runs the copy and its mixer's tests
# against that, compiles the C++ and C of the documents and the C example, builds and runs the programs of a copy of tests/install/kernels,
# which looks for no torch (install.kernels compiles its headers), links both by pkg-config, and runs the programs without LIBTORCH, the
# folder of the libraries that BUILD was built with.
set(root "${BUILD}/consumer")
set(project "${root}/project")
file(REMOVE_RECURSE "${root}")
file(COPY "${CMAKE_CURRENT_LIST_DIR}/../consumer/" DESTINATION "${project}")
file(COPY "${CMAKE_CURRENT_LIST_DIR}/kernels/" DESTINATION "${root}/kernels")
file(COPY "${CMAKE_CURRENT_LIST_DIR}/../../examples/c/" DESTINATION "${root}/c")
foreach(step
    "${CMAKE_COMMAND};--install;${BUILD};--prefix;${root}/prefix"
    "${CMAKE_COMMAND};-G;Ninja;-S;${project};-B;${root}/build;-DCMAKE_PREFIX_PATH=${root}/prefix"
    "${CMAKE_COMMAND};--build;${root}/build"
    "${root}/build/consumer"
    "${root}/build/mixer_tests;--gtest_brief=1;--gtest_filter=*/decayed_sum*:-*_cuda"
    "${CMAKE_COMMAND};-G;Ninja;-S;${CMAKE_CURRENT_LIST_DIR}/documents;-B;${root}/documents;-DCMAKE_PREFIX_PATH=${root}/prefix"
    "${CMAKE_COMMAND};--build;${root}/documents"
    "${CMAKE_COMMAND};-G;Ninja;-S;${root}/c;-B;${root}/c_build;-DCMAKE_PREFIX_PATH=${root}/prefix"
    "${CMAKE_COMMAND};--build;${root}/c_build"
    "${CMAKE_COMMAND};-G;Ninja;-S;${root}/kernels;-B;${root}/kernels_build;-DCMAKE_PREFIX_PATH=${root}/prefix"
    "${CMAKE_COMMAND};--build;${root}/kernels_build;--target;scan_table;scan_cpu"
    "${root}/kernels_build/scan_table"
    "${root}/kernels_build/scan_cpu"
    "sh;${CMAKE_CURRENT_LIST_DIR}/pkgconfig.sh;${root}"
    "${root}/prefix/bin/based;--version"
    "${CMAKE_COMMAND};-DPREFIX=${root}/prefix;-DLIBTORCH=${LIBTORCH};-DPROJECT=${project};-DC_PROJECT=${root}/c;-P;${CMAKE_CURRENT_LIST_DIR}/moved.cmake")
  execute_process(COMMAND ${step} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    message(FATAL_ERROR "${step} failed:\n${output}")
  endif()
  message("${output}")
endforeach()
foreach(file bash-completion/completions/based zsh/site-functions/_based fish/vendor_completions.d/based.fish man/man1/based.1)
  file(READ "${root}/prefix/share/${file}" text)
  if(NOT text MATCHES "tokenize")
    message(FATAL_ERROR "share/${file} does not name the program's commands")
  endif()
endforeach()
