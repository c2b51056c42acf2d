# Installs BUILD below a folder of its own, then configures, builds and runs the consumer and its mixer's tests against that, compiles README's
# C++, and runs the programs without LIBTORCH, the folder of the libraries that it was built with.
set(root "${BUILD}/consumer")
file(REMOVE_RECURSE "${root}")
foreach(step
    "${CMAKE_COMMAND};--install;${BUILD};--prefix;${root}/prefix"
    "${CMAKE_COMMAND};-G;Ninja;-S;${CMAKE_CURRENT_LIST_DIR};-B;${root}/build;-DCMAKE_PREFIX_PATH=${root}/prefix"
    "${CMAKE_COMMAND};--build;${root}/build"
    "${root}/build/consumer"
    "${root}/build/mixer_tests;--gtest_brief=1;--gtest_filter=*/decayed_sum*:-*_cuda"
    "${root}/prefix/bin/based;--version"
    "${CMAKE_COMMAND};-DPREFIX=${root}/prefix;-DLIBTORCH=${LIBTORCH};-P;${CMAKE_CURRENT_LIST_DIR}/moved.cmake")
  execute_process(COMMAND ${step} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    message(FATAL_ERROR "${step} failed:\n${output}")
  endif()
  message("${output}")
endforeach()
