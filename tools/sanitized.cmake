# Configures and builds the preset asan-ubsan; run by ctest before the tests that use it.
foreach(step "--preset;asan-ubsan" "--build;build/asan-ubsan")
  execute_process(COMMAND ${CMAKE_COMMAND} ${step} RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "cmake ${step} failed")
  endif()
endforeach()
