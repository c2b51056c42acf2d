# Builds the kernels' library of a build without torch in BUILD/kernels, installs it, and builds and runs a copy of tests/install/kernels
# against it. The build has no cached objects of the main build, whose sources are compiled together, so it has two
# instruction sets and little optimisation.
set(root "${BUILD}/kernels")
file(REMOVE_RECURSE "${root}/prefix" "${root}/project" "${root}/consumer")
file(COPY "${CMAKE_CURRENT_LIST_DIR}/kernels/" DESTINATION "${root}/project")
foreach(step
    "${CMAKE_COMMAND};-G;Ninja;-S;${CMAKE_CURRENT_LIST_DIR}/../..;-B;${root}/build;-DCMAKE_BUILD_TYPE=Release;-DBASED_WITH_TORCH=OFF;-DBASED_FEW_ISAS=ON;-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"
    "${CMAKE_COMMAND};--build;${root}/build;--target;based_kernels_shared"
    "${CMAKE_COMMAND};--install;${root}/build;--prefix;${root}/prefix"
    "${CMAKE_COMMAND};-G;Ninja;-S;${root}/project;-B;${root}/consumer;-DCMAKE_PREFIX_PATH=${root}/prefix"
    "${CMAKE_COMMAND};--build;${root}/consumer"
    "${root}/consumer/scan_table"
    "${root}/consumer/scan_cpu")
  execute_process(COMMAND ${step} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    message(FATAL_ERROR "${step} failed:\n${output}")
  endif()
  message("${output}")
endforeach()
foreach(absent based/core based/ops bin)
  if(EXISTS "${root}/prefix/include/${absent}" OR EXISTS "${root}/prefix/${absent}")
    message(FATAL_ERROR "${absent} is installed, but the library has the kernels alone")
  endif()
endforeach()
